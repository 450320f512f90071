//! The process of a VM that runs an image: it restores the VM from a warm snapshot, or boots it, and leaves
//! such a snapshot where it may.

use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use volt_image::store::Image;
use volt_job::Job;
use volt_job::job::Mount;
use volt_vmm::config::devices::{Devices, DiskConfig, NetConfig, VsockConfig};
use volt_vmm::config::overrides::{
    ChangedImage, DiskOverride, NetOverride, PolicyOverride, VsockOverride, Without,
};
use volt_vmm::config::{Overrides, VmConfig};
use volt_vmm::internal::{STATE_FILE, paths};
use volt_vmm::{Error, RestoreOptions, Snapshot, VmShape};

use super::Purpose;
use super::data::{self, Disks};
use super::guest_files::GuestFiles;
use super::network;
use super::warm::{self, Warm};
use crate::cli::Outcome;
use crate::cli::attached_volumes::Attached;
use crate::cli::image_options::{ImageArgs, UpperPlace};
use crate::cli::run::{Ready, Run};
use crate::failure::Failure;
use crate::image_start::{ImageStart, NewWarm};
use crate::messages::say;
use crate::process::exit::Status;
use crate::process::start::SnapshotPlace;
use crate::process::{bounds, confinement, home, start};
use crate::session::Session;

/// The guest's address of its vsock. Each VM has its own host's side.
const CID: u32 = 3;
/// A guest that has booted uses less than this part of its memory.
const SHARE: u64 = 4;
/// Size of the disk that takes a VM's changes.
const DISK_SIZE: u64 = 10 << 30;

/// The parts of a VM that runs an image.
pub(super) struct ImageVm<'a> {
    pub(super) image: &'a Image,
    pub(super) args: &'a ImageArgs,
    pub(super) guest: &'a GuestFiles,
    pub(super) volumes: &'a [Attached],
    pub(super) purpose: Purpose,
}

