//! This user's key for the marks of its state files: 32 random bytes in a file of mode 0600.
//!
//! ```text
//!   $VOLT_DATA_DIR/snapshot.key
//!   /var/lib/volt-vmm/snapshot.key              for root
//!   $XDG_DATA_HOME/volt-vmm/snapshot.key        for others, or $HOME/.local/share/volt-vmm/snapshot.key
//! ```

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hmac::{Hmac, Mac};
use rustix::fs::OFlags;
use sha2::Sha256;

use crate::partial;
use crate::paths;

const NAME: &str = "snapshot.key";
/// The variable that names the directory, in place of the user's.
const VARIABLE: &str = "VOLT_DATA_DIR";
const LEN: usize = 32;

/// A key that marks bytes and checks marks.
pub(crate) struct GrantKey(Hmac<Sha256>);

impl GrantKey {
    /// Reads the key. The error says in words why there is none.
    pub fn open() -> Result<Self, String> {
        let path = directory()?.join(NAME);
        read(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => format!("this user has no key {} yet", path.display()),
            _ => format!("the key {} cannot be used: {error}", path.display()),
        })
    }

    /// Reads the key, or makes one.
    pub fn open_or_make() -> Result<Self, NoKey> {
        let directory = directory().map_err(NoKey::Lacking)?;
        let path = directory.join(NAME);
        let key = match read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => make(&directory).and_then(|()| read(&path)),
            key => key,
        };
        key.map_err(|source| NoKey::of(path, source))
    }

    /// Computes the mark of `bytes`.
    pub fn mark(self, bytes: &[u8]) -> [u8; LEN] {
        self.0.chain_update(bytes).finalize().into_bytes().into()
    }

    /// Checks the mark of `bytes` in constant time.
    pub fn has_marked(self, bytes: &[u8], mark: &[u8]) -> bool {
        self.0.chain_update(bytes).verify_slice(mark).is_ok()
    }
}

/// The SHA-256 of bytes, as hexadecimal digits.
#[cfg(any(test, feature = "internal"))]
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    use sha2::Digest;
    hex(&Sha256::digest(bytes))
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Makes the key if there is none. Returns the path of its file, if there can be one.
#[cfg(any(test, feature = "internal"))]
pub fn ensure() -> Option<PathBuf> {
    GrantKey::open_or_make().ok()?;
    Some(directory().ok()?.join(NAME))
}

/// Why there is no key to mark with.
#[derive(Debug)]
pub(crate) enum NoKey {
    /// This user cannot have one, for this reason.
    Lacking(String),
    /// The host failed. Another attempt may succeed.
    Failed { path: PathBuf, source: io::Error },
}

impl NoKey {
    fn of(path: PathBuf, source: io::Error) -> Self {
        const LACKS: [i32; 5] = [libc::EACCES, libc::EPERM, libc::EROFS, libc::ENOENT, libc::ENOTDIR];
        // An unsuitable file has no errno.
        if source.raw_os_error().is_none_or(|errno| LACKS.contains(&errno)) {
            return Self::Lacking(format!("the key {} cannot be used: {source}", path.display()));
        }
        Self::Failed { path, source }
    }
}

/// Returns the directory of this user's key. The error says in words why there is none.
///
/// # Errors
/// The environment names no directory.
pub fn directory() -> Result<PathBuf, String> {
    directory_of(rustix::process::geteuid().is_root(), |name| std::env::var_os(name))
}

/// Root has one place, whichever user's environment it has (`sudo -E`).
fn directory_of(is_root: bool, variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, String> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    match variable(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from) {
        Some(given) if given.is_absolute() => return Ok(given),
        Some(given) => return Err(format!("{VARIABLE} is {}; give an absolute path", given.display())),
        None => {}
    }
    if is_root {
        return Ok(PathBuf::from("/var/lib/volt-vmm"));
    }
    if let Some(data) = absolute("XDG_DATA_HOME") {
        return Ok(data.join("volt-vmm"));
    }
    let home = absolute("HOME").ok_or("there is no place for this user's key: HOME is not set")?;
    Ok(home.join(".local/share/volt-vmm"))
}

