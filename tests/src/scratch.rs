//! Scratch directories of tests. A directory is removed with its last user.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{FlockOperation, flock};

/// A scratch directory. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Scratch(Arc<Directory>);

#[derive(Debug)]
struct Directory {
    path: PathBuf,
    /// Locked as long as the directory is used. It lies beside the directory, since volt-vmm locks the
    /// directories of its sockets.
    _lock: File,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Scratch {
    /// Makes an empty directory. Its path is short enough for unix sockets.
    ///
    /// # Panics
    /// The temporary directory cannot be written.
    #[must_use]
    pub fn new() -> Self {
        Self::within(&std::env::temp_dir())
    }

    /// Makes a directory in another place than the temporary directory.
    pub(crate) fn within(place: &Path) -> Self {
        let name = format!("volt-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = place.join(name);
        let lock = loop {
            // Another process may remove the file before it is locked.
            let lock = File::create(lock_of(&path)).and_then(|lock| {
                flock(&lock, FlockOperation::LockExclusive)?;
                Ok(lock)
            });
            let lock = lock.unwrap_or_else(|error| panic!("cannot lock {}: {error}", path.display()));
            if lock_of(&path).exists() {
                break lock;
            }
        };
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("cannot create {}: {error}", path.display()));
        Self(Arc::new(Directory { path, _lock: lock }))
    }

    /// Makes a directory for a static, which is never dropped. Removes the directories that no process uses
    /// first. A lock tells which those are, because a process may be of another PID namespace.
    pub fn left_behind_by_statics() -> Self {
        for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
            let is_scratch = entry.file_name().to_str().is_some_and(|name| name.starts_with("volt-test-"));
            if is_scratch
                && entry.path().is_dir()
                && let Ok(lock) = File::open(lock_of(&entry.path()))
                && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
            {
                remove(&entry.path());
            }
        }
        Self::new()
    }

    /// Returns the path of `name` in the directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path.join(name)
    }

    /// Returns the directory's path.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.0.path
    }

    /// Returns a new path in the directory: `name-7`.
    #[must_use]
    pub fn fresh(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// Lists the directory, sorted.
    ///
    /// # Panics
    /// The directory cannot be read.
    #[must_use]
    pub fn list(&self) -> Vec<String> {
        list(self.directory())
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

/// Lists the names in a directory, sorted.
///
/// # Panics
/// The directory cannot be read.
#[must_use]
pub fn list(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("a directory entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

impl Drop for Directory {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn lock_of(directory: &Path) -> PathBuf {
    directory.with_extension("lock")
}

fn remove(directory: &Path) {
    let _ = fs::remove_dir_all(directory);
    let _ = fs::remove_file(lock_of(directory));
}
