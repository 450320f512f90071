//! Files for targets, and damage to them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use arbitrary::Arbitrary;

/// A directory that is removed with the program.
#[derive(Debug)]
pub struct Dir(PathBuf);

impl Dir {
    /// Makes a directory.
    ///
    /// # Panics
    /// The host refuses.
    #[must_use]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("volt-fuzz-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a directory for temporary files");
        Self(path)
    }

    /// Path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Path of a file in the directory.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }
}

impl Default for Dir {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Makes a file in memory.
///
/// # Panics
/// The host refuses.
#[must_use]
pub fn in_memory(bytes: &[u8]) -> File {
    let file = rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC);
    let file = File::from(file.expect("a file in memory"));
    file.write_all_at(bytes, 0).expect("a file in memory");
    file
}

/// Damage to a file.
#[derive(Debug, Arbitrary)]
pub enum Damage {
    /// Flips bits of a byte.
    Flip(u32, u8),
    /// Flips bits near the end, where indices and trailers lie.
    FlipFromEnd(u16, u8),
    /// Writes a word.
    Word(u32, u64),
    /// Cuts the file off.
    Cut(u32),
    /// Adds bytes.
    Grow(u8),
}

impl Damage {
    /// Damages `bytes`.
    pub fn apply(&self, bytes: &mut Vec<u8>) {
        let len = bytes.len().max(1);
        match *self {
            Self::Flip(at, by) => {
                bytes.get_mut(at as usize % len).into_iter().for_each(|byte| *byte ^= by);
            }
            Self::FlipFromEnd(at, by) => {
                bytes.get_mut(len - 1 - usize::from(at) % len).into_iter().for_each(|byte| *byte ^= by);
            }
            Self::Word(at, word) => {
                let at = at as usize % len / 8 * 8;
                bytes.iter_mut().skip(at).zip(word.to_le_bytes()).for_each(|(byte, new)| *byte = new);
            }
            Self::Cut(at) => bytes.truncate(at as usize % len),
            Self::Grow(more) => bytes.resize(bytes.len() + usize::from(more), more),
        }
    }
}
