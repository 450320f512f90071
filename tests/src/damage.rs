//! Changes to files of snapshots, which nobody may write (mode 0400). Root may do it all the same; for other
//! users the owner's permission is added.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Opens a file of a snapshot to change it.
///
/// # Panics
/// There is no such file, or it is another user's.
pub fn open_to_change(path: impl AsRef<Path>) -> File {
    let path = path.as_ref();
    fs::set_permissions(path, Permissions::from_mode(0o600))
        .and_then(|()| File::options().read(true).write(true).open(path))
        .unwrap_or_else(|error| panic!("open {} to change it: {error}", path.display()))
}

/// Gives a file of a snapshot other content.
///
/// # Panics
/// As [`open_to_change`]; or the file cannot be written.
pub fn overwrite(path: impl AsRef<Path>, content: impl AsRef<[u8]>) {
    let mut file = open_to_change(path);
    file.set_len(0).and_then(|()| file.write_all(content.as_ref())).expect("write a snapshot's file");
}
