//! Sparse files: the maps of GNU tar, in its own form and in PAX's versions 0.0, 0.1 and 1.0.

use std::io::Read;

use tar::{GnuExtSparseHeader, Header};

use super::pax::{Records, decimal};
use super::{Malformed, TarError};

/// Most parts of a file.
const MOST: usize = 1 << 20;
/// Bytes of a record of a stream.
const RECORD: u64 = 512;
const WRONG: Malformed = Malformed("the map of a sparse file is wrong");

/// The size of a sparse file, and its parts.
pub(super) type Map = (u64, Vec<(u64, u64)>);

/// Reads the map of an entry, if it is sparse. `stored` is the size of its bytes in the stream, from which
/// those of the map are subtracted.
pub(super) fn map(
    header: &Header,
    records: &Records,
    stored: &mut u64,
    input: &mut impl Read,
) -> Result<Option<Map>, TarError> {
    let found = if let Some(gnu) = header.as_gnu().filter(|_| header.entry_type().is_gnu_sparse()) {
        let size = gnu.real_size().map_err(|_| WRONG)?;
        let mut parts = Vec::new();
        let mut take = |offset: std::io::Result<u64>, len: std::io::Result<u64>| {
            parts.push((offset.map_err(|_| WRONG)?, len.map_err(|_| WRONG)?));
            if parts.len() <= MOST { Ok(()) } else { Err(WRONG) }
        };
        let used = gnu.sparse.iter().filter(|part| !part.is_empty());
        used.clone().try_for_each(|part| take(part.offset(), part.length()))?;
        let mut goes_on = gnu.is_extended();
        while goes_on {
            let mut more = GnuExtSparseHeader::new();
            input.read_exact(more.as_mut_bytes())?;
            let used = more.sparse().iter().filter(|part| !part.is_empty());
            used.clone().try_for_each(|part| take(part.offset(), part.length()))?;
            goes_on = more.is_extended();
        }
        (size, parts)
    } else if records.get("GNU.sparse.major") == Some(b"1") {
        let size = records.number("GNU.sparse.realsize")?.ok_or(WRONG)?;
        (size, leading(stored, input)?)
    } else if let Some(size) = records.number("GNU.sparse.size")? {
        (size, of_records(records)?)
    } else {
        return Ok(None);
    };
    check(&found, *stored)?;
    Ok(Some(found))
}

/// The map of version 1.0, before the content: decimal lines, the count first, up to a whole record.
fn leading(stored: &mut u64, input: &mut impl Read) -> Result<Vec<(u64, u64)>, TarError> {
    let mut taken = 0usize;
    let mut number = || {
        let mut digits = Vec::new();
        loop {
            let mut byte = [0];
            input.read_exact(&mut byte)?;
            taken += 1;
            match byte[0] {
                b'\n' => break,
                digit if digits.len() < 20 => digits.push(digit),
                _ => return Err(TarError::from(WRONG)),
            }
        }
        Ok(decimal::<u64>(&digits).ok_or(WRONG)?)
    };
    let count = usize::try_from(number()?).ok().filter(|count| *count <= MOST).ok_or(WRONG)?;
    let parts = (0..count).map(|_| Ok((number()?, number()?))).collect::<Result<Vec<_>, TarError>>()?;
    let whole = taken.next_multiple_of(RECORD as usize);
    let mut rest = [0; RECORD as usize];
    input.read_exact(&mut rest[..whole - taken])?;
    *stored = stored.checked_sub(whole as u64).ok_or(WRONG)?;
    Ok(parts)
}

/// The map of versions 0.0, a record for each number, and 0.1, one record.
fn of_records(records: &Records) -> Result<Vec<(u64, u64)>, Malformed> {
    let numbers: Option<Vec<u64>> = match records.get("GNU.sparse.map") {
        Some(map) => map.split(|byte| *byte == b',').map(decimal).collect(),
        None => {
            let offsets = records.all("GNU.sparse.offset");
            offsets.zip(records.all("GNU.sparse.numbytes")).flat_map(<[_; 2]>::from).map(decimal).collect()
        }
    };
    let numbers = numbers.filter(|numbers| numbers.len() <= 2 * MOST).ok_or(WRONG)?;
    let (pairs, []) = numbers.as_chunks() else { return Err(WRONG) };
    Ok(pairs.iter().map(|[offset, len]| (*offset, *len)).collect())
}

/// Checks that the parts ascend within the file, and that the stream has as many bytes.
fn check((size, parts): &Map, stored: u64) -> Result<(), Malformed> {
    let mut end = 0;
    let mut sum = 0u64;
    for (offset, len) in parts {
        let next = offset.checked_add(*len).filter(|_| *offset >= end).ok_or(WRONG)?;
        (end, sum) = (next, sum + len);
    }
    if end <= *size && sum == stored { Ok(()) } else { Err(WRONG) }
}
