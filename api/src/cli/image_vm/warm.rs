//! Warm starts: a quiet snapshot of a VM of an image, taken before its first command. Later runs restore it.
//!
//! ```text
//! warm/IMAGE-KEY/       a snapshot: first digits of the image's digest, and all digits of the key
//!     /IMAGE-KEY.lock   locked by the VM that makes it
//! ```
//!
//! The key stands for all that the guest can see when its agent is ready, and for the host's processor. The
//! snapshot names files of the VM that made it, so each restore gives all disks and sockets anew.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::json;
use volt_image::digest::{self, Digest};
use volt_job::Job;
use volt_vmm::config::devices::{Devices, NetBackend};
use volt_vmm::internal::{STATE_FILE, WORKING_SET_FILE, host};
use volt_vmm::{FileRef, HugePages, VmConfig};

use super::guest_files::GuestFiles;
use crate::failure::Failure;
use crate::run_dir::data_dir;

/// The directory of all warm snapshots, below the user's data.
const PLACE: &str = "warm";
/// Bytes that warm snapshots take at most, if no option says another number.
pub(super) const LIMIT: u64 = 10 << 30;
/// Changes when an older warm snapshot does not fit this program's way to use it.
const VERSION: u32 = 1;
/// Digits of names: of the image, and of the key.
const DIGITS: [usize; 2] = [12, 32];
const LOCK: &str = "lock";

/// The place of one warm snapshot.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Warm {
    directory: PathBuf,
}

impl Warm {
    /// Finds the place for VMs of an image with this job, and with this configuration, in which so many disks
    /// are ours, with one of `upper` bytes for changes if there is one. Absent if such VMs start cold: they
    /// have more than an image's VM has, or files that are given by descriptors.
    ///
    /// # Errors
    /// A file of the guest cannot be examined, or the environment names no place.
    pub(super) fn of(
        image: &Digest,
        job: &Job,
        guest: &GuestFiles,
        config: &VmConfig,
        disks: usize,
        upper: Option<u64>,
    ) -> Result<Option<Self>, Failure> {
        let Some(kernel) = path_of(&guest.kernel).filter(|_| is_plain(config, disks)) else {
            return Ok(None);
        };
        let files = [kernel, &guest.initramfs, Path::new("/proc/self/exe")];
        let files = files.into_iter().chain(guest.modules.iter().map(PathBuf::as_path));
        let files = files.map(identity).collect::<Result<Vec<_>, _>>()?;
        let key = json!({
            "version": VERSION,
            "image": image,
            "job": job,
            "upper": upper,
            "files": files,
            "host": host::feature_digest()?,
            "config": neutral(config),
        });
        let key = digest::of(key.to_string().as_bytes());
        let name = format!("{}-{}", &image.digest()[..DIGITS[0]], &key.digest()[..DIGITS[1]]);
        Ok(Some(Self { directory: data_dir::of_user(PLACE)?.join(name) }))
    }

    /// The directory of the snapshot, whether it exists or not.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Takes the snapshot into use, if there is one: it stays as long as the file is open.
    pub(super) fn open(&self) -> Option<File> {
        let directory = File::open(&self.directory).ok()?;
        directory.try_lock_shared().ok()?;
        // Without the note it goes earlier.
        let _ = directory.set_modified(SystemTime::now());
        self.directory.exists().then_some(directory)
    }

    /// Removes the snapshot.
    ///
    /// # Errors
    /// The host refuses.
    pub(super) fn remove(&self) -> Result<(), Failure> {
        remove(&self.directory).map_err(|error| {
            Failure::system(format!("remove the warm snapshot {}", self.directory.display()), error)
        })
    }

    /// Removes the snapshot's working set, which is advice. The next VM keeps another one.
    pub(super) fn remove_working_set(&self) {
        if let Err(error) = fs::remove_file(self.directory.join(WORKING_SET_FILE)) {
            log::warn!("cannot remove the working set of {}: {error}", self.directory.display());
        }
    }

    /// Lets this process make the snapshot, unless another one does, or its `expected` bytes are more than
    /// `limit`. The others keep the rest of `limit`.
    ///
    /// # Errors
    /// The host refuses the directory of warm snapshots.
    pub(super) fn begin(&self, limit: u64, expected: u64) -> Result<Option<File>, Failure> {
        let Some(rest) = limit.checked_sub(expected) else { return Ok(None) };
        let place = self.directory.parent().expect("it is in the directory of all");
        let failed = |error| Failure::system(format!("make warm snapshots in {}", place.display()), error);
        DirBuilder::new().recursive(true).mode(0o700).create(place).map_err(failed)?;
        let path = self.directory.with_extension(LOCK);
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path);
        let lock = lock.map_err(failed)?;
        if lock.try_lock().is_err() || self.directory.exists() {
            return Ok(None);
        }
        shrink(place, rest).map_err(failed)?;
        Ok(Some(lock))
    }
}

