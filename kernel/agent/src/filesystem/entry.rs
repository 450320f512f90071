//! Descriptions of entries.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FileType, lgetxattr, llistxattr, llistxattr_query};

use crate::messages::filesystem::{EntryInfo, Timestamp};
use crate::users::Names;

/// Prefix of the extended attributes that hold metadata.
pub const METADATA: &str = "user.e2b.";

const FILE: i32 = 1;
const DIRECTORY: i32 = 2;
const SYMLINK: i32 = 3;

/// Describes the entry at a path.
pub fn describe(path: &Path, names: &Names) -> io::Result<EntryInfo> {
    let metadata = fs::symlink_metadata(path)?;
    let is_symlink = metadata.is_symlink();
    let target = is_symlink.then(|| fs::canonicalize(path).or_else(|_| fs::read_link(path)));
    let target = target.transpose()?.map(|target| target.to_string_lossy().into_owned());
    let name = path.file_name().map_or_else(|| "/".into(), |name| name.to_string_lossy().into_owned());
    Ok(EntryInfo {
        name,
        r#type: kind(path, &metadata),
        path: path.to_string_lossy().into_owned(),
        size: metadata.len().cast_signed(),
        mode: metadata.mode() & 0o7777,
        permissions: permissions(metadata.mode()),
        owner: names.user(metadata.uid()),
        group: names.group(metadata.gid()),
        modified_time: Some(Timestamp { seconds: metadata.mtime(), nanos: metadata.mtime_nsec() as i32 }),
        symlink_target: target,
        // The kernel keeps no such attributes for symlinks.
        metadata: if is_symlink { BTreeMap::new() } else { attributes(path) },
        is_symlink,
    })
}

/// The type of an entry. A symlink has its target's, or is a symlink if that does not exist.
fn kind(path: &Path, metadata: &Metadata) -> i32 {
    let followed = if metadata.is_symlink() { fs::metadata(path).ok() } else { None };
    let file_type = followed.as_ref().unwrap_or(metadata).file_type();
    if file_type.is_symlink() {
        SYMLINK
    } else if file_type.is_dir() {
        DIRECTORY
    } else if file_type.is_file() {
        FILE
    } else {
        0
    }
}

/// Type and permission bits as `ls -l` writes them.
fn permissions(mode: u32) -> String {
    let kind = match FileType::from_raw_mode(mode) {
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        _ => '-',
    };
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 == 0 { '-' } else { 'r' });
        text.push(if bits & 2 == 0 { '-' } else { 'w' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (false, false) => '-',
            (true, false) => 'x',
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
        });
    }
    text
}

/// Metadata of a file. A file system without extended attributes has none.
fn attributes(path: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for name in metadata_names(llistxattr_query(path), |names| llistxattr(path, names)) {
        // 64 KiB is the kernel's limit.
        let mut value = vec![0; 64 << 10];
        let Ok(length) = lgetxattr(path, name.as_str(), &mut value[..]) else { continue };
        let key = name.trim_start_matches(METADATA).to_owned();
        found.insert(key, String::from_utf8_lossy(&value[..length]).into_owned());
    }
    found
}

/// Names of the extended attributes that hold metadata. `length` is that of the list, and `list` writes it.
pub fn metadata_names(
    length: rustix::io::Result<usize>,
    list: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>,
) -> Vec<String> {
    // Nearly all files have none, and need no buffer.
    let mut names = match length {
        Ok(length) if length > 0 => vec![0; 64 << 10],
        _ => return Vec::new(),
    };
    let Ok(length) = list(&mut names) else { return Vec::new() };
    let names = names[..length].split(|&byte| byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
    names.filter(|name| name.starts_with(METADATA)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_those_of_ls() {
        for (mode, wanted) in [
            (0o100_644, "-rw-r--r--"),
            (0o041_777, "drwxrwxrwt"),
            (0o104_655, "-rwSr-xr-x"),
            (0o120_777, "lrwxrwxrwx"),
        ] {
            assert_eq!(permissions(mode), wanted);
        }
    }
}
