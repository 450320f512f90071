//! The data directory of a VM that runs an image: its own disks, and its initramfs.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use volt_job::Job;
use volt_job::job::{self, Network, Root, Upper};
use volt_job::quiet::PLACEHOLDER;
use volt_vmm::Error;
use volt_vmm::config::devices::DiskConfig;
use volt_vmm::internal::archive;

use super::guest_files::GuestFiles;
use super::network;
use crate::cli::attached_volumes::{self as volumes, Attached};
use crate::cli::empty_disk;
use crate::failure::Failure;
use crate::run_dir::data_dir;

/// Ids of both disks.
const IMAGE: &str = "image";
const UPPER: &str = "upper";
/// The directories that overlayfs needs on the disk of changes.
const OF_OVERLAY: [&str; 2] = ["upper", "work"];
/// The host name of a VM that has not got its own yet.
const NOBODY: &str = "volt";

/// The disks of a VM.
#[derive(Debug)]
pub(super) struct Disks<'a> {
    /// Files of the image.
    pub(super) image: &'a [PathBuf],
    /// Whether changes go to a disk, or to memory.
    pub(super) has_upper: bool,
    /// Bytes of the disk of changes.
    pub(super) size: u64,
    pub(super) volumes: &'a [Attached],
}

/// Makes the directory, with the disks of packed directories.
///
/// # Errors
/// The host refuses.
pub(super) fn make(directory: &Path, volumes: &[Attached]) -> Result<(), Failure> {
    // Open as long as this process, which is the VM's.
    std::mem::forget(data_dir::make(directory).map_err(|error| failed(directory, error))?);
    volumes.iter().try_for_each(volumes::pack)
}

/// Writes the agent's initramfs with the job and the kernel's modules.
///
/// # Errors
/// The host refuses.
pub(super) fn write_initramfs(directory: &Path, job: &Job, guest: &GuestFiles) -> Result<(), Failure> {
    let initramfs = initramfs(job, guest)?;
    let written = File::create_new(initramfs_of(directory)).and_then(|mut file| file.write_all(&initramfs));
    written.map_err(|error| failed(directory, error))
}

/// Makes the files that stand for those of volumes until the guest runs.
///
/// # Errors
/// The host refuses.
pub(super) fn hold_places(directory: &Path, disks: &mut [DiskConfig]) -> Result<(), Failure> {
    for disk in disks {
        let path = directory.join(format!("{}.placeholder", disk.id));
        let made = File::create_new(&path).and_then(|file| file.set_len(PLACEHOLDER));
        made.map_err(|error| failed(directory, error))?;
        disk.path = path.into();
    }
    Ok(())
}

fn failed(directory: &Path, error: io::Error) -> Failure {
    Failure::system(format!("make the VM's files in {}", directory.display()), error)
}

/// Returns the path of the initramfs.
pub(super) fn initramfs_of(directory: &Path) -> PathBuf {
    directory.join("initramfs")
}

/// The job of all VMs of an image: nothing in it is of one run.
pub(super) fn job(disks: &Disks<'_>, guest: &GuestFiles, network: Option<Network>) -> Job {
    let upper = if disks.has_upper { Upper::Disk(UPPER.to_owned()) } else { Upper::Memory };
    Job {
        hostname: Some(NOBODY.to_owned()),
        modules: guest.module_names().map(str::to_owned).collect(),
        resolv_conf: network.as_ref().map(|_| network::resolvers()).unwrap_or_default(),
        network,
        ..Job::new(Root { lower: IMAGE.to_owned(), upper }, None)
    }
}

fn initramfs(job: &Job, guest: &GuestFiles) -> Result<Vec<u8>, Failure> {
    let read = |path: &Path| {
        fs::read(path).map_err(|error| Failure::system(format!("read {}", path.display()), error))
    };
    let mut files =
        vec![(job::PATH.to_owned(), serde_json::to_vec(job).expect("a job has no keys but text"))];
    for (path, name) in guest.modules.iter().zip(guest.module_names()) {
        files.push((format!("{}/{name}", job::MODULES), read(path)?));
    }
    let mut bytes = read(&guest.initramfs)?;
    let files: Vec<_> = files.iter().map(|(path, content)| (path.as_str(), content.as_slice())).collect();
    bytes.extend(archive::addition(bytes.len() as u64, &files).map_err(Error::from)?);
    Ok(bytes)
}

/// The disks, as the VM has them. Changes go to a layer, which snapshots take along.
///
/// # Errors
/// There is no disk of this size, or the host refuses.
pub(super) fn disks(directory: &Path, disks: &Disks<'_>) -> Result<Vec<DiskConfig>, Failure> {
    let image = DiskConfig::of_parts(IMAGE, disks.image.iter().cloned()).read_only();
    let upper = || {
        let base = empty_disk::base("disk-size", disks.size, &OF_OVERLAY)?;
        Ok::<_, Failure>(DiskConfig::new(UPPER, base).layer(directory.join("upper.layer")))
    };
    let upper = disks.has_upper.then(upper).transpose()?;
    Ok([image].into_iter().chain(upper).chain(disks.volumes.iter().map(Attached::disk)).collect())
}
