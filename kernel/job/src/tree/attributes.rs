//! Owner, mode, time and extended attributes.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use rustix::fs::{
    Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags, fchmod, fchown, fgetxattr, flistxattr,
    flistxattr_query, fsetxattr, futimens,
};
use rustix::io::{Errno, Result};

use super::escaped::Escaped;
use super::header::{ATTRIBUTES, Header, Kind};

/// Longest list of names and longest value, as the kernel has it.
const LONGEST: usize = 64 << 10;

/// The owner of new entries. Any but [`Owner::Kept`] comes without set-id bits, and of extended attributes
/// only with those of `user.`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The reading process.
    Process,
    /// Numbers of a user and a group.
    Given {
        /// The user.
        user: u32,
        /// The group.
        group: u32,
    },
    /// The owner in the stream.
    Kept,
}

/// The header of an entry, without what only its kind has.
pub(super) fn header(kind: Kind, path: Vec<u8>, stat: &Stat) -> Header {
    Header {
        kind,
        path: Escaped(path),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: (stat.st_mtime, stat.st_mtime_nsec as u32),
        ..Header::default()
    }
}

/// Reads the extended attributes. `None` means too many for a header.
pub(super) fn attributes(file: BorrowedFd<'_>) -> Option<BTreeMap<Escaped, Escaped>> {
    let mut found = BTreeMap::new();
    // Nearly all files have none, and need no buffer. File systems without any fail.
    if flistxattr_query(file).is_ok_and(|length| length == 0) {
        return Some(found);
    }
    let mut names = vec![0; LONGEST];
    let Ok(length) = flistxattr(file, &mut names[..]) else { return Some(found) };
    let mut value = vec![0; LONGEST];
    let mut total = 0;
    for name in names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        // It may have disappeared, or be for the kernel alone.
        let Ok(length) = fgetxattr(file, name, &mut value[..]) else { continue };
        total += name.len() + length;
        if total > ATTRIBUTES {
            return None;
        }
        found.insert(Escaped(name.to_vec()), Escaped(value[..length].to_vec()));
    }
    Some(found)
}

/// The times that an entry gets: both are that of its last change.
pub(super) fn times((tv_sec, nanoseconds): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec, tv_nsec: nanoseconds.into() };
    Timestamps { last_access: time, last_modification: time }
}

/// The owner that an entry gets. `None` means that of this process.
pub(super) fn owner(owner: Owner, header: &Header) -> Option<(Uid, Gid)> {
    let (user, group) = match owner {
        Owner::Process => return None,
        Owner::Given { user, group } => (user, group),
        Owner::Kept => (header.uid, header.gid),
    };
    Some((Uid::from_raw(user), Gid::from_raw(group)))
}

/// Gives an open entry its owner, attributes, mode and time. Returns the attributes that cannot be set here.
///
/// A change of the owner takes capabilities and set-id bits away, so these follow it.
pub(super) fn apply(file: BorrowedFd<'_>, header: &Header, to: Owner) -> Result<Vec<String>> {
    if let Some((user, group)) = owner(to, header) {
        fchown(file, Some(user), Some(group))?;
    }
    let is_kept = matches!(to, Owner::Kept);
    let mut refused = Vec::new();
    for (name, Escaped(value)) in &header.xattrs {
        // Capabilities and lists of access name rights of the stream's own users.
        if !is_kept && !name.0.starts_with(b"user.") {
            continue;
        }
        match fsetxattr(file, name.0.as_slice(), value, XattrFlags::empty()) {
            Err(Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS | Errno::INVAL) => {
                refused.push(name.to_string())
            }
            result => result?,
        }
    }
    // A program of another owner must not run as that one.
    let bits = if is_kept { 0o7777 } else { 0o1777 };
    fchmod(file, Mode::from_raw_mode(header.mode & bits))?;
    futimens(file, &times(header.mtime))?;
    Ok(refused)
}
