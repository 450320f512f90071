//! The root of the run directories: its place, and the check that it is this user's alone.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::process::{Uid, geteuid};

use crate::failure::Failure;

/// The variable that names the root, in place of the user's.
const VARIABLE: &str = "VOLT_RUN_DIR";
/// The file whose lock a process holds while it claims or frees a name.
const LOCK: &str = ".lock";

/// The directory of all run directories of this user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunRoot(PathBuf);

impl RunRoot {
    /// Opens the root, and makes it if it is missing.
    ///
    /// # Errors
    /// It cannot be made, or other users could reach into it.
    pub(crate) fn open() -> Result<Self, Failure> {
        Self::at(place()?)
    }

    /// Returns the root if there is one.
    ///
    /// # Errors
    /// Other users could reach into it.
    pub(crate) fn existing() -> Result<Option<Self>, Failure> {
        let path = place()?;
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            _ => check(&path).map(|()| Some(Self(path))),
        }
    }

    fn at(path: PathBuf) -> Result<Self, Failure> {
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(Failure::run_dir(&path, format!("cannot create it: {error}")));
            }
            _ => {}
        }
        check(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Keeps other processes from claiming and freeing names until the result is dropped.
    ///
    /// # Errors
    /// The host refuses.
    pub(super) fn lock(&self) -> Result<File, Failure> {
        let path = self.0.join(LOCK);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let options = options.custom_flags(libc::O_NOFOLLOW);
        let locked = options.open(&path).and_then(|file| file.lock().map(|()| file));
        locked.map_err(|error| Failure::run_dir(&self.0, format!("cannot lock {LOCK}: {error}")))
    }
}

fn place() -> Result<PathBuf, Failure> {
    let own = |path: &Path| fs::metadata(path).is_ok_and(|found| found.uid() == geteuid().as_raw());
    place_of(geteuid(), |name| env::var_os(name).filter(|value| !value.is_empty()), own)
}

/// Returns the root of a user. Root has one place, whichever user's environment it has (`sudo -E`).
/// `$XDG_RUNTIME_DIR` of others counts if it is `own`: `su` passes on that of another user.
fn place_of(
    user: Uid,
    variable: impl Fn(&str) -> Option<OsString>,
    own: impl Fn(&Path) -> bool,
) -> Result<PathBuf, Failure> {
    if let Some(given) = variable(VARIABLE).map(PathBuf::from) {
        let problem = format!("{VARIABLE} names it; give an absolute path");
        return if given.is_absolute() { Ok(given) } else { Err(Failure::run_dir(&given, problem)) };
    }
    if user.is_root() {
        return Ok(PathBuf::from("/run/volt-vmm"));
    }
    let runtime = variable("XDG_RUNTIME_DIR").map(PathBuf::from);
    Ok(match runtime.filter(|path| path.is_absolute() && own(path)) {
        Some(runtime) => runtime.join("volt-vmm"),
        None => PathBuf::from(format!("/tmp/volt-vmm-{}", user.as_raw())),
    })
}

/// Checks that no other user can put files into the directory, or has put it there.
fn check(path: &Path) -> Result<(), Failure> {
    let refused = |problem: String| Err(Failure::run_dir(path, problem));
    // The metadata of a link itself: a link may lead anywhere.
    let found = fs::symlink_metadata(path);
    let found = found.map_err(|error| Failure::run_dir(path, format!("cannot examine it: {error}")))?;
    let user = geteuid().as_raw();
    if !found.is_dir() {
        return refused("it is a link or a file, not a directory; remove it".to_owned());
    }
    if found.uid() != user {
        let owner = found.uid();
        return refused(format!("it belongs to user {owner}, and not to {user}; set {VARIABLE}"));
    }
    match found.mode() & 0o077 {
        0 => Ok(()),
        _ => refused(format!("mode {:o} lets other users in; make it 700", found.mode() & 0o777)),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::rest::testing::Dir;

    /// A root in a scratch directory.
    pub(in crate::run_dir) fn scratch() -> (Dir, RunRoot) {
        let dir = Dir::new();
        let root = RunRoot::at(dir.path("volt-vmm")).unwrap();
        (dir, root)
    }

    #[test]
    fn place_follows_from_user_and_environment() {
        let place = |user: u32, variables: &[(&str, &str)]| {
            let variable = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            };
            let own = |path: &Path| path.starts_with("/own");
            let place = place_of(Uid::from_raw(user), variable, own);
            place.map(|path| path.display().to_string()).map_err(|failure| failure.to_string())
        };
        let (own, other) = (("XDG_RUNTIME_DIR", "/own"), ("XDG_RUNTIME_DIR", "/other"));
        for (user, variables, expected) in [
            (1000, &[own][..], "/own/volt-vmm"),
            (1000, &[other], "/tmp/volt-vmm-1000"),
            (1000, &[("XDG_RUNTIME_DIR", "own")], "/tmp/volt-vmm-1000"),
            (1000, &[], "/tmp/volt-vmm-1000"),
            (1000, &[own, (VARIABLE, "/given")], "/given"),
            (0, &[own], "/run/volt-vmm"),
            (0, &[], "/run/volt-vmm"),
            (0, &[own, (VARIABLE, "/given")], "/given"),
        ] {
            assert_eq!(place(user, variables).as_deref(), Ok(expected), "{user} {variables:?}");
        }
        let error = place(0, &[(VARIABLE, "given")]).unwrap_err();
        assert_eq!(error, "run directory given: VOLT_RUN_DIR names it; give an absolute path");
    }

    #[test]
    fn root_is_private_and_opened_again() {
        let (dir, root) = scratch();
        assert_eq!(fs::metadata(root.path()).unwrap().mode() & 0o777, 0o700);
        assert_eq!(RunRoot::at(dir.path("volt-vmm")).unwrap(), root);
    }

    #[test]
    fn root_that_others_reach_is_refused() {
        let (dir, root) = scratch();
        fs::set_permissions(root.path(), PermissionsExt::from_mode(0o750)).unwrap();
        let error = RunRoot::at(root.path().to_owned()).unwrap_err().to_string();
        assert!(error.contains("mode 750") && error.contains("volt-vmm"), "{error}");
        fs::set_permissions(root.path(), PermissionsExt::from_mode(0o700)).unwrap();
        symlink(root.path(), dir.path("link")).unwrap();
        let error = RunRoot::at(dir.path("link")).unwrap_err().to_string();
        assert!(error.contains("it is a link or a file"), "{error}");
        fs::write(dir.path("file"), "").unwrap();
        assert!(RunRoot::at(dir.path("file")).unwrap_err().to_string().contains("not a directory"));
    }

    #[test]
    fn root_of_another_user_is_refused() {
        if !geteuid().is_root() {
            return;
        }
        let (_dir, root) = scratch();
        std::os::unix::fs::chown(root.path(), Some(4711), None).unwrap();
        let error = RunRoot::at(root.path().to_owned()).unwrap_err().to_string();
        assert!(error.contains("belongs to user 4711"), "{error}");
    }

    #[test]
    fn root_that_cannot_be_made_is_named() {
        let dir = Dir::new();
        let error = RunRoot::at(dir.path("no/volt-vmm")).unwrap_err().to_string();
        assert!(error.contains("no/volt-vmm: cannot create it: No such file"), "{error}");
    }
}