impl ImageVm<'_> {
    /// Runs the VM to its end, in this process, which is the VM's.
    pub(super) fn run(&self, mut run: Run, api_socket: PathBuf) -> Outcome {
        let home = home::get().expect("the VM has a name");
        let directory = home.record.data.as_deref().expect("the record names it");
        let disks = Disks {
            image: &self.image.parts,
            has_upper: self.args.upper != Some(UpperPlace::Memory),
            size: self.args.disk_size.unwrap_or(DISK_SIZE),
            volumes: self.volumes,
        };
        data::make(directory, self.volumes)?;
        run.initrd = Some(data::initramfs_of(directory).into());
        let of_image = Devices {
            disks: data::disks(directory, &disks)?,
            vsock: Some(VsockConfig { cid: CID, socket: home.vsock().into() }),
            rng: true,
            ..Devices::default()
        };
        let own = of_image.disks.len();
        let mut network = None;
        let (chooses_network, refuses_policy) = (run.chooses_network(), run.refuses_policy());
        let ready = run.ready(|config: &mut VmConfig| {
            if !chooses_network {
                network::add_default(&mut config.devices.networks);
            }
            network = network::of(&mut config.devices.networks)?;
            network::close_surroundings(&mut config.devices, refuses_policy);
            add(&mut config.devices, of_image)
        })?;
        let job = data::job(&disks, self.guest, network);
        let warm = match self.args.cold {
            true => None,
            false => {
                let upper = disks.has_upper.then_some(disks.size);
                Warm::of(&self.image.id, &job, self.guest, &ready.config, own, upper)?
            }
        };
        if self.purpose == Purpose::WarmSnapshot {
            return self.make_warm(warm, directory, &job, ready, api_socket);
        }
        if let Some((warm, snapshot)) = warm.as_ref().and_then(|warm| Some((warm, self.found(warm)?))) {
            return self.restore(warm, snapshot, ready, &api_socket);
        }
        data::write_initramfs(directory, &job, self.guest)?;
        self.boot(warm, directory, ready, api_socket)
    }

    /// Boots the VM, which leaves a warm snapshot if it may.
    fn boot(&self, warm: Option<Warm>, directory: &Path, mut ready: Ready, api_socket: PathBuf) -> Outcome {
        let mut image = ImageStart { mounts: self.mounts(), ..ImageStart::default() };
        // A strictly confined VM may not write among the snapshots of others.
        if let Some(warm) = warm.filter(|_| !ready.confine.is_strict()) {
            match self.begin(&warm, &ready) {
                Ok(new) => image.warm = new,
                Err(failure) => {
                    let problem = volt_vmm::problem(&failure);
                    log::warn!("the next run of this image starts cold again: {problem}");
                }
            }
        }
        if image.warm.is_some() {
            self.hold_places(directory, &mut ready)?;
            image.volumes = self.files_of_volumes();
        }
        ready.boot(Some(api_socket), Some(image))
    }

    /// Boots a VM that only leaves a warm snapshot.
    fn make_warm(
        &self,
        warm: Option<Warm>,
        directory: &Path,
        job: &Job,
        mut ready: Ready,
        api_socket: PathBuf,
    ) -> Outcome {
        let refused = |problem: &str| Err(Failure::config("image", problem));
        let Some(warm) = warm else {
            return refused("VMs with disks, consoles, metadata or descriptors of their own start cold");
        };
        if ready.confine.is_strict() {
            return refused("leave out --confine strict; no command runs in the VM that is made here");
        }
        if self.found(&warm).is_some() {
            say("volt-vmm: there is a warm snapshot already");
            return Ok(Status::Success);
        }
        let Some(new) = self.begin(&warm, &ready)? else {
            return refused("another VM makes this warm snapshot, or --warm-cache has no room for it");
        };
        data::write_initramfs(directory, job, self.guest)?;
        self.hold_places(directory, &mut ready)?;
        let image = ImageStart { warm: Some(new), ..ImageStart::default() };
        ready.boot(Some(api_socket), Some(image))
    }

    /// Begins a warm snapshot, unless another VM does.
    fn begin(&self, warm: &Warm, ready: &Ready) -> Result<Option<NewWarm>, Failure> {
        let limit = self.args.warm_cache.unwrap_or(warm::LIMIT);
        let lock = warm.begin(limit, ready.config.memory_bytes() / SHARE)?;
        let is_all = self.purpose == Purpose::WarmSnapshot;
        Ok(lock.map(|lock| NewWarm { directory: warm.directory().to_owned(), lock, is_all }))
    }

    /// Gives the VM placeholders for its volumes, which are its last disks.
    fn hold_places(&self, directory: &Path, ready: &mut Ready) -> Result<(), Failure> {
        let disks = &mut ready.config.devices.disks;
        let others = disks.len() - self.volumes.len();
        data::hold_places(directory, &mut disks[others..])
    }

    /// Opens the warm snapshot, if there is one. A damaged one goes.
    fn found(&self, warm: &Warm) -> Option<ManuallyDrop<Snapshot>> {
        // In use until this process ends.
        std::mem::forget(warm.open()?);
        let place = SnapshotPlace::Directory(warm.directory().to_owned());
        match start::open(&place, &RestoreOptions::default()) {
            // This thread may close no file once it has run a vCPU.
            Ok(snapshot) => Some(ManuallyDrop::new(snapshot)),
            Err(error @ Error::Snapshot { .. }) => {
                let problem = volt_vmm::problem(&error);
                log::warn!("a warm snapshot of this image cannot be used and is removed: {problem}");
                if let Err(failure) = warm.remove() {
                    log::warn!("{}", volt_vmm::problem(&failure));
                }
                None
            }
            Err(error) => {
                log::warn!("this run starts cold: {}", volt_vmm::problem(&error));
                None
            }
        }
    }

    /// Restores the VM from a warm snapshot.
    fn restore(
        &self,
        warm: &Warm,
        snapshot: ManuallyDrop<Snapshot>,
        ready: Ready,
        api_socket: &Path,
    ) -> Outcome {
        let Ready { config, allowed, confine, .. } = ready;
        // A strictly confined VM may not write among the snapshots of others.
        let keeps_working_set = !confine.is_strict();
        // Read now, which costs a strictly confined process more. It is advice: a damaged one goes.
        let working_set = snapshot.look_for_working_set();
        if let Err(error) = &working_set {
            log::warn!("this run reads no memory ahead: {}", volt_vmm::problem(error));
            warm.remove_working_set();
        }
        let bounds = || bounds::of(&allowed, Some(&config.devices), Some(warm.directory()));
        let mut choice = confine.choice(bounds);
        choice.add_socket(api_socket);
        confinement::apply(choice, Some(VmShape::of(&config)))?;
        let options = RestoreOptions::default().of_template().overrides(anew(config.devices));
        let options = options.prefetch(working_set.is_ok());
        let (volumes, mounts) = (self.files_of_volumes(), self.mounts());
        let image = ImageStart { warm: None, volumes, mounts, keeps_working_set };
        let session = Session::open(Some(api_socket))?.starting_image(Some(image));
        session.run("restore a warm snapshot", || {
            start::restore_lent(&snapshot, options).inspect_err(|error| {
                if matches!(error, Error::Snapshot { .. } | Error::Restore { .. }) {
                    // The next run finds it damaged, and boots.
                    let _ = paths::remove_file(&warm.directory().join(STATE_FILE));
                }
            })
        })
    }

    fn mounts(&self) -> Vec<Mount> {
        self.volumes.iter().map(|volume| volume.mount.clone()).collect()
    }

    fn files_of_volumes(&self) -> Vec<(String, PathBuf)> {
        self.volumes.iter().map(|volume| (volume.mount.disk.clone(), volume.image.clone())).collect()
    }
}

/// Adds the devices of an image to those of the options.
fn add(devices: &mut Devices, of_image: Devices) -> Result<(), Failure> {
    if devices.vsock.is_some() {
        return Err(Failure::config("vsock", "the VM of an image has its own; leave out --vsock"));
    }
    devices.disks.extend(of_image.disks);
    (devices.vsock, devices.rng) = (of_image.vsock, of_image.rng);
    Ok(())
}

/// Gives all that a snapshot names on the host anew. Its disks have the content that they had.
fn anew(devices: Devices) -> Overrides {
    let Devices { disks, networks, vsock, policy, .. } = devices;
    let disks = disks.into_iter().map(|DiskConfig { id, path, parts, layer, .. }| DiskOverride {
        id,
        path: Some(path).filter(|path| !path.is_none()),
        parts,
        layer,
        changed: Some(ChangedImage::Accept),
        ..DiskOverride::default()
    });
    let networks = networks.into_iter().map(|NetConfig { id, backend, .. }| NetOverride {
        id,
        backend: Some(backend),
        ..NetOverride::default()
    });
    Overrides {
        disks: disks.collect(),
        networks: networks.collect(),
        vsock: vsock.map(|vsock| VsockOverride::default().socket(vsock.socket)),
        console: None,
        policy: Some(policy.map_or(PolicyOverride::Without(Without::None), PolicyOverride::Policy)),
    }
}
