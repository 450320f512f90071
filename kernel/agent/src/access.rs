//! Access tokens and signatures of URLs.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use hyper::StatusCode;
use hyper::header::HeaderMap;
use sha2::{Digest, Sha256};

use crate::query::Query;
use crate::reply::Failure;

/// Checks the token of a call.
pub fn check_token(token: Option<&str>, headers: &HeaderMap) -> Result<(), Failure> {
    let Some(token) = token else { return Ok(()) };
    match headers.get("x-access-token") {
        Some(given) if same(given.as_bytes(), token.as_bytes()) => Ok(()),
        _ => Err(refused("the header X-Access-Token lacks the token of /init")),
    }
}

/// Checks the token of a call for a file, else the signature of its URL.
pub fn check_file(
    token: Option<&str>,
    headers: &HeaderMap,
    query: &Query,
    operation: &str,
) -> Result<(), Failure> {
    let (Some(secret), Some(signature)) = (token, query.get("signature")) else {
        return check_token(token, headers);
    };
    if headers.contains_key("x-access-token") {
        return check_token(token, headers);
    }
    let expiration = query.get("signature_expiration");
    let (path, user) = (query.get("path").unwrap_or_default(), query.get("username").unwrap_or_default());
    if !same(signature.as_bytes(), sign(path, operation, user, secret, expiration).as_bytes()) {
        return Err(refused("the signature is wrong"));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    match expiration.map(str::parse::<u64>) {
        None => Ok(()),
        Some(Ok(until)) if until >= now => Ok(()),
        Some(_) => Err(refused("the signature has expired")),
    }
}

fn refused(why: &str) -> Failure {
    Failure::new(StatusCode::UNAUTHORIZED, why)
}

fn sign(path: &str, operation: &str, user: &str, token: &str, expiration: Option<&str>) -> String {
    let mut text = format!("{path}:{operation}:{user}:{token}");
    if let Some(expiration) = expiration {
        text.push(':');
        text.push_str(expiration);
    }
    format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)))
}

/// Compares in a time that depends on the lengths alone.
pub fn same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(query: &str, token: &str, operation: &str) -> Option<StatusCode> {
        let query = Query::parse(query);
        check_file(Some(token), &HeaderMap::new(), &query, operation).err().map(|failure| failure.status)
    }

    #[test]
    fn signature_opens_one_file_for_one_operation() {
        let signature = sign("/a", "read", "", "secret", None).replace('+', "%2B");
        let query = format!("path=/a&signature={signature}");
        assert_eq!(status(&query, "secret", "read"), None);
        assert_eq!(status(&query, "secret", "write"), Some(StatusCode::UNAUTHORIZED));
        assert_eq!(status(&query, "other", "read"), Some(StatusCode::UNAUTHORIZED));
        let other = format!("path=/b&signature={signature}");
        assert_eq!(status(&other, "secret", "read"), Some(StatusCode::UNAUTHORIZED));
        assert_eq!(status("path=/a", "secret", "read"), Some(StatusCode::UNAUTHORIZED));
    }

    #[test]
    fn expired_signature_is_refused() {
        for (expiration, wanted) in [("99999999999", None), ("5", Some(StatusCode::UNAUTHORIZED))] {
            let signature = sign("/a", "write", "user", "secret", Some(expiration)).replace('+', "%2B");
            let query =
                format!("path=/a&username=user&signature={signature}&signature_expiration={expiration}");
            assert_eq!(status(&query, "secret", "write"), wanted);
        }
    }

    #[test]
    fn signature_is_the_documented_hash() {
        let known = "v1_QWD6k4p1iDIDKCW6EAOoUosxT0FpphZhN3AN8lEorkI";
        assert_eq!(sign("/tmp/a", "read", "user", "token", None), known);
    }
}