fn read(path: &Path) -> io::Result<GrantKey> {
    let file = paths::open(path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK, 0)?;
    let metadata = file.metadata()?;
    let own = metadata.uid() == rustix::process::geteuid().as_raw();
    if !metadata.is_file() || !own || metadata.mode() & 0o077 != 0 {
        return Err(io::Error::other(
            "it must be a file that belongs to this user and that no other user can read (mode 0600)",
        ));
    }
    let mut bytes = Vec::with_capacity(LEN + 1);
    file.take(LEN as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() != LEN {
        return Err(io::Error::other(format!("it has {} bytes, not {LEN}; remove it", bytes.len())));
    }
    Ok(GrantKey(Hmac::new_from_slice(&bytes).expect("HMAC takes a key of any length")))
}

/// Makes a key file atomically. If another process was first, its key stays.
fn make(directory: &Path) -> io::Result<()> {
    paths::make_dirs(directory, 0o700)?;
    partial::remove_abandoned_files(directory, NAME);
    let mut bytes = [0; LEN];
    rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
    let (temporary, mut file) = partial::create_file(directory, NAME, 0o600)?;
    let mut write = || {
        file.write_all(&bytes)?;
        file.sync_all()?;
        match paths::link(&temporary, &directory.join(NAME)) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => paths::open_to_read(directory)?.sync_all(),
        }
    };
    let written = write();
    let _ = paths::remove_file(&temporary);
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use std::fs;

    use super::*;
    use crate::testing::ScratchDir;

    #[test]
    fn directory_follows_from_user_and_environment() {
        let directory = |is_root, variables: &[(&str, &str)]| {
            let variable = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            };
            directory_of(is_root, variable).map(|path| path.display().to_string())
        };
        let (home, data, given) = (("HOME", "/h"), ("XDG_DATA_HOME", "/d"), (VARIABLE, "/v"));
        for (is_root, variables, expected) in [
            (false, &[home][..], "/h/.local/share/volt-vmm"),
            (false, &[home, data], "/d/volt-vmm"),
            (false, &[home, data, given], "/v"),
            (true, &[home, data], "/var/lib/volt-vmm"),
            (true, &[home, data, given], "/v"),
        ] {
            assert_eq!(directory(is_root, variables).as_deref(), Ok(expected), "{variables:?}");
        }
        assert!(directory(false, &[]).unwrap_err().contains("HOME is not set"));
        assert!(directory(true, &[(VARIABLE, "v")]).unwrap_err().contains("VOLT_DATA_DIR is v; give"));
    }

    #[test]
    fn key_is_made_once_and_readable_by_its_owner_alone() {
        let scratch = ScratchDir::new();
        let directory = scratch.join("keys");
        make(&directory).unwrap();
        let path = directory.join(NAME);
        let first = fs::read(&path).unwrap();
        make(&directory).unwrap();
        assert_eq!(fs::read(&path).unwrap(), first, "the first one stays");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "nothing is left beside it");
        let mark = read(&path).unwrap().mark(b"state");
        assert!(read(&path).unwrap().has_marked(b"state", &mark));
        assert!(!read(&path).unwrap().has_marked(b"State", &mark));
        assert!(!read(&path).unwrap().has_marked(b"state", &mark[1..]));
    }

    #[test]
    fn failing_host_is_no_reason_to_leave_out_the_mark() {
        let of = |errno| NoKey::of("key".into(), io::Error::from_raw_os_error(errno));
        for errno in [libc::EIO, libc::ENOSPC, libc::EMFILE, libc::ENOMEM, libc::EINTR] {
            assert!(matches!(of(errno), NoKey::Failed { .. }), "{errno}");
        }
        for errno in [libc::EACCES, libc::EROFS] {
            assert!(matches!(of(errno), NoKey::Lacking(_)), "{errno}");
        }
        let unsuitable = NoKey::of("key".into(), io::Error::other("it has 31 bytes"));
        assert!(matches!(unsuitable, NoKey::Lacking(why) if why.contains("31 bytes")));
    }

    #[test]
    fn key_that_others_can_read_or_of_another_length_is_not_used() {
        let scratch = ScratchDir::new();
        let directory = scratch.join("keys");
        make(&directory).unwrap();
        let path = directory.join(NAME);
        let set_mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        set_mode(0o640);
        assert!(read(&path).err().unwrap().to_string().contains("mode 0600"));
        set_mode(0o600);
        for bytes in [&[7; 31][..], &[7; 33], &[]] {
            fs::write(&path, bytes).unwrap();
            assert!(read(&path).err().unwrap().to_string().contains("bytes, not 32"));
        }
        fs::rename(&path, directory.join("other")).unwrap();
        std::os::unix::fs::symlink("other", &path).unwrap();
        assert!(read(&path).is_err(), "a symbolic link is not followed");
    }
}
