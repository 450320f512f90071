//! One call: its request, and its response.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use hyper::{Request, StatusCode};

use super::codec::{Form, Message};
use super::envelope::{self, LONGEST, Opener};
use super::{Code, RpcError};
use crate::reply::{Reply, empty, with_body};

/// Seconds between messages that keep an idle stream's connection, unless the call asks for others.
const KEEPALIVE: u64 = 90;

/// Methods whose requests or responses are streams.
const STREAMS: [&str; 4] = ["/Start", "/Connect", "/StreamInput", "/WatchDir"];

/// A call that has arrived.
pub struct Call {
    /// Encoding and framing.
    pub form: Form,
    /// Its headers.
    pub headers: HeaderMap,
    body: Incoming,
    opener: Opener,
}

impl Call {
    /// Takes a request.
    ///
    /// # Errors
    /// The response to a request that is no call.
    pub fn new(request: Request<Incoming>) -> Result<Self, Box<Reply>> {
        let (parts, body) = request.into_parts();
        let Some(form) = form(parts.uri.path(), &parts.headers) else {
            return Err(Box::new(empty(StatusCode::UNSUPPORTED_MEDIA_TYPE)));
        };
        let name = if form.streaming { "connect-content-encoding" } else { CONTENT_ENCODING.as_str() };
        let gzip = match header(&parts.headers, name) {
            None | Some("identity") => false,
            Some("gzip") => true,
            Some(other) => {
                let message = format!("unknown encoding {other}; gzip and identity are known");
                return Err(Box::new(failed(form, &RpcError::new(Code::Unimplemented, message))));
            }
        };
        Ok(Self { form, headers: parts.headers, body, opener: Opener::new(gzip) })
    }

    /// The time that the client gives this call.
    pub fn timeout(&self) -> Option<Duration> {
        let given = header(&self.headers, "connect-timeout-ms")?.parse().ok()?;
        Some(Duration::from_millis(given))
    }

    /// The time without messages after which a stream sends one.
    pub fn keepalive(&self) -> Duration {
        let asked = header(&self.headers, "keepalive-ping-interval").and_then(|text| text.parse().ok());
        Duration::from_secs(asked.filter(|&seconds| seconds > 0).unwrap_or(KEEPALIVE))
    }

    /// Reads the only message of the request.
    pub async fn message<M: Message>(&mut self) -> Result<M, RpcError> {
        if self.form.streaming {
            let wrong = |why| RpcError::new(Code::InvalidArgument, why);
            let message = self.next().await?.ok_or_else(|| wrong("the stream has no message"))?;
            // A connection whose request is not read to its end serves no further request.
            return match self.next::<M>().await? {
                None => Ok(message),
                Some(_) => Err(wrong("the stream has a second message")),
            };
        }
        let mut content = Vec::new();
        while let Some(bytes) = self.piece().await? {
            if content.len() + bytes.len() > LONGEST {
                return Err(envelope::too_long());
            }
            content.extend_from_slice(&bytes);
        }
        if header(&self.headers, CONTENT_ENCODING.as_str()) == Some("gzip") {
            content = envelope::unpack(&content)?.into();
        }
        self.form.codec.decode(&content)
    }

    /// Reads the next message of a stream.
    pub async fn next<M: Message>(&mut self) -> Result<Option<M>, RpcError> {
        loop {
            if let Some(bytes) = self.opener.next()? {
                return self.form.codec.decode(&bytes).map(Some);
            }
            match self.piece().await? {
                Some(bytes) => self.opener.push(&bytes),
                None => return self.opener.finish().map(|()| None),
            }
        }
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, RpcError> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| {
                RpcError::new(Code::InvalidArgument, format!("cannot read the request: {error}"))
            })?;
            if let Ok(bytes) = frame.into_data() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }
}

/// The form of a request. `None` means that the method does not take its content type.
fn form(path: &str, headers: &HeaderMap) -> Option<Form> {
    let form = header(headers, CONTENT_TYPE.as_str()).and_then(Form::of)?;
    let streams = STREAMS.iter().any(|name| path.ends_with(name));
    (form.streaming || !streams).then_some(form)
}

/// The response of a call with one response.
pub fn answer<M: Message>(form: Form, result: Result<M, RpcError>) -> Reply {
    match result {
        Err(error) => failed(form, &error),
        Ok(message) if form.streaming => {
            let bytes = [envelope::wrap(&form.codec.encode(&message)), envelope::end(None)].concat();
            with_body(StatusCode::OK, form.content_type(), bytes.into())
        }
        Ok(message) => with_body(StatusCode::OK, form.content_type(), form.codec.encode(&message)),
    }
}

/// The response of a call that fails. A stream's status is always 200.
pub fn failed(form: Form, error: &RpcError) -> Reply {
    if form.streaming {
        return with_body(StatusCode::OK, form.content_type(), envelope::end(Some(error)));
    }
    crate::reply::json(error.code.status(), error)
}

/// A header as text.
pub fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The user's name of HTTP's basic authentication. Other schemes name none.
pub fn basic_name(headers: &HeaderMap) -> Result<Option<String>, RpcError> {
    let Some(given) = headers.get(AUTHORIZATION) else { return Ok(None) };
    let wrong = || RpcError::new(Code::Unauthenticated, "the header Authorization is malformed");
    let given = given.to_str().map_err(|_| wrong())?.trim();
    let (scheme, encoded) = given.split_once(' ').unwrap_or((given, ""));
    if !scheme.eq_ignore_ascii_case("basic") {
        return Ok(None);
    }
    let decoded = STANDARD.decode(encoded.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let decoded = decoded.ok_or_else(wrong)?;
    let (name, _) = decoded.split_once(':').ok_or_else(wrong)?;
    Ok(Some(name.to_owned()).filter(|name| !name.is_empty()))
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn stream_needs_a_content_type_of_streams() {
        for (method, content_type, is_taken) in [
            ("process.Process/Start", "application/json", false),
            ("process.Process/Connect", "application/proto", false),
            ("process.Process/StreamInput", "application/json; charset=utf-8", false),
            ("filesystem.Filesystem/WatchDir", "application/proto", false),
            ("filesystem.Filesystem/WatchDir", "application/connect+proto", true),
            ("process.Process/Start", "application/connect+json", true),
            ("filesystem.Filesystem/Stat", "application/json", true),
            ("filesystem.Filesystem/Stat", "text/plain", false),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))]);
            assert_eq!(form(&format!("/{method}"), &headers).is_some(), is_taken, "{method} {content_type}");
        }
    }
}
