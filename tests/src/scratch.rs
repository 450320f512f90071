//! A directory of its own for each test, gone with the last that uses it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A scratch directory. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Scratch(Arc<Directory>);

#[derive(Debug)]
struct Directory(PathBuf);

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Scratch {
    /// A new, empty one. Its path is short: unix sockets go in it.
    ///
    /// # Panics
    /// The temporary directory cannot be written.
    #[must_use]
    pub fn new() -> Self {
        Self::within(&std::env::temp_dir())
    }

    /// One in another place than the temporary directory.
    pub(crate) fn within(place: &Path) -> Self {
        let name = format!("volt-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = place.join(name);
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("cannot create {}: {error}", path.display()));
        Self(Arc::new(Directory(path)))
    }

    /// One for a static, which is never dropped: it takes the place of what earlier test processes, dead by
    /// now, left.
    pub(crate) fn left_behind_by_statics() -> Self {
        for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let owner = name
                .to_str()
                .and_then(|name| name.strip_prefix("volt-test-")?.split('-').next()?.parse::<u32>().ok());
            if owner.is_some_and(|owner| !Path::new(&format!("/proc/{owner}")).exists()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        Self::new()
    }

    /// The path of `name` in it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.0.join(name)
    }

    /// The directory itself.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.0.0
    }

    /// A path in it that nothing has yet: `name-7`.
    #[must_use]
    pub fn fresh(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// What is in it, sorted: to see that nothing was left behind.
    ///
    /// # Panics
    /// It cannot be read.
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

/// The names in a directory, sorted.
///
/// # Panics
/// It cannot be read.
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
        let _ = fs::remove_dir_all(&self.0);
    }
}
