//! The service's answer to a request: a value of the metadata, a listing, or a token.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::request::Request;
use super::response::{Response, Status};
use crate::config::metadata::MetadataConfig;

/// The path at which tokens are issued.
const TOKEN_PATH: &str = "/latest/api/token";
/// Seconds for which a token can be valid.
const VALIDITY: std::ops::RangeInclusive<u32> = 1..=21_600;

/// Answers a request.
pub(super) fn answer(request: &Request<'_>, config: &MetadataConfig, now: Instant) -> Response {
    if request.path.is_empty() {
        return Response::text(Status::BadRequest, "the request has no path");
    }
    match request.method {
        "GET" => get(request, config, now),
        "PUT" => issue(request, config, now),
        _ => Response {
            field: Some(("Allow", "GET, PUT".to_owned())),
            ..Response::text(Status::MethodNotAllowed, "the method is not allowed; use GET or PUT")
        },
    }
}

fn get(request: &Request<'_>, config: &MetadataConfig, now: Instant) -> Response {
    if config.require_token {
        match request.token {
            None => {
                return Response::text(
                    Status::Unauthorized,
                    "the request has no token; give one in X-metadata-token or X-aws-ec2-metadata-token",
                );
            }
            Some(token) if !config.store.accepts_token(token, now) => {
                return Response::text(
                    Status::Unauthorized,
                    "the token is not valid; get another with PUT /latest/api/token",
                );
            }
            Some(_) => {}
        }
    }
    let path = normal(request.path);
    let is_json = request.accepts_json && !config.plain_text;
    let format = |value: &Value| if is_json { Some(value.to_string()) } else { plain(value) };
    match config.store.find(path.strip_suffix('/').unwrap_or(&path), format) {
        Some(Some(body)) => Response { is_json, ..Response::text(Status::Ok, body) },
        Some(None) => Response::text(
            Status::NotImplemented,
            "the value is no object or string; accept application/json to get it",
        ),
        None => Response::text(Status::NotFound, format!("there is no resource {}", request.path)),
    }
}

/// A string, or a listing of an object's members, those that are objects with a slash.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Object(members) => {
            let lines = members.iter().map(|(name, value)| match value {
                Value::Object(_) => format!("{name}/"),
                _ => name.clone(),
            });
            Some(lines.collect::<Vec<_>>().join("\n"))
        }
        _ => None,
    }
}

fn issue(request: &Request<'_>, config: &MetadataConfig, now: Instant) -> Response {
    if request.is_forwarded {
        return Response::text(Status::BadRequest, "a request with X-Forwarded-For gets no token");
    }
    if normal(request.path) != TOKEN_PATH {
        return Response::text(Status::NotFound, format!("nothing can be put at {}", request.path));
    }
    let Some((field, value)) = request.validity else {
        return Response::text(
            Status::BadRequest,
            "the request has no validity of the token; give seconds in X-metadata-token-ttl-seconds or \
             X-aws-ec2-metadata-token-ttl-seconds",
        );
    };
    let Some(seconds) = value.parse().ok().filter(|seconds| VALIDITY.contains(seconds)) else {
        let (least, most) = VALIDITY.into_inner();
        return Response::text(Status::BadRequest, format!("{field}: give {least} to {most} seconds"));
    };
    match config.store.issue_token(Duration::from_secs(seconds.into()), now) {
        Some(token) => {
            Response { field: Some((field, seconds.to_string())), ..Response::text(Status::Ok, token) }
        }
        None => Response::text(Status::ServiceUnavailable, "the host has no randomness for a token"),
    }
}

