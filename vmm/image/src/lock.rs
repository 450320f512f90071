//! Locks of directories whose files several processes use.

use std::fs::{File, OpenOptions};
use std::path::Path;

use crate::error::{Error, Result};

/// A locked file. Its end frees the lock for processes too that have the descriptor from a fork.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// Locks a file, which is made if it is missing, for this and other users. Waits for one that is alone.
    ///
    /// # Errors
    /// The host cannot open or lock the file.
    pub fn shared(path: &Path) -> Result<Self> {
        Self::open(path, File::lock_shared)
    }

    /// Locks a file, which is made if it is missing, for this user alone. Waits for all others.
    ///
    /// # Errors
    /// As [`Self::shared`].
    pub fn alone(path: &Path) -> Result<Self> {
        Self::open(path, File::lock)
    }

    fn open(path: &Path, lock: impl FnOnce(&File) -> std::io::Result<()>) -> Result<Self> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path);
        let file = file.map_err(Error::host("open", path))?;
        lock(&file).map_err(Error::host("lock", path))?;
        Ok(Self(file))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The end of the last descriptor frees it otherwise.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_ends_although_a_duplicate_of_its_descriptor_lives() {
        let path = std::env::temp_dir().join(format!("volt-image-lock-{}", std::process::id()));
        let lock = Lock::shared(&path).unwrap();
        let _inherited = lock.0.try_clone().unwrap();
        let other = File::open(&path).unwrap();
        assert!(other.try_lock().is_err());
        drop(lock);
        other.try_lock().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
