//! Decides whether a path lies in a directory, as the kernel resolves it and not by its spelling.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::config::{CheckedFile, SocketPath};
use crate::paths;

/// Rule for links on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkPolicy {
    /// Follows symbolic links that stay in the directory.
    Inside,
    /// Follows no link, and refuses a file with another name, which may be another user's.
    None,
}

/// Opens the file at `path` if it lies in `directory`. Returns it with its real path.
pub(crate) fn file(directory: &Path, path: &Path, links: LinkPolicy) -> Option<CheckedFile> {
    let found = open(directory, path, links).ok()?;
    if links == LinkPolicy::None {
        let stat = rustix::fs::fstat(&found).ok()?;
        let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
        (is_file && stat.st_nlink == 1).then_some(())?;
    }
    Some(CheckedFile::new(real_path(&found)?, found))
}

/// Opens the directory at `path` if it is `directory` or lies in it. Returns its real path with it.
pub(crate) fn dir(directory: &Path, path: &Path, links: LinkPolicy) -> Option<(PathBuf, OwnedFd)> {
    let found = open(directory, path, links).ok()?;
    let stat = rustix::fs::fstat(&found).ok()?;
    rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir().then_some(())?;
    Some((real_path(&found)?, found))
}

/// Whether `path` lies in `directory` and does not exist. False reveals nothing about paths elsewhere.
pub(crate) fn lacks(directory: &Path, path: &Path) -> bool {
    open(directory, path, LinkPolicy::Inside).is_err_and(|why| why.kind() == io::ErrorKind::NotFound)
}

/// The real path for a socket to be made at `path`, if that lies in `directory`.
pub(crate) fn socket(directory: &Path, path: &Path, links: LinkPolicy) -> Option<SocketPath> {
    let name = path.file_name()?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (real, held) = dir(directory, parent, links)?;
    Some(SocketPath::checked(real.join(name), held))
}

/// Opens a path beneath `directory`. Fails with `XDEV` if the path lies elsewhere or leaves `directory` on
/// the way.
fn open(directory: &Path, path: &Path, links: LinkPolicy) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH;
    let outside = || io::Error::from(Errno::XDEV);
    let root = paths::open(directory, flags | OFlags::DIRECTORY, 0).map_err(|_| outside())?;
    let path = paths::absolute(path).map_err(|_| outside())?;
    // The caller's path to the directory itself may have links.
    let spelled = paths::absolute(directory).map_err(|_| outside())?;
    let within = path.strip_prefix(&spelled).ok().map(Path::to_owned);
    let real = || path.strip_prefix(real_path(&root)?).ok().map(Path::to_owned);
    let within = within.or_else(real).ok_or_else(outside)?;
    let within = if within.as_os_str().is_empty() { PathBuf::from(".") } else { within };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let (flags, resolve) = match links {
        LinkPolicy::Inside => (flags, resolve),
        LinkPolicy::None => (flags | OFlags::NOFOLLOW, resolve | ResolveFlags::NO_SYMLINKS),
    };
    paths::open_beneath(root.as_fd(), &within, flags, resolve)
}

