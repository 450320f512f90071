//! Which virtio devices a VM has, and what each is made from. A device's id names it in the API, in errors and in a snapshot.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{FileRef, SocketPath};
use crate::error::{Error, Invalid, Result};

/// Most virtio devices a VM can have: each has an interrupt line of its own.
pub const MAX_DEVICES: usize = 16;

/// A VM's virtio devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Devices {
    /// Disks, in the order in which the guest numbers them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskConfig>,
    /// Network interfaces, in the guest's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<NetConfig>,
    /// A socket between host and guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vsock: Option<VsockConfig>,
    /// Randomness from the host.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rng: bool,
    /// Memory that the guest gives back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balloon: Option<BalloonConfig>,
    /// A console beside the serial port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub console: Option<ConsoleConfig>,
    /// Name the devices on the kernel command line, for kernels that do not find them through ACPI.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub on_cmdline: bool,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskConfig {
    /// Its name.
    pub id: String,
    /// A raw image, or a block device. With a layer it is the base, which is only read and may be shared.
    pub path: FileRef,
    /// The guest cannot write.
    #[serde(default)]
    pub read_only: bool,
    /// When written data is safe.
    #[serde(default)]
    pub cache: Cache,
    /// How the file is read and written.
    #[serde(default)]
    pub engine: Engine,
    /// A layer between the base and the one that is written, only read: in a clone that of its snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beneath: Option<FileRef>,
    /// The file that takes what this VM writes. It is made if it does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<FileRef>,
    /// The most that the layer may hold, in bytes; whole clusters of 64 KiB count. A write beyond it is an
    /// I/O error to the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer_size: Option<u64>,
    /// How fast it may be used.
    #[serde(default, skip_serializing_if = "RateLimit::is_none")]
    pub limit: RateLimit,
}

impl DiskConfig {
    /// Returns the files that the disk names.
    pub fn files_mut(&mut self) -> impl Iterator<Item = &mut FileRef> {
        std::iter::once(&mut self.path).chain(&mut self.beneath).chain(&mut self.layer)
    }

    /// Whether the guest writes to the image itself, and not to a layer over it.
    #[must_use]
    pub fn is_written_in_place(&self) -> bool {
        !self.read_only && self.layer.is_none()
    }

    /// What is to be known of a snapshot of a VM that goes on, where [`DiskConfig::is_written_in_place`].
    #[must_use]
    pub fn warning_of_a_snapshot_while_it_runs(&self) -> String {
        let Self { id, path, .. } = self;
        format!(
            "disk {id}: the guest goes on writing to {path} itself, and the first write makes this snapshot unrestorable \
             (a restore may not notice it if that is a block device); pause the VM and copy the image before it goes on, or give the disk a layer"
        )
    }
}

/// When what the guest wrote is safe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// When the guest flushes.
    #[default]
    Writeback,
    /// When the host pleases: a flush does nothing. For disks that nobody needs after a crash of the host. A process that is killed
    /// loses nothing.
    Unsafe,
}

/// How a disk's file is read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// One request after another.
    #[default]
    Sync,
    /// As many at once as the queue holds.
    IoUring,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetConfig {
    /// Its name.
    pub id: String,
    /// What it is connected to.
    pub backend: NetBackend,
    /// Its hardware address, as `02:00:00:00:00:01`; one is made up from the id unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The longest packet without headers, which the guest is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// Checksums and segmentation are left to the host.
    #[serde(default = "yes")]
    pub offload: bool,
    /// How fast the guest may receive.
    #[serde(default, skip_serializing_if = "RateLimit::is_none")]
    pub receive_limit: RateLimit,
    /// How fast the guest may send.
    #[serde(default, skip_serializing_if = "RateLimit::is_none")]
    pub transmit_limit: RateLimit,
}

/// What a network interface is connected to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum NetBackend {
    /// A tap device of this name, made if there is none.
    Tap(String),
    /// A passt of its own, which needs no privileges: the guest reaches what this process reaches, but for 127.0.0.1.
    Passt {
        /// TCP ports of 127.0.0.1 that lead into the guest: host port and guest port.
        #[serde(default)]
        forward: Vec<(u16, u16)>,
    },
}

/// A socket between host and guest, as Firecracker's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VsockConfig {
    /// The guest's address, 3 or more.
    pub cid: u32,
    /// The unix socket on the host. Where the guest connects to port N, `<socket>_N` must listen.
    pub socket: SocketPath,
}

