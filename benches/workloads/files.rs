//! Walks over the files of a tree.

use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use volt_benches::{OrSay, Result};
use xxhash_rust::xxh3::xxh3_64;

/// A count and a sum that do not depend on an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub count: u64,
    pub sum: u64,
}

impl Found {
    /// Adds one more.
    pub fn add(&mut self, sum: u64) {
        *self += Self { count: 1, sum };
    }
}

impl std::ops::AddAssign for Found {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

/// Visits all entries below a directory.
///
/// # Errors
/// A directory cannot be listed, or as `visit`.
pub fn walk(directory: &Path, visit: &mut impl FnMut(&Path, &Metadata) -> Result<()>) -> Result<()> {
    let failed = || format!("list {}", directory.display());
    for entry in fs::read_dir(directory).or_say(&failed())? {
        let path = entry.or_say(&failed())?.path();
        let metadata = fs::symlink_metadata(&path).or_say("look at a file")?;
        visit(&path, &metadata)?;
        if metadata.is_dir() {
            walk(&path, visit)?;
        }
    }
    Ok(())
}

/// Reads a file to its end in parts of the buffer's size. Returns a sum of its length and of a byte of each
/// part.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path, buffer: &mut [u8]) -> Result<u64> {
    let mut file = File::open(path).or_say(&format!("open {}", path.display()))?;
    let mut sum = 0u64;
    loop {
        match file.read(buffer).or_say("read a file")? {
            0 => return Ok(sum),
            read => sum = sum.wrapping_add(read as u64 + (u64::from(buffer[read - 1]) << 32)),
        }
    }
}

/// Sums up the content and the names of all files below a directory.
///
/// # Errors
/// One cannot be read.
pub fn content(directory: &Path) -> Result<Found> {
    let (mut found, mut buffer) = (Found::default(), vec![0; 64 << 10]);
    walk(directory, &mut |path, metadata| {
        let name = path.strip_prefix(directory).unwrap_or(path);
        let sum = if metadata.is_file() { read(path, &mut buffer)? } else { 0 };
        found.add(sum.wrapping_add(xxh3_64(name.as_os_str().as_encoded_bytes())));
        Ok(())
    })?;
    Ok(found)
}

/// Sums up what the entries below these directories of a root are.
///
/// # Errors
/// One cannot be looked at.
pub fn entries(root: &Path, tops: &[PathBuf]) -> Result<Found> {
    let mut found = Found::default();
    for top in tops {
        walk(&root.join(top.strip_prefix("/").unwrap_or(top)), &mut |path, metadata| {
            let size = if metadata.is_file() { metadata.size() } else { 0 };
            let name = path.file_name().map_or(0, |name| name.len()) as u64;
            found.add(size + name + (u64::from(metadata.mode()) << 32));
            Ok(())
        })?;
    }
    Ok(found)
}