/// Removes the warm snapshots of an image.
///
/// # Errors
/// The environment names no place, or the host refuses.
pub(in crate::cli) fn remove_of(image: &Digest) -> Result<(), Failure> {
    let place = data_dir::of_user(PLACE)?;
    let beginning = format!("{}-", &image.digest()[..DIGITS[0]]);
    let is_of_image = |path: &Path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&beginning))
    };
    let mut all = snapshots(&place).map(|(path, _)| path).filter(|path| is_of_image(path));
    all.try_for_each(|path| remove(&path))
        .map_err(|error| Failure::system(format!("remove warm snapshots in {}", place.display()), error))
}

/// Removes the snapshots that were used last the longest time ago, until all take at most so many bytes.
/// Those in use stay.
fn shrink(place: &Path, limit: u64) -> io::Result<()> {
    let mut all: Vec<_> = snapshots(place).map(|(path, found)| (found.mtime(), size(&path), path)).collect();
    all.sort_unstable();
    let mut bytes: u64 = all.iter().map(|(_, size, _)| size).sum();
    for (_, size, path) in all {
        if bytes <= limit {
            break;
        }
        let Ok(directory) = File::open(&path) else { continue };
        // A VM may have it in use.
        if directory.try_lock().is_ok() {
            remove(&path)?;
            bytes -= size;
        }
    }
    Ok(())
}

fn remove(directory: &Path) -> io::Result<()> {
    // First, since half of a snapshot cannot be restored.
    let _ = fs::remove_file(directory.join(STATE_FILE));
    let removed = [fs::remove_dir_all(directory), fs::remove_file(directory.with_extension(LOCK))];
    // Another process may have removed it.
    let failed = removed.into_iter().flat_map(Result::err);
    failed.filter(|error| error.kind() != io::ErrorKind::NotFound).map(Err).next().unwrap_or(Ok(()))
}

fn snapshots(place: &Path) -> impl Iterator<Item = (PathBuf, Metadata)> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)));
    let is_named = |path: &Path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_name);
    found.filter(move |(path, found)| found.is_dir() && is_named(path))
}

/// Whether it is the name of a warm snapshot, not that of one that is being made.
fn is_name(name: &str) -> bool {
    let parts: Vec<_> = name.split('-').collect();
    let is_digits = |part: &str| part.bytes().all(|digit| digit.is_ascii_hexdigit());
    parts.len() == 2 && parts.iter().zip(DIGITS).all(|(part, digits)| part.len() == digits && is_digits(part))
}

/// Bytes on the host's disk.
fn size(directory: &Path) -> u64 {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|found| found.blocks() * 512).sum()
}

/// Whether a VM with so many disks of ours has only what warm starts know to give anew.
fn is_plain(config: &VmConfig, ours: usize) -> bool {
    let Devices { disks, console, metadata, .. } = &config.devices;
    let is_descriptor = |backend: &NetBackend| matches!(backend, NetBackend::TapDescriptor(_));
    config.huge_pages != HugePages::Hugetlb
        && console.is_none()
        && metadata.is_none()
        && disks.len() == ours
        && !config.devices.networks.iter().any(|network| is_descriptor(&network.backend))
}

/// The configuration without what each VM gets anew, and without the files that the key has otherwise.
fn neutral(config: &VmConfig) -> VmConfig {
    let mut config = config.clone().as_template();
    config.boot.kernel = FileRef::default();
    // A guest uses no network before its first command, and each restore gives the policy anew.
    config.devices.policy = None;
    for disk in &mut config.devices.disks {
        (disk.path, disk.parts) = (FileRef::default(), Vec::new());
    }
    config
}

/// A text that changes with a file's content: reading the whole file would take longer than a restore.
fn identity(path: &Path) -> Result<String, Failure> {
    let found = fs::metadata(path);
    let found = found.map_err(|error| Failure::system(format!("examine {}", path.display()), error))?;
    let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
    Ok(format!("{}:{} {} {times:?}", found.dev(), found.ino(), found.size()))
}

