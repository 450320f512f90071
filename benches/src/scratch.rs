//! A directory for one run.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{env, fs, process};

use crate::{OrSay, Result};

/// A directory that goes away with its owner.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new one, in the system's temporary directory.
    ///
    /// # Errors
    /// The file system refuses it.
    pub fn new() -> Result<Self> {
        Self::below(&env::temp_dir())
    }

    /// A new one, in memory.
    ///
    /// # Errors
    /// As [`Scratch::new`].
    pub fn in_memory() -> Result<Self> {
        Self::below(Path::new("/dev/shm"))
    }

    fn below(directory: &Path) -> Result<Self> {
        let path = directory.join(format!("volt-bench-{}", process::id()));
        fs::create_dir(&path).or_say(&format!("create {}", path.display()))?;
        Ok(Self(path))
    }

    /// A path in it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Puts a program in it.
    ///
    /// # Errors
    /// The file system refuses it.
    pub fn program(&self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        let path = self.path(name);
        write_program(&path, bytes).or_say(&format!("write {}", path.display()))?;
        Ok(path)
    }
}

fn write_program(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    fs::write(path, bytes)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
