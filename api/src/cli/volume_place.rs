//! Volumes of this user: ext4 disks that outlive VMs.
//!
//! ```text
//! volumes/NAME.img                 a volume
//!        /.NAME.img.HEX.partial    one that is being made
//!        /lock                     shared by makers and users of volumes, exclusive for removals
//! ```

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use serde::Serialize;
use volt_image::lock::Lock;
use volt_vmm::FileRef;
use volt_vmm::config::devices::DiskConfig;
use volt_vmm::internal::partial;

use crate::cli::empty_disk;
use crate::failure::Failure;
use crate::run_dir::data_dir;
use crate::run_dir::listing;
use crate::run_dir::name::VmName;
use crate::run_dir::root::RunRoot;

/// Bytes of a volume that is made without a size.
pub(super) const DEFAULT_SIZE: u64 = 10 << 30;
const EXTENSION: &str = "img";

/// The directory of volumes.
#[derive(Debug)]
pub(super) struct Volumes {
    root: PathBuf,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Volume {
    pub(super) name: VmName,
    pub(super) path: PathBuf,
    /// Bytes that the VM sees.
    pub(super) size_bytes: u64,
    /// Bytes on the host's disk.
    pub(super) disk_bytes: u64,
}

impl Volumes {
    /// Opens this user's volumes.
    ///
    /// # Errors
    /// The environment names no directory, or the host cannot make it.
    pub(super) fn open() -> Result<Self, Failure> {
        Self::at(data_dir::of_user("volumes")?)
    }

    fn at(root: PathBuf) -> Result<Self, Failure> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&root);
        made.map_err(|error| Failure::system(format!("make the directory {}", root.display()), error))?;
        Ok(Self { root })
    }

    /// Keeps volumes from being removed. Waits while one is removed.
    ///
    /// # Errors
    /// The host cannot lock the directory.
    pub(super) fn keep(&self) -> Result<Lock, Failure> {
        Ok(Lock::shared(&self.root.join("lock"))?)
    }

    /// The file of a volume, which may be missing.
    pub(super) fn path(&self, name: &VmName) -> PathBuf {
        self.root.join(name.as_str()).with_extension(EXTENSION)
    }

    /// Makes a volume of so many bytes. Returns false if it is here already.
    ///
    /// # Errors
    /// No disk can have this size, or the host refuses.
    pub(super) fn create(&self, name: &VmName, size: u64) -> Result<bool, Failure> {
        let path = self.path(name);
        if path.exists() {
            return Ok(false);
        }
        let system = empty_disk::lay_out("size", size, &[])?;
        let _kept = self.keep()?;
        empty_disk::publish(&system, &path)
    }

    /// Lists all volumes by name.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(super) fn all(&self) -> Result<Vec<Volume>, Failure> {
        let failed = |error| Failure::system(format!("list {}", self.root.display()), error);
        let entries = fs::read_dir(&self.root).map_err(failed)?.flatten();
        let mut all: Vec<_> = entries.filter_map(|entry| self.named(&entry.path())).collect();
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// The volume in a file, if it is one.
    fn named(&self, path: &Path) -> Option<Volume> {
        let name = path.file_stem()?.to_str()?.parse().ok()?;
        let found = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        (self.path(&name) == path).then(|| Volume {
            name,
            path: path.to_owned(),
            size_bytes: found.len(),
            disk_bytes: found.blocks() * 512,
        })
    }

    /// Removes a volume, and what killed processes left.
    ///
    /// # Errors
    /// There is no such volume, a VM uses it, or the host refuses.
    pub(super) fn remove(&self, name: &VmName) -> Result<Volume, Failure> {
        let refused = |problem: String| Failure::Volume { name: name.to_string(), problem };
        let _alone = Lock::alone(&self.root.join("lock"))?;
        partial::remove_all_abandoned_files(&self.root);
        let path = self.path(name);
        let volume = self.named(&path);
        let volume =
            volume.ok_or_else(|| refused("there is none; volt-vmm volume ls lists all".to_owned()))?;
        let failed = |error: io::Error| Failure::system(format!("remove {}", path.display()), error);
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(failed)?;
        // VMs lock their disks. No VM begins to use it while this process has its lock.
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN | Errno::ACCESS) => return Err(refused(in_use(&path))),
            locked => locked.map_err(|errno| failed(errno.into()))?,
        }
        fs::remove_file(&path).map_err(failed)?;
        Ok(volume)
    }
}

/// The error for a volume of living VMs. It names those that this user has.
fn in_use(path: &Path) -> String {
    let root = RunRoot::existing().ok().flatten();
    let all = root.and_then(|root| listing::all(&root).ok()).unwrap_or_default();
    let has_it =
        |disk: &DiskConfig| disk.image().any(|image| matches!(image, FileRef::Path(at) if at == path));
    let users = all.iter().filter(|vm| vm.is_alive());
    let users = users.filter(|vm| vm.config().is_some_and(|config| config.devices.disks.iter().any(has_it)));
    let names: Vec<_> = users.map(|vm| vm.name().to_string()).collect();
    match &names[..] {
        [] => "a process uses it; stop that VM first (volt-vmm ps lists VMs)".to_owned(),
        [name] => format!("VM {name} uses it; stop that first (volt-vmm stop {name})"),
        _ => format!("VMs use it; stop them first (volt-vmm stop {})", names.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::testing::Dir;

    const SIZE: u64 = 8 << 20;

    fn name(text: &str) -> VmName {
        text.parse().unwrap()
    }

    #[test]
    fn volume_is_made_once_listed_and_removed() {
        let dir = Dir::new();
        let volumes = Volumes::at(dir.path("volumes")).unwrap();
        assert_eq!(volumes.all().unwrap(), []);
        assert!(volumes.create(&name("db"), SIZE).unwrap());
        assert!(volumes.create(&name("a"), 2 * SIZE).unwrap());
        assert!(!volumes.create(&name("db"), 2 * SIZE).unwrap());
        let (left_behind, _) = partial::create_file(&dir.path("volumes"), "c.img", 0o600).unwrap();
        for other in ["b.txt", "lock", "-x.img", "directory.img/"] {
            let path = dir.path("volumes").join(other);
            if other.ends_with('/') { fs::create_dir(path).unwrap() } else { fs::write(path, "").unwrap() }
        }
        let all = volumes.all().unwrap();
        let seen: Vec<_> = all.iter().map(|volume| (volume.name.as_str(), volume.size_bytes)).collect();
        assert_eq!(seen, [("a", 2 * SIZE), ("db", SIZE)]);
        assert!(all.iter().all(|volume| volume.disk_bytes < 1 << 20), "{all:?}");
        assert_eq!(fs::metadata(volumes.path(&name("a"))).unwrap().mode() & 0o777, 0o600);
        volumes.remove(&name("db")).unwrap();
        assert_eq!(volumes.all().unwrap(), all[..1]);
        assert!(!left_behind.exists());
        let problem = volumes.remove(&name("db")).unwrap_err().to_string();
        assert_eq!(problem, "volume db: there is none; volt-vmm volume ls lists all");
    }

    #[test]
    fn failed_creation_leaves_nothing() {
        let dir = Dir::new();
        let volumes = Volumes::at(dir.path("volumes")).unwrap();
        let problem = volt_vmm::report(&volumes.create(&name("db"), 1).unwrap_err());
        assert!(problem.contains("8 MiB to 16 TiB"), "{problem}");
        assert_eq!(fs::read_dir(dir.path("volumes")).unwrap().count(), 0);
    }
}
