//! Opens files of calls.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid, fchmod, fchown, fstat, ftruncate, openat, renameat,
    statat, unlinkat,
};
use rustix::io::Errno;

use crate::filesystem::walk::{Missing, Place, place_of_target};
use crate::users::User;

/// The mode of new files, before the umask.
const MODE: Mode = Mode::from_raw_mode(0o666);

/// Opens a file to read.
pub fn to_read(path: &Path) -> io::Result<File> {
    regular(openat(CWD, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()))
}

/// Opens a file to write, and empties it. A new one belongs to the user, as do new directories above it.
pub fn to_write(user: &User, path: &Path) -> io::Result<File> {
    let place = place_of_target(user, path, Missing::Make)?;
    match create(user, &place, &place.name) {
        Err(Errno::EXIST) => {}
        created => return Ok(File::from(created?)),
    }
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = regular(openat(&place.parent, &place.name, flags, Mode::empty()))?;
    ftruncate(&file, 0)?;
    Ok(file)
}

fn create(user: &User, place: &Place, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&place.parent, name, flags, MODE)?;
    fchown(&file, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))?;
    Ok(file)
}

/// Refuses all but regular files. The open waits for no peer of a FIFO, and for no device.
fn regular(opened: rustix::io::Result<OwnedFd>) -> io::Result<File> {
    let other = || io::Error::new(ErrorKind::InvalidInput, "it is no regular file");
    let file = match opened {
        // A FIFO without a reader, or a socket.
        Err(Errno::NXIO) => return Err(other()),
        opened => opened?,
    };
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(File::from(file)),
        FileType::Directory => Err(ErrorKind::IsADirectory.into()),
        _ => Err(other()),
    }
}

/// A file that takes the place of another one when it is whole.
pub struct Replacement {
    place: Place,
    name: String,
    /// The new content.
    pub file: File,
}

impl Replacement {
    /// Begins a file beside the one that it replaces, with that one's owner and mode.
    pub fn new(user: &User, path: &Path) -> io::Result<Self> {
        let place = place_of_target(user, path, Missing::Make)?;
        let replaced = match statat(&place.parent, &place.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => None,
            found => Some(found?),
        };
        match replaced.as_ref().map(|found| FileType::from_raw_mode(found.st_mode)) {
            None | Some(FileType::RegularFile) => {}
            Some(FileType::Directory) => return Err(ErrorKind::IsADirectory.into()),
            Some(_) => return Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file")),
        }
        let (name, file) = (0..)
            .find_map(|number| {
                let name = format!(".volt-{}-{number}", std::process::id());
                match create(user, &place, name.as_str()) {
                    Err(Errno::EXIST) => None,
                    created => Some(created.map(|file| (name, File::from(file)))),
                }
            })
            .unwrap_or(Err(Errno::EXIST))?;
        let replacement = Self { place, name, file };
        if let Some(found) = replaced {
            let (user, group) = (Uid::from_raw(found.st_uid), Gid::from_raw(found.st_gid));
            fchown(&replacement.file, Some(user), Some(group))?;
            fchmod(&replacement.file, Mode::from_raw_mode(found.st_mode & 0o777))?;
        }
        Ok(replacement)
    }

    /// True if the file that is replaced is this one.
    pub fn replaces(&self, file: impl AsFd) -> io::Result<bool> {
        match statat(&self.place.parent, &self.place.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(false),
            found => {
                let (found, file) = (found?, fstat(file)?);
                Ok((found.st_dev, found.st_ino) == (file.st_dev, file.st_ino))
            }
        }
    }

    /// Gives the file its name.
    pub fn finish(self) -> io::Result<()> {
        let Self { place, name, .. } = &self;
        Ok(renameat(&place.parent, name.as_str(), &place.parent, &place.name)?)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // It is gone if it has its name.
        let _ = unlinkat(&self.place.parent, self.name.as_str(), AtFlags::empty());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
    use std::os::unix::net::UnixListener;

    use rustix::fs::mkfifoat;

    use super::*;
    use crate::scratch::{Scratch, user};

    #[test]
    fn fifo_and_socket_are_refused_at_once() {
        let scratch = Scratch::new();
        let me = user(rustix::process::geteuid().as_raw(), &scratch.path(""));
        mkfifoat(CWD, scratch.path("fifo"), MODE).unwrap();
        let _listener = UnixListener::bind(scratch.path("socket")).unwrap();
        for (name, wanted) in [
            ("fifo", ErrorKind::InvalidInput),
            ("socket", ErrorKind::InvalidInput),
            ("", ErrorKind::IsADirectory),
        ] {
            let path = scratch.path(name);
            let errors = [
                to_read(&path).unwrap_err(),
                to_write(&me, &path).unwrap_err(),
                Replacement::new(&me, &path).err().unwrap(),
            ];
            // Linux refuses to open a directory to write before the agent sees what it is.
            assert!(errors.iter().all(|error| error.kind() == wanted), "{name}: {errors:?}");
        }
        // With a reader, the open of a FIFO succeeds.
        let _reader = openat(CWD, scratch.path("fifo"), OFlags::RDONLY | OFlags::NONBLOCK, MODE).unwrap();
        assert_eq!(to_write(&me, &scratch.path("fifo")).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn only_a_new_file_is_given_to_the_user() {
        let scratch = Scratch::new();
        if !rustix::process::geteuid().is_root() {
            return;
        }
        fs::write(scratch.path("old"), "longer").unwrap();
        symlink("old", scratch.path("link")).unwrap();
        symlink("new", scratch.path("dangling")).unwrap();
        for (name, real, owner) in [("link", "old", 0), ("dangling", "new", 1234)] {
            to_write(&user(1234, Path::new("/")), &scratch.path(name)).unwrap().write_all(b"text").unwrap();
            assert_eq!(fs::read(scratch.path(real)).unwrap(), b"text");
            assert_eq!(fs::metadata(scratch.path(real)).unwrap().uid(), owner);
        }
    }

    #[test]
    fn replacement_keeps_owner_and_mode_and_shows_no_part() {
        let scratch = Scratch::new();
        let me = user(rustix::process::geteuid().as_raw(), &scratch.path(""));
        let owner = if me.uid == 0 { 1234 } else { me.uid };
        fs::write(scratch.path("old"), "old").unwrap();
        chown(scratch.path("old"), Some(owner), None).unwrap();
        fs::set_permissions(scratch.path("old"), PermissionsExt::from_mode(0o640)).unwrap();
        let old = to_read(&scratch.path("old")).unwrap();
        for finish in [false, true] {
            let mut new = Replacement::new(&me, &scratch.path("old")).unwrap();
            assert!(new.replaces(&old).unwrap() && !new.replaces(&new.file).unwrap());
            new.file.write_all(b"new").unwrap();
            assert_eq!(fs::read(scratch.path("old")).unwrap(), b"old");
            if finish {
                new.finish().unwrap();
            }
        }
        let found = fs::metadata(scratch.path("old")).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o7777), (owner, 0o640));
        assert_eq!(fs::read(scratch.path("old")).unwrap(), b"new");
        assert_eq!(fs::read_dir(scratch.path("")).unwrap().count(), 1);
    }
}
