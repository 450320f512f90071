//! Configuration of virtio devices, as the library, `/v1` and the configuration file have it. A device's id
//! names it in the API, in errors and in a snapshot.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize, Serializer};
use volt_policy::{IpNet, Policy};

use super::metadata::MetadataConfig;
use super::{FileRef, MIB, SocketPath};
use crate::error::{Error, Invalid, Result};
use crate::metadata::MetadataStore;

/// Most virtio devices of a VM: each has its own interrupt line.
pub const MAX_DEVICES: usize = 16;
/// Most parts of a disk: each takes descriptors of the host.
pub const MAX_PARTS: usize = 1024;

/// A VM's virtio devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(not(feature = "internal"), non_exhaustive)]
pub struct Devices {
    /// Disks, in the order in which the guest numbers them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskConfig>,
    /// Network interfaces, in the guest's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<NetConfig>,
    /// The metadata service of some of the interfaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<MetadataConfig>,
    /// Targets that the guest may reach through its network interfaces. Without a policy, all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// The socket between host and guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vsock: Option<VsockConfig>,
    /// Randomness from the host.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rng: bool,
    /// Limit of the randomness.
    #[serde(skip_serializing_if = "RateLimit::is_none")]
    pub rng_limit: RateLimit,
    /// The balloon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balloon: Option<BalloonConfig>,
    /// The console beside the serial port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub console: Option<ConsoleConfig>,
    /// Describes the devices on the kernel command line, for kernels without ACPI.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub on_cmdline: bool,
    /// Lets the VM have disks and sockets that another VM has. A choice of each restore
    /// ([`crate::RestoreOptions::allow_shared`]), which no snapshot keeps.
    #[serde(skip)]
    pub allow_shared: bool,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(feature = "internal"), non_exhaustive)]
pub struct DiskConfig {
    /// Its name.
    pub id: String,
    /// A raw image or a block device. With a layer it is the base, which is only read, so VMs can share it.
    #[serde(default, skip_serializing_if = "FileRef::is_none")]
    pub path: FileRef,
    /// In place of `path`: files and block devices that make up the image, one after another. They are only
    /// read. Each has whole sectors of 512 bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<FileRef>,
    /// Refuses the guest's writes.
    #[serde(default)]
    pub read_only: bool,
    /// When written data reaches the disk.
    #[serde(default)]
    pub cache: Cache,
    /// How the file is accessed.
    #[serde(default)]
    pub engine: Engine,
    /// A read-only layer between the base and `layer`: in a clone, the layer of its snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beneath: Option<FileRef>,
    /// The file that takes this VM's writes; created if it does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<FileRef>,
    /// Largest size of the layer in bytes; whole clusters of 64 KiB count. A write beyond it is an I/O error
    /// in the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer_size: Option<u64>,
    /// Rate limit of its requests.
    #[serde(default, skip_serializing_if = "RateLimit::is_none")]
    pub limit: RateLimit,
}

impl DiskConfig {
    /// Returns the files that the disk names.
    pub fn files_mut(&mut self) -> impl Iterator<Item = &mut FileRef> {
        image_of(&mut self.path, &mut self.parts).chain(&mut self.beneath).chain(&mut self.layer)
    }

    /// Returns the files of the image: one, or its parts.
    pub fn image(&self) -> impl Iterator<Item = &FileRef> {
        Some(&self.path).filter(|path| !path.is_none()).into_iter().chain(&self.parts)
    }

    /// Returns the files of the image, mutably.
    pub fn image_mut(&mut self) -> impl Iterator<Item = &mut FileRef> {
        image_of(&mut self.path, &mut self.parts)
    }

    /// Returns the image's name for messages.
    #[must_use]
    pub fn image_name(&self) -> String {
        match &self.parts[..] {
            [] => self.path.to_string(),
            [part] => part.to_string(),
            [first, rest @ ..] => format!("{first} and the {} parts after it", rest.len()),
        }
    }

