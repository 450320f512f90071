//! Ways to entries, as open directories.
//!
//! The agent is root, and acts for a user. Between a look at a path and an act on it, programs of the guest
//! can replace a component by a link. Each component is therefore opened once, and acts take the descriptor.
//!
//! Links are followed as Linux follows them with `fs.protected_symlinks`: in a sticky directory that all may
//! write to, such as `/tmp`, only those of the call's user and of the directory's owner. A link that another
//! user plants there leads no call elsewhere.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid, chownat, fstat, mkdirat, openat, readlinkat,
};
use rustix::io::Errno;

use crate::users::User;

/// Most links on one way, as in the kernel.
const LINKS: u32 = 40;

const STICKY_FOR_ALL: u32 = 0o1002;

/// An open directory, and a name in it.
#[derive(Debug)]
pub struct Place {
    /// The directory.
    pub parent: OwnedFd,
    /// The name, which may be free.
    pub name: OsString,
}

/// Treats directories on the way that do not exist.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Fails.
    Fail,
    /// Makes them. They belong to the user.
    Make,
}

/// Finds the place of an entry, which may be a link itself.
pub fn place(user: &User, path: &Path, missing: Missing) -> io::Result<Place> {
    let mut walk = Walk::new(user, path, missing)?;
    let name = loop {
        match walk.rest.pop() {
            None => return Err(ErrorKind::IsADirectory.into()),
            Some(name) if walk.rest.is_empty() => break name,
            Some(name) => walk.enter(&name)?,
        }
    };
    Ok(Place { parent: walk.directory, name })
}

/// Finds the place of an entry, or of what a link to it leads to.
pub fn place_of_target(user: &User, path: &Path, missing: Missing) -> io::Result<Place> {
    let mut walk = Walk::new(user, path, missing)?;
    while let Some(name) = walk.rest.pop() {
        let is_link = walk.rest.is_empty() && name != ".." && walk.follow(&name)?;
        match is_link {
            true => {}
            false if walk.rest.is_empty() && name != ".." => {
                return Ok(Place { parent: walk.directory, name });
            }
            false => walk.enter(&name)?,
        }
    }
    Err(ErrorKind::IsADirectory.into())
}

/// Makes a directory and those above it. The new ones belong to the user.
pub fn make_directories(user: &User, path: &Path) -> io::Result<()> {
    let mut walk = Walk::new(user, path, Missing::Make)?;
    while let Some(name) = walk.rest.pop() {
        walk.enter(&name)?;
    }
    Ok(())
}

struct Walk<'a> {
    user: &'a User,
    missing: Missing,
    directory: OwnedFd,
    /// Components to come, the next one last.
    rest: Vec<OsString>,
    links: u32,
}

impl<'a> Walk<'a> {
    fn new(user: &'a User, path: &Path, missing: Missing) -> io::Result<Self> {
        let mut walk = Self { user, missing, directory: root()?, rest: Vec::new(), links: 0 };
        walk.push(path);
        Ok(walk)
    }