/// The path with single slashes.
fn normal(path: &str) -> String {
    let mut normal = String::with_capacity(path.len());
    for part in path.chars() {
        if part != '/' || !normal.ends_with('/') {
            normal.push(part);
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::request::{Parsed, parse};
    use super::*;

    fn config() -> MetadataConfig {
        let config = MetadataConfig::new(["eth0"]);
        let content = json!({
            "latest": {"meta-data": {"ami-id": "ami-1", "tags": {"a/b": "c"}}, "user-data": "hello"},
            "age": 43, "phones": ["+1", "+2"], "on": true, "nothing": null,
        });
        config.store.put(content).unwrap();
        config
    }

    fn ask_at(config: &MetadataConfig, request: &str, now: Instant) -> Response {
        let text = format!("{request}\r\n\r\n");
        let Parsed::Whole(request, _) = parse(text.as_bytes()) else { panic!("{text}") };
        answer(&request, config, now)
    }

    fn ask(config: &MetadataConfig, request: &str) -> Response {
        ask_at(config, request, Instant::now())
    }

    fn issued(config: &MetadataConfig) -> String {
        ask(config, "PUT /latest/api/token HTTP/1.1\r\nX-metadata-token-ttl-seconds: 60").body
    }

    #[test]
    fn plain_text_lists_objects_and_gives_strings() {
        let config = config();
        for (path, body) in [
            ("/", "age\nlatest/\nnothing\non\nphones"),
            ("/latest", "meta-data/\nuser-data"),
            ("//latest///meta-data//", "ami-id\ntags/"),
            ("/latest/meta-data/ami-id", "ami-1"),
            ("/latest/meta-data/tags/a~1b", "c"),
            ("/latest/user-data/", "hello"),
            ("/phones/1", "+2"),
            ("http://169.254.169.254/latest/user-data", "hello"),
        ] {
            let found = ask(&config, &format!("GET {path} HTTP/1.1"));
            assert_eq!(found, Response::text(Status::Ok, body), "{path}");
        }
        for path in ["/age", "/phones", "/on", "/nothing"] {
            assert_eq!(
                ask(&config, &format!("GET {path} HTTP/1.1")).status,
                Status::NotImplemented,
                "{path}"
            );
        }
        for path in ["/none", "/latest/none", "/phones/2", "/latest/user-data/more", "/~"] {
            assert_eq!(ask(&config, &format!("GET {path} HTTP/1.1")).status, Status::NotFound, "{path}");
        }
        assert_eq!(ask(&config, "GET * HTTP/1.1").status, Status::BadRequest);
    }

    #[test]
    fn json_is_given_where_accepted_unless_the_service_has_plain_text_alone() {
        let config = config();
        let get = |config: &MetadataConfig, path: &str| {
            ask(config, &format!("GET {path} HTTP/1.1\r\nAccept: application/json"))
        };
        for (path, body) in [
            ("/latest/meta-data/", r#"{"ami-id":"ami-1","tags":{"a/b":"c"}}"#),
            ("/latest/user-data", r#""hello""#),
            ("/age", "43"),
            ("/phones", r#"["+1","+2"]"#),
            ("/nothing", "null"),
        ] {
            let expected = Response { is_json: true, ..Response::text(Status::Ok, body) };
            assert_eq!(get(&config, path), expected, "{path}");
        }
        let config = config.plain_text();
        assert_eq!(get(&config, "/latest"), Response::text(Status::Ok, "meta-data/\nuser-data"));
        assert_eq!(get(&config, "/age").status, Status::NotImplemented);
    }

    #[test]
    fn empty_store_has_nothing() {
        let empty = MetadataConfig::new(["eth0"]);
        for request in
            ["GET / HTTP/1.1", "GET /latest HTTP/1.1", "GET / HTTP/1.1\r\nAccept: application/json"]
        {
            assert_eq!(ask(&empty, request).status, Status::NotFound, "{request}");
        }
    }

    #[test]
    fn required_token_opens_the_data_until_its_end() {
        let config = config().require_token();
        assert_eq!(ask(&config, "GET /age HTTP/1.1").status, Status::Unauthorized);
        let wrong = "GET /latest HTTP/1.1\r\nX-metadata-token: wrong";
        assert_eq!(ask(&config, wrong).status, Status::Unauthorized);
        let token = issued(&config);
        for field in ["X-metadata-token", "X-AWS-EC2-metadata-token"] {
            let get = format!("GET /latest/user-data HTTP/1.1\r\n{field}: {token}");
            assert_eq!(ask(&config, &get), Response::text(Status::Ok, "hello"));
            let later = Instant::now() + Duration::from_secs(61);
            assert_eq!(ask_at(&config, &get, later).status, Status::Unauthorized);
        }
    }

    #[test]
    fn without_the_requirement_any_token_does() {
        let config = config();
        for token in
            ["", "\r\nX-metadata-token: wrong", &format!("\r\nX-metadata-token: {}", issued(&config))]
        {
            let get = format!("GET /latest/user-data HTTP/1.1{token}");
            assert_eq!(ask(&config, &get), Response::text(Status::Ok, "hello"), "{token}");
        }
    }

    #[test]
    fn token_is_issued_within_its_limits() {
        let config = config();
        for (field, value) in
            [("X-metadata-token-ttl-seconds", "1"), ("X-aws-ec2-metadata-token-ttl-seconds", "21600")]
        {
            let found = ask(&config, &format!("PUT //latest/api//token HTTP/1.1\r\n{field}: {value}"));
            assert_eq!((found.status, found.field), (Status::Ok, Some((field, value.to_owned()))));
        }
        for value in ["0", "21601", "-1", "1.5", "", "x", "99999999999"] {
            let put = format!("PUT /latest/api/token HTTP/1.1\r\nX-metadata-token-ttl-seconds: {value}");
            let found = ask(&config, &put);
            assert_eq!(found.status, Status::BadRequest, "{value}");
            assert!(found.body.contains("1 to 21600"), "{}", found.body);
        }
        let ttl = "X-metadata-token-ttl-seconds: 60";
        for (put, status) in [
            ("PUT /latest/api/token HTTP/1.1".to_owned(), Status::BadRequest),
            (format!("PUT /latest/api/token HTTP/1.1\r\n{ttl}\r\nx-forwarded-for: a"), Status::BadRequest),
            (format!("PUT /latest/api HTTP/1.1\r\n{ttl}"), Status::NotFound),
            (format!("PUT /latest/api/token/ HTTP/1.1\r\n{ttl}"), Status::NotFound),
        ] {
            assert_eq!(ask(&config, &put).status, status, "{put}");
        }
    }

    #[test]
    fn other_methods_are_refused_with_the_allowed_ones() {
        for method in ["POST", "DELETE", "PATCH", "HEAD", "OPTIONS", "get", "X"] {
            let found = ask(&config(), &format!("{method} /latest HTTP/1.1"));
            assert_eq!(found.status, Status::MethodNotAllowed, "{method}");
            assert_eq!(found.field, Some(("Allow", "GET, PUT".to_owned())));
        }
    }
}
