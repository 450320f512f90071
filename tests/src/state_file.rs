//! The checksum of `state.json`, computed without volt-vmm's code.

use crc::{CRC_64_ECMA_182, Crc, Table};
use serde_json::Value;

/// CRC-64/ECMA-182.
pub static CRC: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_ECMA_182);

/// The start of the file, before the digits of the checksum.
pub const HEAD: &str = "{\"crc64\":\"";
/// Bytes before the part under the checksum: head, 16 digits, a quote and a comma.
pub const HEAD_LEN: usize = HEAD.len() + 16 + 2;

/// Returns a state file with a right checksum.
///
/// # Panics
/// `state` is no object.
#[must_use]
pub fn sealed(mut state: Value) -> Vec<u8> {
    state.as_object_mut().expect("a state file holds an object").remove("crc64");
    sealed_text(&state.to_string()[1..])
}

/// Returns a state file with a right checksum over `body`, the text after the checksum and its comma.
#[must_use]
pub fn sealed_text(body: &str) -> Vec<u8> {
    format!("{HEAD}{:016x}\",{body}", CRC.checksum(body.as_bytes())).into_bytes()
}
