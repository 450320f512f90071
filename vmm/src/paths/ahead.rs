//! Files that a thread will ask the opener for soon. They are asked for together, so that the thread does not
//! wait once for each.

use std::cell::RefCell;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::{asks, opener, own_descriptor};

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

/// The files that a thread asked for. Each serves the first call of the thread that opens it with the same
/// path and flags, and all looks at it before. Dropping this closes the others. A thread has one of these at
/// a time: a second one replaces the files of the first.
#[derive(Debug)]
#[must_use]
pub struct OpenedAhead(());

impl OpenedAhead {
    /// Asks for files. Does nothing in a thread that opens files itself.
    pub fn new(files: impl IntoIterator<Item = (PathBuf, OFlags)>) -> Self {
        if asks() {
            let files = found_by_path(files);
            let opened = opener::open_all(&files);
            let asked = files.into_iter().zip(opened);
            let asked = asked.map(|((path, flags), opened)| Asked { path, flags, opened });
            // After another error, the call that needs the file asks for it again.
            ASKED.set(asked.filter(|asked| has_answer(&asked.opened)).collect());
        }
        Self(())
    }
}

impl Drop for OpenedAhead {
    fn drop(&mut self) {
        drop(ASKED.take());
    }
}

/// The files that the opener finds by their paths: it has other descriptors than this process.
fn found_by_path(files: impl IntoIterator<Item = (PathBuf, OFlags)>) -> Vec<(PathBuf, OFlags)> {
    let files = files.into_iter().filter(|(path, _)| own_descriptor(path).is_none());
    files.map(|(path, flags)| (path, flags | OFlags::CLOEXEC)).collect()
}

fn has_answer(opened: &io::Result<OwnedFd>) -> bool {
    opened.as_ref().err().is_none_or(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Takes a file that was opened with these flags.
pub(super) fn take(path: &Path, flags: OFlags) -> Option<io::Result<OwnedFd>> {
    with_asked(|asked| {
        let found = asked.iter().position(|asked| asked.flags == flags && asked.path == path)?;
        Some(asked.swap_remove(found).opened)
    })
}

/// The metadata of a file that was opened without following a link.
pub(super) fn metadata_of_link(path: &Path) -> Option<io::Result<Metadata>> {
    with_asked(|asked| {
        let is_it = |asked: &&mut Asked| asked.flags.contains(OFlags::NOFOLLOW) && asked.path == path;
        match &asked.iter_mut().find(is_it)?.opened {
            Ok(file) => Some(file.try_clone().and_then(|file| File::from(file).metadata())),
            Err(error) => Some(Err(error.kind().into())),
        }
    })
}

/// Nothing, in a thread that is ending.
fn with_asked<T>(act: impl FnOnce(&mut Vec<Asked>) -> Option<T>) -> Option<T> {
    ASKED.try_with(|asked| act(&mut asked.borrow_mut())).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO_READ: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW);

    fn keep(path: &str, opened: io::Result<OwnedFd>) {
        ASKED.with_borrow_mut(|asked| asked.push(Asked { path: path.into(), flags: TO_READ, opened }));
    }

    #[test]
    fn file_serves_looks_and_one_call_with_its_path_and_flags() {
        let ahead = OpenedAhead::new([("/dev/null".into(), TO_READ)]);
        assert!(take(Path::new("/dev/null"), TO_READ).is_none(), "this thread opens files itself");
        keep("/a", Err(io::ErrorKind::NotFound.into()));
        keep("/b", File::open("/proc/self/exe").map(OwnedFd::from));
        let b = Path::new("/b");
        assert!(take(b, OFlags::PATH).is_none() && take(Path::new("/c"), TO_READ).is_none());
        assert!(metadata_of_link(b).unwrap().unwrap().len() > 0);
        let absent = metadata_of_link(Path::new("/a")).unwrap().unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
        assert!(take(b, TO_READ).unwrap().is_ok());
        assert!(take(b, TO_READ).is_none() && metadata_of_link(b).is_none());
        drop(ahead);
        assert!(take(Path::new("/a"), TO_READ).is_none(), "the rest is closed");
    }

    #[test]
    fn file_below_a_descriptor_of_this_process_is_not_asked_for() {
        let files =
            ["/proc/self/fd/7/state.json", "/s/state.json", "/dev/stdin"].map(|path| (path.into(), TO_READ));
        assert_eq!(found_by_path(files), [("/s/state.json".into(), TO_READ | OFlags::CLOEXEC)]);
    }

    #[test]
    fn only_a_file_and_its_absence_are_kept() {
        assert!(has_answer(&Err(io::ErrorKind::NotFound.into())));
        assert!(!has_answer(&Err(io::Error::from_raw_os_error(libc::EMFILE))));
    }
}
