//! The two encodings of messages.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Code, RpcError};

/// A message that both encodings carry.
pub trait Message: prost::Message + Default + Serialize + DeserializeOwned + 'static {}

impl<M: prost::Message + Default + Serialize + DeserializeOwned + 'static> Message for M {}

/// An encoding of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Protobuf.
    Proto,
    /// Its mapping to JSON.
    Json,
}

/// The form of a call, from its content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// The encoding.
    pub codec: Codec,
    /// Messages are in envelopes.
    pub streaming: bool,
}

impl Form {
    /// Reads a content type. Parameters such as the character set have no effect.
    pub fn of(content_type: &str) -> Option<Self> {
        let form = |codec, streaming| Some(Self { codec, streaming });
        match content_type.split(';').next()?.trim() {
            "application/proto" => form(Codec::Proto, false),
            "application/json" => form(Codec::Json, false),
            "application/connect+proto" => form(Codec::Proto, true),
            "application/connect+json" => form(Codec::Json, true),
            _ => None,
        }
    }

    /// The content type of the response.
    pub fn content_type(self) -> &'static str {
        match (self.codec, self.streaming) {
            (Codec::Proto, false) => "application/proto",
            (Codec::Json, false) => "application/json",
            (Codec::Proto, true) => "application/connect+proto",
            (Codec::Json, true) => "application/connect+json",
        }
    }
}

impl Codec {
    /// Reads a message.
    pub fn decode<M: Message>(self, bytes: &[u8]) -> Result<M, RpcError> {
        let wrong = |error: &dyn std::fmt::Display| {
            RpcError::new(Code::InvalidArgument, format!("cannot read the message: {error}"))
        };
        match self {
            Self::Proto => M::decode(bytes).map_err(|error| wrong(&error)),
            // An empty body is an empty message in both encodings.
            Self::Json if bytes.is_empty() => Ok(M::default()),
            Self::Json => serde_json::from_slice(bytes).map_err(|error| wrong(&error)),
        }
    }

    /// Writes a message.
    pub fn encode<M: Message>(self, message: &M) -> Bytes {
        match self {
            Self::Proto => message.encode_to_vec().into(),
            // Only maps with keys that are no strings and failing writers fail; messages have no such maps.
            Self::Json => serde_json::to_vec(message).unwrap_or_default().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::process::{ProcessSelector, SendSignalRequest};

    #[test]
    fn both_encodings_carry_the_same_message() {
        let selector = ProcessSelector { pid: Some(7), tag: None };
        let request = SendSignalRequest { process: Some(selector), signal: 9 };
        for codec in [Codec::Proto, Codec::Json] {
            let read: SendSignalRequest = codec.decode(&codec.encode(&request)).unwrap();
            assert_eq!(read, request);
        }
        let text = br#"{"process":{"pid":7},"signal":"SIGNAL_SIGKILL","later":1}"#;
        assert_eq!(Codec::Json.decode::<SendSignalRequest>(text).unwrap(), request);
        assert_eq!(Codec::Proto.encode(&request).as_ref(), [10, 2, 8, 7, 16, 9]);
    }

    #[test]
    fn malformed_message_is_an_invalid_argument() {
        for (codec, bytes) in [(Codec::Proto, &b"\xff"[..]), (Codec::Json, b"{"), (Codec::Json, b"[]x")] {
            assert_eq!(codec.decode::<SendSignalRequest>(bytes).unwrap_err().code, Code::InvalidArgument);
        }
    }
}