    /// Whether the guest writes to the image itself, not to a layer over it.
    #[must_use]
    pub fn is_written_in_place(&self) -> bool {
        !self.read_only && self.layer.is_none()
    }

    /// Returns the warning for a snapshot of a VM that goes on writing in place
    /// ([`DiskConfig::is_written_in_place`]).
    #[must_use]
    pub fn warning_of_a_snapshot_while_it_runs(&self) -> String {
        let Self { id, path, .. } = self; // parts are not written
        format!(
            "disk {id}: the running guest writes to {path} directly, and its first write makes this \
             snapshot unrestorable (a restore may not detect the write if {path} is a block device); pause \
             the VM and copy the image before the VM resumes, or give the disk a layer"
        )
    }
}

fn image_of<'a>(path: &'a mut FileRef, parts: &'a mut [FileRef]) -> impl Iterator<Item = &'a mut FileRef> {
    Some(path).filter(|path| !path.is_none()).into_iter().chain(parts)
}

/// When written data reaches the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// A flush of the guest waits for it.
    #[default]
    Writeback,
    /// A flush does nothing: the host writes when it likes. For disks that a crash of the host may lose. The
    /// end of the process loses nothing.
    Unsafe,
}

/// How a disk's file is accessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// By one request after another.
    #[default]
    Sync,
    /// By io_uring, with as many requests at once as the queue holds.
    IoUring,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(feature = "internal"), non_exhaustive)]
pub struct NetConfig {
    /// Its name.
    pub id: String,
    /// Its other end on the host.
    pub backend: NetBackend,
    /// Its hardware address, such as `02:00:00:00:00:01`; made from the id if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Longest packet without headers, in bytes, as the guest reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// Leaves checksums and segmentation to the host.
    #[serde(default = "yes")]
    pub offload: bool,
    /// With passt, leads questions for names at the resolver of [`user_network`](super::user_network) to the
    /// host's resolver. A guest must not combine it with DHCP: passt of before July 2024 then answers from
    /// another address than the guest has asked. Other backends ignore it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dns_forward: bool,
    /// With a tap, the addresses or networks that the guest may have, such as `172.16.0.2/32`. Under a
    /// policy, frames with others are dropped. Without one given, any address passes that no other machine
    /// has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub addresses: Vec<IpNet>,
    /// Rate limit of packets to the guest.
    #[serde(default, skip_serializing_if = "RateLimit::is_none")]
    pub receive_limit: RateLimit,
    /// Rate limit of packets from the guest.
    #[serde(default, skip_serializing_if = "RateLimit::is_none")]
    pub transmit_limit: RateLimit,
}

/// The other end of a network interface on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum NetBackend {
    /// The tap device of this name, created if it does not exist.
    Tap(String),
    /// An open descriptor of a tap with a header for offloads (`IFF_VNET_HDR`) and no other one
    /// (`IFF_NO_PI`). Only a program or a command line can give one: a file or a request that names it is
    /// refused.
    #[serde(rename = "tap", skip_deserializing, serialize_with = "as_descriptor")]
    TapDescriptor(#[cfg_attr(feature = "openapi", schema(value_type = String))] i32),
    /// A process of passt, which needs no privileges. The guest reaches all that this process reaches, except
    /// 127.0.0.1. Its addresses are those of [`user_network`](super::user_network), also by DHCP.
    Passt {
        /// TCP ports of 127.0.0.1 that lead to ports of the guest: host port, guest port.
        #[serde(default)]
        forward: Vec<(u16, u16)>,
    },
    /// A network of the host's kernel with address translation, which needs CAP_NET_ADMIN and CAP_SYS_ADMIN.
    /// The guest reaches all that the host reaches. Its addresses are those of
    /// [`user_network`](super::user_network), which DHCP and router advertisements of the device tell too.
    /// A clone has a network of its own.
    Nat {},
}

