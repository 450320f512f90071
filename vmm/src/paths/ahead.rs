//! Files that a thread will ask the opener for soon. They are asked for together, so that the thread does not
//! wait once for each.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::{asks, opener};

/// A file, or why there is none.
#[derive(Debug)]
struct Asked {
    path: PathBuf,
    flags: OFlags,
    opened: io::Result<OwnedFd>,
}

thread_local! {
    static ASKED: RefCell<Vec<Asked>> = const { RefCell::new(Vec::new()) };
}

/// The files that were asked for. Each serves the first call that opens it in this thread with the same path
/// and flags. Dropping this closes the others.
#[derive(Debug)]
#[must_use]
pub struct OpenedAhead {
    was_asked: bool,
}

impl OpenedAhead {
    /// Asks for files. Does nothing in a thread that opens files itself.
    pub fn new(files: impl IntoIterator<Item = (PathBuf, OFlags)>) -> Self {
        let was_asked = asks();
        if was_asked {
            let files: Vec<_> =
                files.into_iter().map(|(path, flags)| (path, flags | OFlags::CLOEXEC)).collect();
            let opened = opener::open_all(&files);
            let asked = files.into_iter().zip(opened);
            let asked = asked.map(|((path, flags), opened)| Asked { path, flags, opened });
            // After another error, the call that needs the file asks for it again.
            ASKED.set(asked.filter(|asked| has_answer(&asked.opened)).collect());
        }
        Self { was_asked }
    }

    /// Whether the calling thread is one that asks.
    pub fn was_asked(&self) -> bool {
        self.was_asked
    }
}

impl Drop for OpenedAhead {
    fn drop(&mut self) {
        drop(ASKED.take());
    }
}

fn has_answer(opened: &io::Result<OwnedFd>) -> bool {
    opened.as_ref().err().is_none_or(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Takes a file that was opened with these flags.
pub(super) fn take(path: &Path, flags: OFlags) -> Option<io::Result<OwnedFd>> {
    ASKED.with_borrow_mut(|asked| {
        let found = asked.iter().position(|asked| asked.flags == flags && asked.path == path)?;
        Some(asked.swap_remove(found).opened)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(path: &str, opened: io::Result<OwnedFd>) {
        let (path, flags) = (path.into(), OFlags::RDONLY);
        ASKED.with_borrow_mut(|asked| asked.push(Asked { path, flags, opened }));
    }

    #[test]
    fn file_serves_one_call_with_its_path_and_flags() {
        let ahead = OpenedAhead::new([("/dev/null".into(), OFlags::RDONLY)]);
        assert!(take(Path::new("/dev/null"), OFlags::RDONLY).is_none(), "this thread opens files itself");
        keep("/a", Err(io::ErrorKind::NotFound.into()));
        keep("/b", std::fs::File::open("/dev/null").map(OwnedFd::from));
        assert!(
            take(Path::new("/b"), OFlags::PATH).is_none() && take(Path::new("/c"), OFlags::RDONLY).is_none()
        );
        assert!(take(Path::new("/b"), OFlags::RDONLY).unwrap().is_ok());
        assert!(take(Path::new("/b"), OFlags::RDONLY).is_none());
        drop(ahead);
        assert!(take(Path::new("/a"), OFlags::RDONLY).is_none(), "the rest is closed");
    }

    #[test]
    fn only_a_file_and_its_absence_are_kept() {
        assert!(has_answer(&Err(io::ErrorKind::NotFound.into())));
        assert!(!has_answer(&Err(io::Error::from_raw_os_error(libc::EMFILE))));
    }
}
