//! Directories of tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::users::User;

/// A directory that ends with its test.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("volt-agent-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a chain of directories, deeper than a small stack holds calls. Returns the lowest.
    pub fn deep(&self, name: &str) -> PathBuf {
        let deep = (0..900).fold(self.path(name), |above, _| above.join("d"));
        fs::create_dir_all(&deep).unwrap();
        deep
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A user whose home is a directory of the test.
pub fn user(uid: u32, home: &Path) -> User {
    let (name, shell) = (uid.to_string(), "/bin/sh".to_owned());
    User { name, uid, gid: uid, groups: vec![uid], home: home.to_owned(), shell }
}

/// Runs work in a thread with the stack of those that wait for disks.
pub fn in_small_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::Builder::new().stack_size(256 << 10).spawn(work).unwrap().join().unwrap()
}