    /// Puts components before those that are still to come.
    fn push(&mut self, path: &Path) {
        let components = path.components().rev().filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        });
        self.rest.extend(components);
    }

    /// Enters a directory, or begins to follow a link.
    fn enter(&mut self, name: &OsStr) -> io::Result<()> {
        let (entry, stat) = match self.open(name) {
            Err(Errno::NOENT) if self.missing == Missing::Make => self.make(name)?,
            opened => opened?,
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                self.directory = entry;
                Ok(())
            }
            FileType::Symlink => self.go_on(name, &entry, &stat),
            _ => Err(ErrorKind::NotADirectory.into()),
        }
    }

    /// Begins to follow an entry if it is a link.
    fn follow(&mut self, name: &OsStr) -> io::Result<bool> {
        match self.open(name) {
            Ok((entry, stat)) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => {
                self.go_on(name, &entry, &stat).map(|()| true)
            }
            Ok(_) | Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn open(&self, name: &OsStr) -> rustix::io::Result<(OwnedFd, Stat)> {
        let entry =
            openat(&self.directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let stat = fstat(&entry)?;
        Ok((entry, stat))
    }

    fn make(&self, name: &OsStr) -> rustix::io::Result<(OwnedFd, Stat)> {
        match mkdirat(&self.directory, name, Mode::from_raw_mode(0o777)) {
            Ok(()) => {
                let made = self.open(name)?;
                // Another process may have replaced it by a link.
                if FileType::from_raw_mode(made.1.st_mode) == FileType::Directory {
                    let (user, group) = (Uid::from_raw(self.user.uid), Gid::from_raw(self.user.gid));
                    chownat(&made.0, "", Some(user), Some(group), AtFlags::EMPTY_PATH)?;
                }
                Ok(made)
            }
            // Another call made it in this moment.
            Err(Errno::EXIST) => self.open(name),
            Err(error) => Err(error),
        }
    }

    fn go_on(&mut self, name: &OsStr, link: &OwnedFd, stat: &Stat) -> io::Result<()> {
        let above = fstat(&self.directory)?;
        let is_shared = above.st_mode & STICKY_FOR_ALL == STICKY_FOR_ALL;
        if is_shared && stat.st_uid != self.user.uid && stat.st_uid != above.st_uid {
            let name = name.to_string_lossy();
            let why = format!("{name} is a link of another user in a directory that all may write to");
            return Err(io::Error::new(ErrorKind::PermissionDenied, why));
        }
        self.links += 1;
        if self.links > LINKS {
            return Err(Errno::LOOP.into());
        }
        let target = OsString::from_vec(readlinkat(link, "", Vec::new())?.into_bytes());
        if target.as_bytes().starts_with(b"/") {
            self.directory = root()?;
        }
        self.push(Path::new(&target));
        Ok(())
    }
}

fn root() -> rustix::io::Result<OwnedFd> {
    openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};

    use super::*;
    use crate::scratch::{Scratch, user};

    fn target(user: &User, path: &Path) -> io::Result<(u64, OsString)> {
        place_of_target(user, path, Missing::Fail)
            .map(|place| (fstat(&place.parent).unwrap().st_ino, place.name))
    }

    #[test]
    fn links_lead_where_the_kernel_would_go() {
        let scratch = Scratch::new();
        let me = user(0, &scratch.path(""));
        fs::create_dir_all(scratch.path("a/b")).unwrap();
        fs::create_dir(scratch.path("c")).unwrap();
        symlink("../../c/./file", scratch.path("a/b/relative")).unwrap();
        symlink(scratch.path("a/b"), scratch.path("c/absolute")).unwrap();
        symlink("absolute/../b/relative", scratch.path("c/both")).unwrap();
        symlink("loop", scratch.path("loop")).unwrap();
        let wanted = (fs::metadata(scratch.path("c")).unwrap().ino(), OsString::from("file"));
        for path in ["c/file", "a/b/relative", "c/absolute/relative", "c/both"] {
            assert_eq!(target(&me, &scratch.path(path)).unwrap(), wanted, "{path}");
        }
        let place = place(&me, &scratch.path("c/absolute/relative"), Missing::Fail).unwrap();
        assert_eq!(place.name, "relative");
        assert_eq!(target(&me, &scratch.path("loop")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        assert_eq!(target(&me, &scratch.path("none/file")).unwrap_err().kind(), ErrorKind::NotFound);
        fs::write(scratch.path("file"), "").unwrap();
        assert_eq!(target(&me, &scratch.path("file/x")).unwrap_err().kind(), ErrorKind::NotADirectory);
    }

    #[test]
    fn link_that_another_user_planted_in_a_shared_directory_is_refused() {
        let scratch = Scratch::new();
        if !rustix::process::geteuid().is_root() {
            return;
        }
        fs::create_dir(scratch.path("tmp")).unwrap();
        fs::create_dir(scratch.path("secret")).unwrap();
        symlink(scratch.path("secret"), scratch.path("tmp/link")).unwrap();
        let (victim, attacker) = (user(1000, Path::new("/")), user(1001, Path::new("/")));
        lchown(scratch.path("tmp/link"), Some(1001), Some(1001)).unwrap();
        for (mode, owner, user, is_followed) in [
            (0o1777, 0, &victim, false),
            (0o1777, 0, &attacker, true),
            (0o1777, 1001, &victim, true),
            (0o0777, 0, &victim, true),
            (0o1755, 0, &victim, true),
        ] {
            fs::set_permissions(scratch.path("tmp"), PermissionsExt::from_mode(mode)).unwrap();
            lchown(scratch.path("tmp"), Some(owner), None).unwrap();
            for path in ["tmp/link/file", "tmp/link"] {
                let found = target(user, &scratch.path(path)).map_err(|error| error.kind());
                assert_eq!(found.is_ok(), is_followed, "{path} {mode:o} {owner} {}", user.uid);
                assert!(is_followed || found == Err(ErrorKind::PermissionDenied));
            }
        }
    }

    #[test]
    fn new_directories_belong_to_the_user_and_old_ones_stay() {
        let scratch = Scratch::new();
        let uid =
            if rustix::process::geteuid().is_root() { 1234 } else { rustix::process::geteuid().as_raw() };
        fs::create_dir(scratch.path("old")).unwrap();
        let owner = |name| fs::metadata(scratch.path(name)).unwrap().uid();
        let before = owner("old");
        for _ in 0..2 {
            make_directories(&user(uid, Path::new("/")), &scratch.path("old/new/newer")).unwrap();
        }
        assert_eq!((owner("old"), owner("old/new"), owner("old/new/newer")), (before, uid, uid));
        fs::write(scratch.path("file"), "").unwrap();
        let error = make_directories(&user(uid, Path::new("/")), &scratch.path("file")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotADirectory);
    }
}
