//! The checksum of `state.json`, computed apart from volt-vmm's own code.

use crc::{CRC_64_ECMA_182, Crc, Table};
use serde_json::Value;

/// CRC-64/ECMA-182.
pub static CRC: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_ECMA_182);

/// How the file starts, before the digits of the checksum.
pub const HEAD: &str = "{\"crc64\":\"";
/// Bytes before the part that the checksum covers: head, 16 digits, a quote and a comma.
pub const HEAD_LEN: usize = HEAD.len() + 16 + 2;

/// A state file with a checksum that is right for what it says.
///
/// # Panics
/// `state` is no object.
#[must_use]
pub fn sealed(mut state: Value) -> Vec<u8> {
    state.as_object_mut().expect("a state file holds an object").remove("crc64");
    sealed_text(&state.to_string()[1..])
}

/// The same for a text: what follows the checksum and its comma.
#[must_use]
pub fn sealed_text(body: &str) -> Vec<u8> {
    format!("{HEAD}{:016x}\",{body}", CRC.checksum(body.as_bytes())).into_bytes()
}
