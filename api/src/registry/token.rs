//! Answers the challenges of registries (distribution's token authentication; RFC 6750 and RFC 7617).

use std::collections::HashMap;
use std::io::Read;

use http_auth::parse_challenges;
use reqwest::blocking::Client;
use reqwest::header::{AUTHORIZATION, HeaderMap, WWW_AUTHENTICATE};
use serde::Deserialize;

use super::RegistryError;
use super::credentials::Login;
use super::endpoint::Endpoint;

/// Most bytes of a token server's answer.
const LONGEST_ANSWER: u64 = 64 << 10;

/// The value of a request's header `Authorization`.
#[derive(Clone)]
pub(super) enum Authorization {
    Basic { user: String, password: String },
    Bearer(String),
}

/// The answer of a token server.
#[derive(Deserialize)]
struct Answer {
    token: Option<String>,
    access_token: Option<String>,
}

/// Answers the challenge in a response's headers. Returns nothing if there is none, or if it asks for a
/// password and there is none.
pub(super) fn authorize(
    client: &Client,
    endpoint: &Endpoint,
    repository: &str,
    headers: &HeaderMap,
) -> Result<Option<Authorization>, RegistryError> {
    let login = Login::find(endpoint)?;
    for header in headers.get_all(WWW_AUTHENTICATE) {
        let Ok(challenges) =
            header.to_str().map_err(drop).and_then(|text| parse_challenges(text).map_err(drop))
        else {
            continue;
        };
        for challenge in challenges {
            if challenge.scheme.eq_ignore_ascii_case("bearer") {
                let parameters = challenge
                    .params
                    .iter()
                    .map(|(key, value)| (key.to_ascii_lowercase(), value.to_unescaped()))
                    .collect();
                return token(client, endpoint, repository, &parameters, login).map(Some);
            }
            if challenge.scheme.eq_ignore_ascii_case("basic") {
                return Ok(match login {
                    Login::Password { user, password } => Some(Authorization::Basic { user, password }),
                    _ => None,
                });
            }
        }
    }
    Ok(None)
}

fn token(
    client: &Client,
    endpoint: &Endpoint,
    repository: &str,
    parameters: &HashMap<String, String>,
    login: Login,
) -> Result<Authorization, RegistryError> {
    let refused =
        |problem: &str| RegistryError::Login { url: endpoint.base.clone(), problem: problem.to_owned() };
    let realm = parameters.get("realm").ok_or_else(|| refused("its challenge has no realm"))?;
    // Passwords go to a server without TLS only if the registry has none itself.
    if !realm.starts_with("https://") && endpoint.base.starts_with("https://") {
        return Err(refused(&format!("its token server {realm} has no TLS")));
    }
    let scope = parameters.get("scope").cloned().unwrap_or_else(|| format!("repository:{repository}:pull"));
    let service = parameters.get("service").map(String::as_str).unwrap_or_default();
    let query = [("service", service), ("scope", scope.as_str())];
    let request = match &login {
        Login::Anonymous => client.get(realm).query(&query),
        Login::Password { user, password } => {
            client.get(realm).query(&query).basic_auth(user, Some(password))
        }
        Login::Refresh(token) => {
            let form = [("grant_type", "refresh_token"), ("refresh_token", token), ("client_id", "volt-vmm")];
            client.post(realm).form(&[&form[..], &query[..]].concat())
        }
    };
    let answer = request
        .send()
        .map_err(|source| RegistryError::Unreachable { url: realm.clone(), source: source.without_url() })?;
    let status = answer.status().as_u16();
    match status {
        200 => {}
        401 | 403 => {
            let (url, registry) = (realm.clone(), endpoint.registry.clone());
            return Err(RegistryError::Refused { url, status, registry });
        }
        _ => return Err(RegistryError::Status { url: realm.clone(), status, message: String::new() }),
    }
    let mut bytes = Vec::new();
    let without = |_| refused("its token server answered without a token");
    answer.take(LONGEST_ANSWER).read_to_end(&mut bytes).map_err(without)?;
    let answer: Answer =
        serde_json::from_slice(&bytes).map_err(|_| refused("its token server answered without a token"))?;
    let token = answer.token.or(answer.access_token).filter(|token| !token.is_empty());
    token.map(Authorization::Bearer).ok_or_else(|| refused("its token server answered without a token"))
}

impl Authorization {
    /// Adds the header to a request.
    pub(super) fn apply(
        &self,
        request: reqwest::blocking::RequestBuilder,
    ) -> reqwest::blocking::RequestBuilder {
        match self {
            Self::Basic { user, password } => request.basic_auth(user, Some(password)),
            Self::Bearer(token) => request.header(AUTHORIZATION, format!("Bearer {token}")),
        }
    }
}