/// A socket between host and guest, with Firecracker's protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(feature = "internal"), non_exhaustive)]
pub struct VsockConfig {
    /// The guest's address, 3 or more.
    pub cid: u32,
    /// The unix socket on the host. A connection of the guest to port N goes to `<socket>_N`.
    pub socket: SocketPath,
}

/// A balloon, which takes memory that the guest returns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(not(feature = "internal"), non_exhaustive)]
pub struct BalloonConfig {
    /// MiB that the guest is asked to return.
    pub target_mib: u64,
    /// Lets the guest take memory back before it kills a process for lack of memory.
    pub deflate_on_oom: bool,
    /// Seconds between the guest's statistics; 0 for no statistics.
    pub statistics_interval: u16,
    /// Lets the guest report pages as it frees them.
    pub reporting: bool,
    /// Lets the guest hint at free pages on request.
    pub hinting: bool,
}

/// A console beside the serial port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(feature = "internal"), non_exhaustive)]
pub struct ConsoleConfig {
    /// The unix socket whose client is at the console.
    pub socket: SocketPath,
}

/// A rate limit. A missing bucket limits nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(not(feature = "internal"), non_exhaustive)]
pub struct RateLimit {
    /// Bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Bucket>,
    /// Requests or packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<Bucket>,
}

/// A token bucket, with Firecracker's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(feature = "internal"), non_exhaustive)]
pub struct Bucket {
    /// Tokens of a full bucket.
    pub size: u64,
    /// Milliseconds that an empty bucket takes to fill.
    pub refill_time: u64,
    /// Additional tokens at the start, which are not refilled.
    #[serde(default)]
    pub one_time_burst: u64,
}

/// Writes a descriptor so that it is read as a name that no tap can have.
#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference
fn as_descriptor<S: Serializer>(number: &i32, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("fd:{number}"))
}

fn yes() -> bool {
    true
}

impl RateLimit {
    /// Whether it limits nothing.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Replaces the buckets that `change` has. As in Firecracker, a bucket with a size or refill time of 0
    /// removes the limit.
    pub fn change(&mut self, change: &Self) {
        let Self { bandwidth, ops } = change;
        for (bucket, change) in [(&mut self.bandwidth, bandwidth), (&mut self.ops, ops)] {
            *bucket = change.or(*bucket).filter(|bucket| bucket.size > 0 && bucket.refill_time > 0);
        }
    }
}

impl Devices {
    /// Lets the VM have disks and sockets that another VM has.
    pub(crate) fn allow_shared(&mut self) {
        self.allow_shared = true;
        let vsock = self.vsock.iter_mut().map(|vsock| &mut vsock.socket);
        let console = self.console.iter_mut().map(|console| &mut console.socket);
        vsock.chain(console).for_each(SocketPath::replace);
    }

    /// Gives the metadata service this data, if the VM has the service.
    pub fn set_metadata_store(&mut self, store: &MetadataStore) {
        if let Some(service) = &mut self.metadata {
            service.store = store.clone();
        }
    }

    /// Closes the descriptors through which disks were checked, once the disks are open.
    pub(crate) fn release_checked(&mut self) {
        self.disks.iter_mut().flat_map(DiskConfig::files_mut).for_each(FileRef::release);
    }

    /// Whether no field is set.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Counts the devices.
    #[must_use]
    pub fn count(&self) -> usize {
        self.disks.len()
            + self.networks.len()
            + usize::from(self.vsock.is_some())
            + usize::from(self.rng)
            + usize::from(self.balloon.is_some())
            + usize::from(self.console.is_some())
    }

