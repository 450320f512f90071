//! Messages of Connect's streams: a byte of flags, the length (big-endian, 4 bytes), and JSON
//! (connectrpc.com/docs/protocol).

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes before the JSON.
const HEAD: usize = 5;
/// Longest message. The agent's longest has 64 KiB of output, in base64.
const LONGEST: usize = 1 << 20;
/// Flag: the last message, with an error or without.
const LAST: u8 = 2;

/// One message as bytes.
pub(crate) fn pack(message: &impl Serialize) -> Vec<u8> {
    let json = serde_json::to_vec(message).expect("these messages have no keys but text");
    let mut bytes = vec![0];
    bytes.extend_from_slice(&(json.len() as u32).to_be_bytes());
    bytes.extend_from_slice(&json);
    bytes
}

/// A message, or the end of a stream.
#[derive(Debug)]
pub(crate) enum Unpacked<T, E> {
    Message(T),
    Last(E),
}

/// Takes the first message of `bytes`. `None`: it is not whole yet.
///
/// # Errors
/// The message is too long, or not of its type.
pub(crate) fn unpack<T: DeserializeOwned, E: DeserializeOwned>(
    bytes: &mut Vec<u8>,
) -> Result<Option<Unpacked<T, E>>, String> {
    let Some((&[flags, a, b, c, d], rest)) = bytes.split_first_chunk::<HEAD>() else { return Ok(None) };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length > LONGEST {
        return Err(format!("a message of {length} bytes, where {LONGEST} are the most"));
    }
    let Some(json) = rest.get(..length) else { return Ok(None) };
    let unpacked = if flags & LAST == 0 {
        serde_json::from_slice(json).map(Unpacked::Message)
    } else {
        serde_json::from_slice(json).map(Unpacked::Last)
    };
    let unpacked = unpacked.map_err(|error| format!("a message that is none: {error}"))?;
    bytes.drain(..HEAD + length);
    Ok(Some(unpacked))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn messages_are_taken_one_after_another_as_they_come() {
        let mut all = pack(&json!({"a": 1}));
        all.extend(pack(&json!({"a": 2})));
        let last = all.len();
        all.extend(pack(&json!({})));
        all[last] = LAST;
        let mut found = Vec::new();
        let mut bytes = Vec::new();
        for byte in all {
            bytes.push(byte);
            match unpack::<Value, Value>(&mut bytes).unwrap() {
                Some(Unpacked::Message(message)) => found.push(message["a"].as_u64()),
                Some(Unpacked::Last(_)) => found.push(None),
                None => {}
            }
        }
        assert_eq!((found, bytes), (vec![Some(1), Some(2), None], Vec::new()));
    }

    #[test]
    fn long_and_foreign_messages_are_refused() {
        let error = unpack::<Value, Value>(&mut vec![0, 255, 0, 0, 0]).unwrap_err();
        assert!(error.starts_with("a message of 4278190080 bytes"), "{error}");
        let error = unpack::<Value, Value>(&mut b"\0\0\0\0\x01{".to_vec()).unwrap_err();
        assert!(error.starts_with("a message that is none"), "{error}");
    }
}
