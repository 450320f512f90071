//! Answers to a guest's requests.

use super::request::Refusal;

/// Status of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Ok,
    BadRequest,
    Unauthorized,
    NotFound,
    MethodNotAllowed,
    NotImplemented,
    ServiceUnavailable,
}

impl Status {
    fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::BadRequest => "400 Bad Request",
            Self::Unauthorized => "401 Unauthorized",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::NotImplemented => "501 Not Implemented",
            Self::ServiceUnavailable => "503 Service Unavailable",
        }
    }
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Response {
    pub status: Status,
    pub is_json: bool,
    /// One more header field.
    pub field: Option<(&'static str, String)>,
    pub body: String,
}

impl Response {
    /// An answer in plain text.
    pub fn text(status: Status, body: impl Into<String>) -> Self {
        Self { status, is_json: false, field: None, body: body.into() }
    }

    /// The answer to bytes that are no request.
    pub fn to_refusal(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Malformed => Self::text(Status::BadRequest, "the request is malformed"),
            Refusal::TooLong => Self::text(Status::BadRequest, "the request is too long"),
            Refusal::Encoded => {
                Self::text(Status::NotImplemented, "transfer codings are not supported; give Content-Length")
            }
        }
    }

    /// Writes the answer as bytes of HTTP/1.1.
    pub fn to_bytes(&self, keep_alive: bool) -> Vec<u8> {
        let Self { status, is_json, field, body } = self;
        let kind = if *is_json { "application/json" } else { "text/plain" };
        let connection = if keep_alive { "keep-alive" } else { "close" };
        let field = field.as_ref().map_or_else(String::new, |(name, value)| format!("{name}: {value}\r\n"));
        format!(
            "HTTP/1.1 {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: {connection}\r\n\
             {field}\r\n{body}",
            status.line(),
            body.len(),
        )
        .into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_has_its_fields_and_length() {
        let json = Response { is_json: true, ..Response::text(Status::Ok, "{\"é\":1}") };
        assert_eq!(
            String::from_utf8(json.to_bytes(true)).unwrap(),
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\
             Connection: keep-alive\r\n\r\n{\"é\":1}"
        );
        let field = Some(("Allow", "GET, PUT".to_owned()));
        let refused = Response { field, ..Response::text(Status::MethodNotAllowed, "no") };
        assert_eq!(
            String::from_utf8(refused.to_bytes(false)).unwrap(),
            "HTTP/1.1 405 Method Not Allowed\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\
             Connection: close\r\nAllow: GET, PUT\r\n\r\nno"
        );
    }
}
