//! Envelopes: a byte of flags and a length of four bytes before each message of a stream.

use std::io::Read;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::read::MultiGzDecoder;

use super::{Code, RpcError};

/// Longest message, compressed or not.
pub const LONGEST: usize = 32 << 20;

const HEADER: usize = 5;
const COMPRESSED: u8 = 1;
const END: u8 = 2;

/// Puts a message into an envelope.
pub fn wrap(message: &[u8]) -> Bytes {
    sealed(0, message)
}

/// The last envelope of a stream.
pub fn end(error: Option<&RpcError>) -> Bytes {
    #[derive(serde::Serialize)]
    struct End<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a RpcError>,
    }
    sealed(END, &serde_json::to_vec(&End { error }).unwrap_or_default())
}

/// The last envelope of a stream without an error, with metadata of one name.
pub fn end_with(name: &str, value: &str) -> Bytes {
    let end = serde_json::json!({ "metadata": { name: [value] } });
    sealed(END, end.to_string().as_bytes())
}

fn sealed(flags: u8, content: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEADER + content.len());
    bytes.put_u8(flags);
    bytes.put_u32(content.len() as u32);
    bytes.put_slice(content);
    bytes.freeze()
}

/// Splits received bytes into messages.
#[derive(Debug)]
pub struct Opener {
    received: BytesMut,
    gzip: bool,
}

impl Opener {
    /// Messages may be compressed if the call announces gzip.
    pub fn new(gzip: bool) -> Self {
        Self { received: BytesMut::new(), gzip }
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
    }

    /// Takes the next message, if all of it is here.
    pub fn next(&mut self) -> Result<Option<Bytes>, RpcError> {
        let Some(&[flags, a, b, c, d]) = self.received.first_chunk::<HEADER>() else { return Ok(None) };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length > LONGEST {
            return Err(too_long());
        }
        if flags & !COMPRESSED != 0 || (flags & COMPRESSED != 0 && !self.gzip) {
            let why = format!("an envelope has flags {flags}, which this call does not announce");
            return Err(RpcError::new(Code::InvalidArgument, why));
        }
        if self.received.len() < HEADER + length {
            return Ok(None);
        }
        self.received.advance(HEADER);
        let content = self.received.split_to(length).freeze();
        if flags & COMPRESSED == 0 { Ok(Some(content)) } else { unpack(&content).map(Some) }
    }

    /// Fails if the stream ended inside of an envelope.
    pub fn finish(&self) -> Result<(), RpcError> {
        if self.received.is_empty() {
            return Ok(());
        }
        Err(RpcError::new(Code::InvalidArgument, "the stream ends inside of an envelope"))
    }
}

/// Unpacks a message that gzip compressed.
pub fn unpack(packed: &[u8]) -> Result<Bytes, RpcError> {
    let mut message = Vec::new();
    if packed.is_empty() {
        // An empty message needs no compression, whatever the flags say.
        return Ok(Bytes::new());
    }
    let mut unpacked = MultiGzDecoder::new(packed).take(LONGEST as u64 + 1);
    unpacked
        .read_to_end(&mut message)
        .map_err(|error| RpcError::new(Code::InvalidArgument, format!("cannot unpack a message: {error}")))?;
    if message.len() > LONGEST { Err(too_long()) } else { Ok(message.into()) }
}

/// The error of a message over [`LONGEST`].
pub fn too_long() -> RpcError {
    RpcError::new(Code::ResourceExhausted, format!("a message has more than {LONGEST} bytes"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn message_in_single_bytes_is_put_together() {
        let mut opener = Opener::new(false);
        let wrapped = [wrap(b"first"), wrap(b"")].concat();
        let mut messages = Vec::new();
        for byte in wrapped {
            opener.push(&[byte]);
            messages.extend(opener.next().unwrap());
        }
        assert_eq!(messages, [&b"first"[..], b""]);
        opener.finish().unwrap();
    }

    #[test]
    fn compressed_message_needs_an_announcement() {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(b"message").unwrap();
        let envelope = sealed(COMPRESSED, &packer.finish().unwrap());
        let opened = |gzip| {
            let mut opener = Opener::new(gzip);
            opener.push(&envelope);
            opener.next()
        };
        assert_eq!(opened(true).unwrap().unwrap(), "message");
        assert_eq!(opened(false).unwrap_err().code, Code::InvalidArgument);
    }

    #[test]
    fn compressed_message_may_be_empty_or_have_several_parts() {
        let packed = |text: &[u8]| {
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            packer.write_all(text).unwrap();
            packer.finish().unwrap()
        };
        assert_eq!(unpack(b"").unwrap(), "");
        assert_eq!(unpack(&[packed(b"mes"), packed(b"sage")].concat()).unwrap(), "message");
        assert!(unpack(&packed(b"message")[..9]).is_err());
    }

    #[test]
    fn bad_envelopes_are_refused() {
        for bytes in [&[0, 255, 255, 255, 255][..], &[2, 0, 0, 0, 0], &[1, 0, 0, 0, 1, 0]] {
            let mut opener = Opener::new(true);
            opener.push(bytes);
            assert!(opener.next().is_err(), "{bytes:?}");
        }
        let mut opener = Opener::new(true);
        opener.push(&wrap(b"cut")[..6]);
        assert_eq!(opener.next().unwrap(), None);
        assert!(opener.finish().is_err());
    }

    #[test]
    fn end_carries_the_error() {
        let error = RpcError::new(Code::NotFound, "gone");
        let text = br#"{"error":{"code":"not_found","message":"gone"}}"#;
        assert_eq!(end(Some(&error)), sealed(END, text));
        assert_eq!(end(None), sealed(END, b"{}"));
        assert_eq!(end_with("a", "b"), sealed(END, br#"{"metadata":{"a":["b"]}}"#));
    }
}
