//! Faults of values in configurations and requests, one variant a rule.

use super::cure::Cure;

/// A fault of a field's value. The field is in [`crate::Error::Config`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// A number of vCPUs that no VM has.
    #[error("{given} asked for; a VM has 1 to {most}")]
    VcpuCount {
        /// The number.
        given: u8,
        /// The largest number.
        most: u8,
    },
    /// A number of vCPUs that are no pairs of threads.
    #[error("{given} asked for, with two threads per core; give 1 or an even number, or turn smt off")]
    OddThreads {
        /// The number.
        given: u8,
    },
    /// A VM without memory.
    #[error("0 MiB asked for; a VM has at least 1")]
    NoMemory,
    /// More memory than an address space has.
    #[error("{mib} MiB is more than a host can map")]
    TooMuchMemory {
        /// MiB asked for.
        mib: u64,
    },
    /// Memory that huge pages cannot make up.
    #[error("{mib} MiB is not a multiple of 2 MiB, the size of a huge page")]
    HugePageSize {
        /// MiB asked for.
        mib: u64,
    },
    /// Huge pages of the host's pool for memory that is mapped from a file.
    #[error(
        "2M needs a memory handler (Uffd), because memory from a file is mapped in the file's small pages; \
         name a handler, or give another kind"
    )]
    HugePagesOfFile,
    /// Huge pages for a restored guest whose memory they cannot make up.
    #[error(
        "the guest has {mib} MiB, which is not a multiple of 2 MiB, the size of a huge page; leave this out, \
         or ask for small pages"
    )]
    HugePagesOfOddMemory {
        /// MiB of the guest.
        mib: u64,
    },
    /// Devices on the kernel command line of a machine with split interrupt controllers.
    #[error(
        "split does not work with devices on the kernel command line: kernels without ACPI need a PIT, and \
         find interrupt lines through PICs or the MP table; use kernel"
    )]
    CmdlineDevicesWithSplit,
    /// More devices than a VM can have.
    #[error("{given} asked for; a VM has at most {most}")]
    DeviceCount {
        /// The number.
        given: usize,
        /// The largest number.
        most: usize,
    },
    /// An id that cannot name a device.
    #[error("id {id:?} must be 1 to 32 letters, digits, _ or -")]
    Id {
        /// The id.
        id: String,
    },
    /// Two devices of one kind with one id.
    #[error("id {id:?} is given twice")]
    RepeatedId {
        /// The id.
        id: String,
    },
    /// A disk without a file.
    #[error("{disk}: has no file; give it a path, or parts")]
    NoImage {
        /// The disk.
        disk: String,
    },
    /// A disk with two images.
    #[error("{disk}: has a path and parts; give one of them")]
    PathAndParts {
        /// The disk.
        disk: String,
    },
    /// More parts than a disk can have.
    #[error("{disk}: has {given} parts; a disk has at most {most}")]
    PartCount {
        /// The disk.
        disk: String,
        /// The number.
        given: usize,
        /// The largest number.
        most: usize,
    },
    /// A disk that would write to its parts.
    #[error("{disk}: its parts are only read; make the disk read-only, or give it a layer")]
    WrittenParts {
        /// The disk.
        disk: String,
    },
    /// A layer between a disk's base and a layer that it lacks.
    #[error("{disk}: has a layer beneath but no layer above it; give the upper layer too")]
    BeneathWithoutLayer {
        /// The disk.
        disk: String,
    },
    /// A size of a layer that the disk lacks.
    #[error("{disk}: has a layer size but no layer; give the layer too")]
    SizeWithoutLayer {
        /// The disk.
        disk: String,
    },
    /// A layer too small for one cluster.
    #[error("{disk}: the size of its layer must be at least 64 KiB, one cluster")]
    LayerSize {
        /// The disk.
        disk: String,
    },
    /// Addresses of a guest that has fixed ones.
    #[error("addresses are for a tap; behind user (passt) or nat, a guest has fixed ones; leave them out")]
    FixedAddresses,
    /// A guest's address that vsock reserves.
    #[error("CID {cid} is reserved; a guest's CID is 3 to 4294967294")]
    ReservedCid {
        /// The address.
        cid: u32,
    },
    /// A metadata service that no guest reaches.
    #[error("no network interface; name one or more")]
    MetadataWithoutNetwork,
    /// An interface of the metadata service that the VM lacks.
    #[error("network interface {id:?} does not exist; add it first")]
    MetadataNetwork {
        /// The id.
        id: String,
    },
    /// An address that the metadata service cannot have.
    #[error("address {address} is not link-local; give one from 169.254.1.0 to 169.254.254.255")]
    MetadataAddress {
        /// The address.
        address: std::net::Ipv4Addr,
    },
    /// A change of metadata that was never put.
    #[error("nothing to change yet; put the whole content first")]
    NoMetadata,
    /// A hardware address that no single interface has.
    #[error("mac {given:?}: {problem}, such as 02:00:00:00:00:01")]
    Mac {
        /// The address.
        given: String,
        /// The fault.
        problem: &'static str,
    },
    /// An MTU that IPv4 does not allow.
    #[error("mtu {given} is less than {least}")]
    Mtu {
        /// The MTU.
        given: u16,
        /// The smallest MTU.
        least: u16,
    },
    /// A name that no tap can have.
    #[error("tap {name:?}: the name of an interface has 1 to 15 characters, no /, : or %")]
    TapName {
        /// The name.
        name: String,
    },
    /// A port that cannot be forwarded.
    #[error("forward {host} to port {guest} of the guest: {problem}")]
    Forward {
        /// Port of the host.
        host: u16,
        /// Port of the guest.
        guest: u16,
        /// The fault.
        problem: &'static str,
    },
    /// A balloon larger than the guest's memory.
    #[error("{given} MiB asked for; the guest has {most}")]
    BalloonTarget {
        /// MiB asked for.
        given: u64,
        /// MiB of the guest.
        most: u64,
    },
    /// A name that no trust group of pagers can have.
    #[error("{name:?} must be 1 to {longest} letters, digits, - or _")]
    PagerGroup {
        /// The name.
        name: String,
        /// Bytes of the longest name.
        longest: usize,
    },
    /// An override of a device that the VM lacks.
    #[error("an override, but the snapshot's VM has no such device")]
    NoSuchDevice,
    /// The same of a device with an id.
    #[error("an override of {id:?}, but the snapshot's VM has no such device")]
    NoSuchId {
        /// The id.
        id: String,
    },
    /// A resource of the host that two VMs would have.
    #[error("child {child} cannot have {resource}, because {} has it", name_of(.owner))]
    Shared {
        /// Number of the clone, from 1.
        child: usize,
        /// The resource, such as `tap tap0`.
        resource: String,
        /// Number of the clone that has it; otherwise the VM itself.
        owner: Option<usize>,
        /// How to give the clone another.
        cures: Vec<Cure>,
    },
    /// A descriptor of this process that a clone in another process would need.
    #[error("{disk}: fd:{fd} is a descriptor of this process only, so child {child} needs a path")]
    OwnDescriptor {
        /// The disk.
        disk: String,
        /// The descriptor.
        fd: i32,
        /// Number of the clone, from 1.
        child: usize,
        /// How to give the clone a path. Boxed, as are some texts, because each `Result` has room for it.
        cure: Box<Cure>,
    },
    /// An image that another process uses.
    #[error("{disk}: {image} is being {conflict}")]
    InUse {
        /// The disk.
        disk: String,
        /// The image.
        image: Box<str>,
        /// Its use, and the process and its command line, if they can be found:
        /// `used by another VM or process (process 7: volt-vmm restore warm)`.
        conflict: Box<str>,
    },
    /// An image that has changed since the snapshot.
    #[error("{disk}: {image} has changed since the snapshot: {difference}")]
    ChangedImage {
        /// The disk.
        disk: String,
        /// The image.
        image: String,
        /// The change.
        difference: Box<str>,
    },
    /// A layer that a killed process left, and that cannot be completed.
    #[error("{disk}: cannot complete layer {layer}, which a killed process left: {problem}")]
    IncompleteLayer {
        /// The disk.
        disk: String,
        /// The layer.
        layer: String,
        /// The cause.
        problem: Box<str>,
    },
    /// An option of packing without a compression.
    #[error("needs compress, which selects how memory is packed")]
    WithoutCompression {
        /// The option.
        option: &'static str,
    },
    /// A saving that is no percentage.
    #[error("{percent} percent asked for; a saving is 0 to 100 percent")]
    Saving {
        /// The saving.
        percent: u8,
    },
    /// A packed diff.
    #[error("a diff cannot be packed; merge it into its base, then convert the merged snapshot")]
    PackedDiff,
    /// Packed memory in a file of the caller's choice.
    #[error("memory in a file of its own is not packed; leave this out, or take the snapshot as a directory")]
    PackedFile,
    /// A layer, which only a snapshot's directory has room for.
    #[error("{disk} has a layer, which only a snapshot directory has room for; take the snapshot as one")]
    LayerBesideFiles {
        /// The disk.
        disk: String,
    },
    /// A snapshot that may not pause the guest.
    #[error("0 allows no pause, but a snapshot needs one; give 1 or more, or leave it out")]
    NoPause,
    /// A pager for memory that is unpacked before it could serve any.
    #[error(
        "a pager unpacks memory when it is touched, but unpack asks for all memory in advance; give one of \
         them"
    )]
    PagerWithUnpack,
    /// A pager for memory that is to be shared with no other VM.
    #[error(
        "isolate_base gives this VM a base of its own, but a pager shares one between VMs; give one of them"
    )]
    PagerWithIsolation,
    /// A CPU template with needs that this host does not meet.
    #[error(
        "{template}needs from this host what its KVM does not offer a guest: {lacking}; clear these bits, \
         leave them open (x), or choose another template"
    )]
    TemplateNeeds {
        /// The template's name and a space, if it has one.
        template: Box<str>,
        /// The features, by name.
        lacking: Box<str>,
    },
    /// An act on a snapshot's memory, which only a memory handler has.
    #[error("a memory handler has this snapshot's memory; open the snapshot with its memory file")]
    HandlerAlone,
    /// A memory handler, and another way to fill memory.
    #[error(
        "the memory handler alone fills this VM's memory, when it is touched; leave out pager, unpack, \
         isolate_base and record"
    )]
    HandlerWithOther,
    /// Trimming without statistics of the balloon.
    #[error("trimming needs the balloon's statistics, which tell how much memory the guest can spare")]
    NoStatistics,
    /// Any other fault.
    #[error("{0}")]
    Other(String),
}

