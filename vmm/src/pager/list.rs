//! Lists of ranges of memory, between a VM and its pager: in a file beside a message, for they may be longer than one.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::MemfdFlags;

use crate::memory::runs;

/// A list, in memory.
///
/// # Errors
/// The host gives none.
pub fn list(ranges: &[Range<u64>]) -> io::Result<File> {
    let file = File::from(rustix::fs::memfd_create("volt-pages", MemfdFlags::CLOEXEC)?);
    let bytes: Vec<u8> = runs::encode(ranges).collect();
    file.write_all_at(&bytes, 0)?;
    Ok(file)
}

/// The ranges that a list has, of so many bytes of memory. It is the other side's, and may change at any time: what has been read of it is
/// looked at, and nothing else.
///
/// # Errors
/// What is wrong with it.
pub fn listed(file: &File, memory: u64) -> Result<Vec<Range<u64>>, String> {
    let failed = |error: io::Error| format!("the list of pages cannot be read: {error}");
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() || metadata.len() > runs::longest(memory) {
        return Err(format!("the list of pages, {} bytes long, cannot be one", metadata.len()));
    }
    let mut bytes = vec![0; metadata.len() as usize];
    file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    let ranges = runs::decode(&bytes, memory);
    ranges.ok_or_else(|| "the list names pages that there are not, or names one twice".to_owned())
}