    /// Checks the fields; files are checked when they are opened.
    ///
    /// # Errors
    /// [`Error::Config`] names the field and the rule.
    pub fn validate(&self) -> Result<()> {
        if self.count() > MAX_DEVICES {
            let problem = Invalid::DeviceCount { given: self.count(), most: MAX_DEVICES };
            return Err(Error::config("devices", problem));
        }
        let refused = |field| move |problem| Error::config(field, problem);
        check_ids(self.disks.iter().map(|disk| &disk.id)).map_err(refused("disks"))?;
        check_ids(self.networks.iter().map(|network| &network.id)).map_err(refused("networks"))?;
        self.disks.iter().try_for_each(DiskConfig::validate).map_err(refused("disks"))?;
        self.networks.iter().try_for_each(NetConfig::validate).map_err(refused("networks"))?;
        let has_network = |id: &str| self.networks.iter().any(|network| network.id == id);
        self.metadata.as_ref().map_or(Ok(()), |metadata| metadata.validate(has_network))?;
        self.policy
            .as_ref()
            .map_or(Ok(()), Policy::check)
            .map_err(|problem| Error::config("policy", problem.to_string()))?;
        self.vsock.as_ref().map_or(Ok(()), VsockConfig::validate).map_err(refused("vsock cid"))
    }
}

impl DiskConfig {
    fn validate(&self) -> std::result::Result<(), Invalid> {
        let (disk, given) = (|| self.id.clone(), self.parts.len());
        match (self.path.is_none(), given > 0) {
            (true, false) => return Err(Invalid::NoImage { disk: disk() }),
            (false, true) => return Err(Invalid::PathAndParts { disk: disk() }),
            (true, true) if given > MAX_PARTS => {
                return Err(Invalid::PartCount { disk: disk(), given, most: MAX_PARTS });
            }
            (true, true) if self.is_written_in_place() => {
                return Err(Invalid::WrittenParts { disk: disk() });
            }
            _ => {}
        }
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

/// Returns a balloon's target in pages, for a guest with `memory_mib` MiB.
///
/// # Errors
/// [`Error::Config`] if the target is more than the guest's memory.
pub(crate) fn balloon_pages(target_mib: u64, memory_mib: u64) -> Result<u32> {
    let pages = target_mib.checked_mul(MIB / 4096).and_then(|pages| u32::try_from(pages).ok());
    pages.filter(|_| target_mib <= memory_mib).ok_or_else(|| {
        Error::config("balloon target_mib", Invalid::BalloonTarget { given: target_mib, most: memory_mib })
    })
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn refusal(disk: DiskConfig) -> String {
        let devices = Devices { disks: vec![disk], ..Devices::default() };
        devices.validate().unwrap_err().to_string()
    }

    #[test]
    fn disk_has_one_file_or_parts_that_are_only_read() {
        let parts =
            |count: usize| DiskConfig::of_parts("root", (0..count).map(|n| PathBuf::from(format!("/{n}"))));
        let valid =
            |disk: DiskConfig| Devices { disks: vec![disk], ..Devices::default() }.validate().unwrap();
        valid(parts(1).read_only());
        valid(parts(MAX_PARTS).read_only());
        valid(parts(2).layer("/layer"));
        for (disk, why) in [
            (parts(0).read_only(), "has no file; give it a path, or parts"),
            (DiskConfig { path: "/a".into(), ..parts(1).read_only() }, "has a path and parts"),
            (parts(2), "its parts are only read; make the disk read-only, or give it a layer"),
            (parts(MAX_PARTS + 1).read_only(), "has 1025 parts; a disk has at most 1024"),
        ] {
            let error = refusal(disk);
            assert!(error.starts_with("disks: root: ") && error.contains(why), "{error}");
        }
    }

    #[test]
    fn disk_writes_the_one_of_path_and_parts_that_it_has() {
        let written = |disk: &DiskConfig| serde_json::to_string(disk).unwrap();
        let (one, parts) = (DiskConfig::new("a", "/a"), DiskConfig::of_parts("b", ["/a", "/b"]));
        assert!(!written(&one).contains("parts"), "{}", written(&one));
        assert!(written(&parts).contains(r#""parts":["/a","/b"]"#), "{}", written(&parts));
        assert!(!written(&parts).contains("path"), "{}", written(&parts));
        for disk in [one, parts] {
            assert_eq!(serde_json::from_str::<DiskConfig>(&written(&disk)).unwrap(), disk);
        }
    }
}