fn name_of(owner: &Option<usize>) -> String {
    owner.map_or_else(|| "the VM itself".to_owned(), |number| format!("child {number}"))
}

impl Invalid {
    /// Returns changes that would mend it, apart from another value for the field.
    #[must_use]
    pub fn cures(&self) -> Vec<Cure> {
        match self {
            Self::Shared { cures, .. } => cures.clone(),
            Self::OwnDescriptor { cure, .. } => vec![(**cure).clone()],
            Self::InUse { disk, .. } => vec![Cure::DiskPath { id: disk.clone() }, Cure::AllowShared],
            Self::ChangedImage { disk, .. } => {
                vec![Cure::FormerImage { id: disk.clone() }, Cure::ChangedImage { id: disk.clone() }]
            }
            Self::IncompleteLayer { layer, .. } => vec![Cure::CompletedLayer { layer: layer.clone() }],
            Self::NoStatistics => vec![Cure::BalloonStatistics],
            Self::WithoutCompression { option } => {
                vec![Cure::Compression, Cure::LeaveOut { field: (*option).to_owned() }]
            }
            _ => Vec::new(),
        }
    }
}

impl From<String> for Invalid {
    fn from(problem: String) -> Self {
        Self::Other(problem)
    }
}

impl From<&str> for Invalid {
    fn from(problem: &str) -> Self {
        Self::Other(problem.to_owned())
    }
}
