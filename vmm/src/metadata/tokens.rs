//! Tokens of the metadata service. A token is the time of its end and a serial number, authenticated by a key
//! that the process draws and never stores: no list of tokens has to be kept.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;

/// Bytes of the key.
const KEY: usize = 32;
/// Bytes of the claims: end in milliseconds and serial number.
const CLAIMS: usize = 16;
/// Bytes of the tag, a truncated HMAC (RFC 2104, section 5).
const TAG: usize = 16;
/// Characters of a token.
const TOKEN: usize = (CLAIMS + TAG).div_ceil(3) * 4;

/// The authority that issues and accepts tokens.
pub(super) struct Tokens {
    key: [u8; KEY],
    /// The start of the tokens' time.
    epoch: Instant,
    issued: AtomicU64,
}

impl Tokens {
    /// Draws a key, or returns `None` if the host has no randomness.
    pub fn new() -> Option<Self> {
        let mut key = [0; KEY];
        // The kernel returns so few bytes at once.
        let drawn = getrandom(&mut key, GetRandomFlags::empty()).ok()?;
        (drawn == KEY).then(|| Self { key, epoch: Instant::now(), issued: AtomicU64::new(0) })
    }

    /// Issues a token that is valid for some time.
    pub fn issue(&self, valid: Duration, now: Instant) -> String {
        let end = self.milliseconds(now + valid).to_le_bytes();
        let serial = self.issued.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        let claims = [end, serial].concat();
        let tag = self.hmac(&claims).finalize().into_bytes();
        STANDARD.encode([&claims, &tag[..TAG]].concat())
    }

    /// Whether this authority issued the token, and its end has not come.
    pub fn accept(&self, token: &str, now: Instant) -> bool {
        if token.len() != TOKEN {
            return false;
        }
        let Ok(token) = STANDARD.decode(token) else { return false };
        let Some((claims, tag)) = token.split_at_checked(CLAIMS) else { return false };
        // The comparison takes the same time for every wrong tag.
        let is_own = self.hmac(claims).verify_truncated_left(tag).is_ok();
        let end = claims.first_chunk().map_or(0, |end| u64::from_le_bytes(*end));
        is_own && tag.len() == TAG && self.milliseconds(now) < end
    }

    fn milliseconds(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.epoch).as_millis().try_into().unwrap_or(u64::MAX)
    }

    fn hmac(&self, claims: &[u8]) -> Hmac<Sha256> {
        let mut hmac = Hmac::<Sha256>::new_from_slice(&self.key).expect("a key of any length");
        hmac.update(claims);
        hmac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: Duration = Duration::from_secs(60);

    #[test]
    fn token_is_accepted_until_its_end() {
        let (tokens, now) = (Tokens::new().unwrap(), Instant::now());
        let token = tokens.issue(VALID, now);
        assert_eq!(token.len(), TOKEN);
        assert!(tokens.accept(&token, now));
        assert!(tokens.accept(&token, now + VALID - Duration::from_millis(2)));
        assert!(!tokens.accept(&token, now + VALID));
        assert_ne!(token, tokens.issue(VALID, now), "two tokens of one time differ");
    }

    #[test]
    fn changed_or_foreign_token_is_refused() {
        let (tokens, now) = (Tokens::new().unwrap(), Instant::now());
        let token = tokens.issue(VALID, now);
        assert!(!Tokens::new().unwrap().accept(&token, now));
        for at in 0..TOKEN - 1 {
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert!(!tokens.accept(std::str::from_utf8(&changed).unwrap(), now), "character {at}");
        }
        let longer = format!("{token}A");
        let whole = STANDARD.decode(&token).unwrap();
        let without_tag = STANDARD.encode(&whole[..CLAIMS]);
        for wrong in
            ["", "A", "token", &token[1..], &longer, &without_tag, &"=".repeat(TOKEN), &"é".repeat(22)]
        {
            assert!(!tokens.accept(wrong, now), "{wrong}");
        }
    }
}
