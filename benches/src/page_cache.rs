//! The host's page cache of files.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::path::Path;
use std::ptr;

use rustix::fs::{Advice, fadvise};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::{OrSay, Result};

const PAGE: usize = 4 << 10;

/// Bytes of a file that are in the page cache.
///
/// # Errors
/// The file cannot be mapped. The kernel tells only the file's owner.
pub fn resident(path: &Path) -> Result<u64> {
    let act = format!("look at the page cache of {}", path.display());
    let file = File::open(path).or_say(&act)?;
    let length = file.metadata().or_say(&act)?.len() as usize;
    if length == 0 {
        return Ok(0);
    }
    let mut pages = vec![0u8; length.div_ceil(PAGE)];
    // SAFETY: a new mapping, at a place that the kernel chooses. No memory of this program is touched.
    let start = unsafe { mmap(ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, &file, 0) };
    let start = start.or_say(&act)?;
    // SAFETY: the range is the mapping, and the array has a byte for each of its pages.
    let looked = match unsafe { libc::mincore(start, length, pages.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    // SAFETY: the mapping is this function's own, and nothing refers to it any more.
    unsafe { munmap(start, length) }.or_say(&act)?;
    looked.or_say(&act)?;
    Ok(pages.iter().map(|page| u64::from(page & 1) * PAGE as u64).sum())
}

/// Takes a file out of the page cache. Pages that are mapped or being written stay.
///
/// # Errors
/// The file cannot be written out.
pub fn forget(path: &Path) -> Result<()> {
    let act = format!("take {} out of the page cache", path.display());
    let file = File::open(path).or_say(&act)?;
    file.sync_all().or_say(&act)?;
    fadvise(&file, 0, None, Advice::DontNeed).or_say(&act)
}

/// Bytes of a file.
///
/// # Errors
/// There is none.
pub fn length(path: &Path) -> Result<u64> {
    Ok(fs::metadata(path).or_say(&format!("look at {}", path.display()))?.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn written_file_is_resident() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path("file");
        fs::write(&path, vec![1; 5 * PAGE]).unwrap();
        assert_eq!(resident(&path).unwrap(), 5 * PAGE as u64);
        assert_eq!(length(&path).unwrap(), 5 * PAGE as u64);
    }
}