/// Memory that the guest gives back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BalloonConfig {
    /// How much the guest is asked to give, in MiB.
    pub target_mib: u64,
    /// The guest takes memory back before it kills a process for want of it.
    pub deflate_on_oom: bool,
    /// Seconds between the guest's statistics; none at 0.
    pub statistics_interval: u16,
    /// The guest reports pages as it frees them.
    pub reporting: bool,
    /// The guest hints at its free pages when asked.
    pub hinting: bool,
}

/// A console beside the serial port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsoleConfig {
    /// The unix socket where whoever connects is at the console.
    pub socket: SocketPath,
}

/// How fast something may be used. What is not given is not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RateLimit {
    /// Bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Bucket>,
    /// Requests or packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<Bucket>,
}

/// A token bucket, as Firecracker's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// The most tokens it holds.
    pub size: u64,
    /// Milliseconds in which an empty bucket fills.
    pub refill_time: u64,
    /// Tokens it has in addition, once.
    #[serde(default)]
    pub one_time_burst: u64,
}

fn yes() -> bool {
    true
}

impl RateLimit {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Takes over what `change` has. A bucket that it does not have stays as it is; one without a size, or that fills in no time,
    /// limits nothing any more (so Firecracker's clients have it).
    pub fn change(&mut self, change: &Self) {
        let Self { bandwidth, ops } = change;
        for (bucket, change) in [(&mut self.bandwidth, bandwidth), (&mut self.ops, ops)] {
            *bucket = change.or(*bucket).filter(|bucket| bucket.size > 0 && bucket.refill_time > 0);
        }
    }
}

impl Devices {
    /// Closes what disks were checked by, once they are open.
    pub(crate) fn release_checked(&mut self) {
        self.disks.iter_mut().flat_map(DiskConfig::files_mut).for_each(FileRef::release);
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.disks.len()
            + self.networks.len()
            + usize::from(self.vsock.is_some())
            + usize::from(self.rng)
            + usize::from(self.balloon.is_some())
            + usize::from(self.console.is_some())
    }

    /// Checks every field on its own; files are looked at when they are opened.
    ///
    /// # Errors
    /// [`Error::Config`] names the field and what it may hold.
    pub fn validate(&self) -> Result<()> {
        if self.count() > MAX_DEVICES {
            let problem = Invalid::DeviceCount { given: self.count(), most: MAX_DEVICES };
            return Err(Error::config("devices", problem));
        }
        let refused = |field| move |problem| Error::config(field, problem);
        check_ids(self.disks.iter().map(|disk| &disk.id)).map_err(refused("disks"))?;
        check_ids(self.networks.iter().map(|network| &network.id)).map_err(refused("networks"))?;
        self.disks.iter().try_for_each(DiskConfig::validate).map_err(refused("disks"))?;
        self.vsock.as_ref().map_or(Ok(()), VsockConfig::validate).map_err(refused("vsock cid"))
    }
}

impl DiskConfig {
    fn validate(&self) -> std::result::Result<(), Invalid> {
        let disk = || self.id.clone();
        match (&self.layer, &self.beneath, self.layer_size) {
            (None, Some(_), _) => Err(Invalid::BeneathWithoutLayer { disk: disk() }),
            (None, None, Some(_)) => Err(Invalid::SizeWithoutLayer { disk: disk() }),
            (Some(_), _, Some(bytes)) if bytes < 64 << 10 => Err(Invalid::LayerSize { disk: disk() }),
            _ => Ok(()),
        }
    }
}

impl VsockConfig {
    fn validate(&self) -> std::result::Result<(), Invalid> {
        match self.cid {
            0..3 | u32::MAX => Err(Invalid::ReservedCid { cid: self.cid }),
            _ => Ok(()),
        }
    }
}

/// Checks that every id can name a device, and only one.
fn check_ids<'a>(ids: impl Iterator<Item = &'a String>) -> std::result::Result<(), Invalid> {
    let mut seen = BTreeSet::new();
    for id in ids {
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if id.is_empty() || id.len() > 32 || !id.chars().all(allowed) {
            return Err(Invalid::Id { id: id.clone() });
        }
        if !seen.insert(id) {
            return Err(Invalid::RepeatedId { id: id.clone() });
        }
    }
    Ok(())
}