fn path_of(file: &FileRef) -> Option<&Path> {
    match file {
        FileRef::Path(path) => Some(path),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use volt_vmm::config::devices::{DiskConfig, NetConfig, VsockConfig};

    use super::*;
    use crate::rest::testing::Dir;

    fn config() -> VmConfig {
        let mut config = VmConfig::new("/kernel");
        config.devices.disks = vec![
            DiskConfig::of_parts("image", ["/a", "/b"]).read_only(),
            DiskConfig::new("upper", "/base").layer("/layer"),
            DiskConfig::new("vol0", "/volume"),
        ];
        let passt = NetBackend::Passt { forward: vec![(80, 81)] };
        config.devices.networks = vec![NetConfig::new("eth0", passt)];
        config.devices.vsock = Some(VsockConfig { cid: 3, socket: "/v".into() });
        config
    }

    /// A change of a configuration, and whether another snapshot is needed.
    type Change = (fn(&mut VmConfig), bool);

    #[test]
    fn files_of_a_run_are_not_in_the_key_and_the_devices_are() {
        let changes: [Change; 9] = [
            (|config| config.devices.policy = Some(Default::default()), false),
            (|config| config.devices.disks[1].layer = Some("/other".into()), false),
            (|config| config.devices.disks[2].path = "/other".into(), false),
            (|config| config.devices.vsock.as_mut().unwrap().socket = "/w".into(), false),
            (|config| config.devices.networks[0].backend = NetBackend::Passt { forward: Vec::new() }, false),
            (|config| config.devices.networks[0].backend = NetBackend::Tap("t".to_owned()), true),
            (|config| config.devices.disks[2].read_only = true, true),
            (|config| config.memory_mib += 1, true),
            (|config| config.boot.cmdline.push_str(" x"), true),
        ];
        for (number, (change, is_other)) in changes.into_iter().enumerate() {
            let mut changed = config();
            change(&mut changed);
            assert_eq!(neutral(&changed) != neutral(&config()), is_other, "{number}");
        }
    }

    #[test]
    fn vm_with_other_devices_starts_cold() {
        assert!(is_plain(&config(), 3));
        let changes: [fn(&mut VmConfig); 3] = [
            |config| config.devices.disks.push(DiskConfig::new("data", "/data")),
            |config| config.devices.networks[0].backend = NetBackend::TapDescriptor(5),
            |config| config.huge_pages = HugePages::Hugetlb,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut changed = config();
            change(&mut changed);
            assert!(!is_plain(&changed, 3), "{number}");
        }
    }

    fn snapshot(dir: &Dir, number: u64, bytes: usize) -> PathBuf {
        let path = dir.path(&format!("{number:012x}-{number:032x}"));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("memory"), vec![1; bytes]).unwrap();
        let used = SystemTime::UNIX_EPOCH + Duration::from_secs(number);
        File::open(&path).unwrap().set_modified(used).unwrap();
        path
    }

    #[test]
    fn those_that_were_used_long_ago_go_first() {
        let dir = Dir::new();
        let [old, used, new] = [3, 1, 2].map(|number| snapshot(&dir, number, 8192));
        assert!(Warm { directory: old.clone() }.open().is_some(), "this notes its use");
        let partial = dir.path(".partial");
        fs::create_dir(&partial).unwrap();
        shrink(&dir.path(""), 3 * 8192).unwrap();
        assert!(old.exists() && used.exists() && new.exists());
        let in_use = Warm { directory: used.clone() }.open();
        File::open(&used).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        shrink(&dir.path(""), 3 * 8192 - 1).unwrap();
        assert!(old.exists() && used.exists() && !new.exists());
        drop(in_use);
        shrink(&dir.path(""), 8192).unwrap();
        assert!(old.exists() && !used.exists());
        shrink(&dir.path(""), 0).unwrap();
        assert!(!old.exists() && partial.exists());
    }

    #[test]
    fn one_process_makes_a_snapshot() {
        let dir = Dir::new();
        let warm = Warm { directory: dir.path(&format!("{:012x}-{:032x}", 1, 1)) };
        let lock = warm.begin(LIMIT, 0).unwrap();
        assert!(lock.is_some() && warm.begin(LIMIT, 0).unwrap().is_none() && warm.open().is_none());
        drop(lock);
        assert!(warm.begin(LIMIT, 0).unwrap().is_some());
        fs::create_dir(warm.directory()).unwrap();
        assert!(warm.begin(LIMIT, 0).unwrap().is_none() && warm.open().is_some());
    }
}