fn real_path(of: impl AsFd) -> Option<PathBuf> {
    paths::real_path(of.as_fd()).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;
    use crate::config::FileRef;
    use crate::devices::virtio::listener::Listener;
    use crate::sockets::connect_to_file;
    use crate::testing::ScratchDir;

    #[test]
    fn path_that_only_looks_inside_is_refused() {
        let place = ScratchDir::new();
        let inside = place.join("inside");
        fs::create_dir_all(inside.join("deep")).unwrap();
        for name in ["secret", "inside/own", "inside/deep/own"] {
            fs::write(place.join(name), name).unwrap();
        }
        symlink("../secret", inside.join("out")).unwrap();
        symlink("own", inside.join("in")).unwrap();
        symlink("/", inside.join("root")).unwrap();
        fs::hard_link(place.join("secret"), inside.join("linked")).unwrap();
        let file = |directory: &Path, path: &Path, links| {
            file(directory, path, links).map(|found| found.path().to_owned())
        };
        let find = |name: &str, links| file(&inside, &inside.join(name), links);
        for links in [LinkPolicy::Inside, LinkPolicy::None] {
            assert_eq!(find("own", links), Some(inside.join("own")));
            assert_eq!(find("deep/../deep/own", links), Some(inside.join("deep/own")));
            for name in ["out", "../secret", "root/etc/passwd", "deep/../../secret", "nothing"] {
                assert_eq!(find(name, links), None, "{name}");
            }
            assert_eq!(file(&inside, Path::new("/etc/passwd"), links), None);
            assert_eq!(socket(&inside, &inside.join("new"), links), Some(inside.join("new").into()));
            assert_eq!(socket(&inside, &place.join("new"), links), None);
            assert_eq!(dir(&inside, &inside, links).map(|(path, _)| path), Some(inside.clone()));
            assert!(dir(&inside, &place, links).is_none());
        }
        for (path, is_lacking) in [
            ("deep/nothing", true),
            ("nothing/own", true),
            ("own", false),
            ("../nothing", false),
            ("../secret", false),
            ("root/nothing", false),
            ("root/etc", false),
        ] {
            assert_eq!(lacks(&inside, &inside.join(path)), is_lacking, "{path}");
        }
        assert!(!lacks(&inside, Path::new("/nothing")));
        assert_eq!(find("in", LinkPolicy::Inside), Some(inside.join("own")));
        assert_eq!(find("in", LinkPolicy::None), None);
        assert_eq!(find("linked", LinkPolicy::None), None, "it is another file's name");
        symlink("inside", place.join("alias")).unwrap();
        let alias = place.join("alias");
        assert_eq!(file(&alias, &alias.join("own"), LinkPolicy::Inside), Some(inside.join("own")));
        assert_eq!(file(&alias, &inside.join("own"), LinkPolicy::Inside), Some(inside.join("own")));
    }

    #[test]
    fn socket_is_made_reached_and_removed_in_the_directory_that_was_checked() {
        let place = ScratchDir::new();
        let (inside, moved, other) = (place.join("inside"), place.join("moved"), place.join("other"));
        fs::create_dir_all(&inside).unwrap();
        fs::create_dir_all(&other).unwrap();
        let found = socket(&inside, &inside.join("vsock"), LinkPolicy::None).unwrap();
        assert_eq!(found.as_path(), inside.join("vsock"));
        // Another process replaces the directory between the check and the use.
        fs::rename(&inside, &moved).unwrap();
        symlink(&other, &inside).unwrap();
        let names = |directory: &Path| fs::read_dir(directory).unwrap().count();
        let listener = Listener::open("listen at", &found).unwrap();
        assert!(moved.join("vsock").exists());
        UnixStream::connect(moved.join("vsock")).unwrap();
        let daemon = UnixListener::bind(other.join("vsock_1")).unwrap();
        daemon.set_nonblocking(true).unwrap();
        let path = listener.path().with_suffix("_1");
        connect_to_file(path.directory(), path.as_path()).unwrap_err();
        assert_eq!(daemon.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        drop(listener);
        assert_eq!((names(&moved), names(&other)), (0, 1));
    }

    #[test]
    fn file_that_is_replaced_after_it_was_found_is_not_opened() {
        let place = ScratchDir::new();
        let (inside, secret) = (place.join("inside"), place.join("secret"));
        fs::create_dir_all(&inside).unwrap();
        fs::write(inside.join("disk"), "own").unwrap();
        fs::write(&secret, "secret").unwrap();
        let found = FileRef::Checked(file(&inside, &inside.join("disk"), LinkPolicy::None).unwrap());
        fs::remove_file(inside.join("disk")).unwrap();
        symlink(&secret, inside.join("disk")).unwrap();
        assert_eq!(std::io::read_to_string(found.open("open disk").unwrap()).unwrap(), "own");
        let mut writable = found.open_writable("open disk", false).unwrap();
        std::io::Write::write_all(&mut writable, b"new").unwrap();
        assert_eq!(fs::read(&secret).unwrap(), b"secret");
    }
}
