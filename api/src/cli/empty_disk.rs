//! Empty ext4 disks.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use volt_image::ext4::{Description, FileSystem};
use volt_vmm::internal::partial;

use crate::failure::Failure;
use crate::run_dir::data_dir;

/// The directory of bases, below the user's data.
const BASES: &str = "bases";

/// Lays out an empty file system with an identity of its own. `field` is the option that gives the size.
///
/// # Errors
/// No disk can have the size, or the host has no random bytes.
pub(super) fn lay_out<'a>(
    field: &'static str,
    size: u64,
    directories: &'a [&'a str],
) -> Result<FileSystem<'a>, Failure> {
    let hash_seed = random()?;
    let made = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    FileSystem::new(Description { size, identity: identity()?, hash_seed, made, directories })
        .map_err(|refusal| Failure::config(field, refusal.to_string()))
}

/// Returns a disk of so many bytes that VMs have beneath the layers that take their changes. All VMs share
/// it, and snapshots name it, so it stays.
///
/// # Errors
/// No disk can have the size, or as [`publish`].
pub(super) fn base(field: &'static str, size: u64, directories: &[&str]) -> Result<PathBuf, Failure> {
    let place = data_dir::of_user(BASES)?;
    let path = place.join(format!("{size}-{}.ext4", directories.join("-")));
    if !path.exists() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&place);
        made.map_err(|error| Failure::system(format!("make the directory {}", place.display()), error))?;
        // The same bytes on each host and at each time, since layers belong to them.
        let mut identity = *b"volt-vmm layers.";
        identity[..8].iter_mut().zip(size.to_be_bytes()).for_each(|(byte, of_size)| *byte ^= of_size);
        let description =
            Description { size, identity: as_uuid(identity), hash_seed: identity, made: 0, directories };
        let system = FileSystem::new(description);
        publish(&system.map_err(|refusal| Failure::config(field, refusal.to_string()))?, &path)?;
    }
    Ok(path)
}

/// Writes a file system to a file, which is there whole or not at all. Returns false if it is there already.
///
/// # Errors
/// The host refuses.
pub(super) fn publish(system: &FileSystem<'_>, path: &Path) -> Result<bool, Failure> {
    let place = path.parent().expect("a file is in a directory");
    let name = path.file_name().and_then(OsStr::to_str).expect("these names are text");
    partial::remove_all_abandoned_files(place);
    let write = || {
        let (partial, file) = partial::create_file(place, name, 0o600)?;
        let written = system.write(&file).and_then(|()| file.sync_all());
        // A rename would replace the file of another process.
        let linked = written.and_then(|()| fs::hard_link(&partial, path));
        let _ = fs::remove_file(&partial);
        linked.and_then(|()| File::open(place)?.sync_all())
    };
    match write() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        written => {
            written.map_err(|error| Failure::system(format!("make {}", path.display()), error))?;
            Ok(true)
        }
    }
}

/// Makes up the UUID of a file system.
///
/// # Errors
/// The host has no random bytes.
pub(super) fn identity() -> Result<[u8; 16], Failure> {
    random().map(as_uuid)
}

/// Sets version 4 and its variant (RFC 9562).
fn as_uuid(mut bytes: [u8; 16]) -> [u8; 16] {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

fn random() -> Result<[u8; 16], Failure> {
    let mut bytes = [0; 16];
    let read = |bytes: &mut [u8]| -> io::Result<()> { File::open("/dev/urandom")?.read_exact(bytes) };
    read(&mut bytes).map_err(|error| Failure::system("read /dev/urandom", error))?;
    Ok(bytes)
}
