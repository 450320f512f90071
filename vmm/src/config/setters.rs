//! Constructors and setters of the configuration, for programs. A field that no setter changes has the
//! default of a configuration file.

use volt_policy::{IpNet, Policy};

use super::devices::{
    BalloonConfig, Bucket, Cache, ConsoleConfig, Devices, DiskConfig, Engine, NetBackend, NetConfig,
    RateLimit, VsockConfig,
};
use super::metadata::MetadataConfig;
use super::overrides::{ChangedImage, DiskOverride, NetOverride, Overrides, VsockOverride};
use super::{CpuTemplate, FileRef, HugePages, IrqchipKind, SocketPath, VmConfig};

impl VmConfig {
    /// The initial RAM disk.
    #[must_use]
    pub fn initrd(mut self, initrd: impl Into<FileRef>) -> Self {
        self.boot.initrd = Some(initrd.into());
        self
    }

    /// The kernel command line.
    #[must_use]
    pub fn cmdline(mut self, cmdline: impl Into<String>) -> Self {
        self.boot.cmdline = cmdline.into();
        self
    }

    /// Number of vCPUs.
    #[must_use]
    pub fn vcpus(mut self, vcpus: u8) -> Self {
        self.vcpus = vcpus;
        self
    }

    /// Whether each two vCPUs are threads of one core.
    #[must_use]
    pub fn smt(mut self, smt: bool) -> Self {
        self.smt = smt;
        self
    }

    /// Guest memory in MiB.
    #[must_use]
    pub fn memory_mib(mut self, memory_mib: u64) -> Self {
        self.memory_mib = memory_mib;
        self
    }

    /// Size of the pages under guest memory.
    #[must_use]
    pub fn huge_pages(mut self, huge_pages: HugePages) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Location of the interrupt controllers.
    #[must_use]
    pub fn irqchip(mut self, irqchip: IrqchipKind) -> Self {
        self.irqchip = irqchip;
        self
    }

    /// Whether a restore, a fork or a rewind gives the guest a new generation id.
    #[must_use]
    pub fn vmgenid(mut self, vmgenid: bool) -> Self {
        self.vmgenid = vmgenid;
        self
    }

    /// Whether the time of the boot is logged.
    #[must_use]
    pub fn boot_timer(mut self, boot_timer: bool) -> Self {
        self.boot_timer = boot_timer;
        self
    }

    /// Changes of the CPU that the guest sees.
    #[must_use]
    pub fn cpu_template(mut self, template: CpuTemplate) -> Self {
        self.cpu_template = Some(Box::new(template));
        self
    }

    /// Virtio devices.
    #[must_use]
    pub fn devices(mut self, devices: Devices) -> Self {
        self.devices = devices;
        self
    }
}

impl Devices {
    /// Adds a disk.
    #[must_use]
    pub fn disk(mut self, disk: DiskConfig) -> Self {
        self.disks.push(disk);
        self
    }

    /// Adds a network interface.
    #[must_use]
    pub fn network(mut self, network: NetConfig) -> Self {
        self.networks.push(network);
        self
    }

    /// The metadata service of some of the interfaces.
    #[must_use]
    pub fn metadata(mut self, metadata: MetadataConfig) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// Targets that the guest may reach through its network interfaces.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// The socket between host and guest.
    #[must_use]
    pub fn vsock(mut self, vsock: VsockConfig) -> Self {
        self.vsock = Some(vsock);
        self
    }

    /// Randomness from the host.
    #[must_use]
    pub fn rng(mut self) -> Self {
        self.rng = true;
        self
    }

    /// The balloon.
    #[must_use]
    pub fn balloon(mut self, balloon: BalloonConfig) -> Self {
        self.balloon = Some(balloon);
        self
    }

    /// The console beside the serial port.
    #[must_use]
    pub fn console(mut self, console: ConsoleConfig) -> Self {
        self.console = Some(console);
        self
    }

    /// Describes the devices on the kernel command line, for kernels without ACPI.
    #[must_use]
    pub fn on_cmdline(mut self) -> Self {
        self.on_cmdline = true;
        self
    }
}

impl DiskConfig {
    /// A writable disk over the image at `path`.
    #[must_use]
    pub fn new(id: impl Into<String>, path: impl Into<FileRef>) -> Self {
        Self {
            id: id.into(),
            path: path.into(),
            parts: Vec::new(),
            read_only: false,
            cache: Cache::default(),
            engine: Engine::default(),
            beneath: None,
            layer: None,
            layer_size: None,
            limit: RateLimit::default(),
        }
    }

    /// A disk of these files, one after another. It has to become read-only, or gets a layer.
    #[must_use]
    pub fn of_parts<T: Into<FileRef>>(id: impl Into<String>, parts: impl IntoIterator<Item = T>) -> Self {
        let parts = parts.into_iter().map(Into::into).collect();
        Self { parts, ..Self::new(id, FileRef::default()) }
    }

    /// Refuses the guest's writes.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// When written data reaches the disk.
    #[must_use]
    pub fn cache(mut self, cache: Cache) -> Self {
        self.cache = cache;
        self
    }

    /// How the file is accessed.
    #[must_use]
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }

    /// A read-only layer between the base and the layer.
    #[must_use]
    pub fn beneath(mut self, beneath: impl Into<FileRef>) -> Self {
        self.beneath = Some(beneath.into());
        self
    }

    /// The file that takes this VM's writes; created if it does not exist.
    #[must_use]
    pub fn layer(mut self, layer: impl Into<FileRef>) -> Self {
        self.layer = Some(layer.into());
        self
    }

    /// Largest size of the layer in bytes.
    #[must_use]
    pub fn layer_size(mut self, layer_size: u64) -> Self {
        self.layer_size = Some(layer_size);
        self
    }

    /// Rate limit of its requests.
    #[must_use]
    pub fn limit(mut self, limit: RateLimit) -> Self {
        self.limit = limit;
        self
    }
}

impl NetConfig {
    /// A network interface with the other end `backend`.
    #[must_use]
    pub fn new(id: impl Into<String>, backend: NetBackend) -> Self {
        Self {
            id: id.into(),
            backend,
            mac: None,
            mtu: None,
            offload: true,
            dns_forward: false,
            addresses: Vec::new(),
            receive_limit: RateLimit::default(),
            transmit_limit: RateLimit::default(),
        }
    }

    /// Its hardware address.
    #[must_use]
    pub fn mac(mut self, mac: impl Into<String>) -> Self {
        self.mac = Some(mac.into());
        self
    }

    /// Longest packet without headers, in bytes.
    #[must_use]
    pub fn mtu(mut self, mtu: u16) -> Self {
        self.mtu = Some(mtu);
        self
    }

    /// Whether the host computes checksums and segments packets.
    #[must_use]
    pub fn offload(mut self, offload: bool) -> Self {
        self.offload = offload;
        self
    }

    /// Whether passt leads the guest's questions for names to the host's resolver.
    #[must_use]
    pub fn dns_forward(mut self, dns_forward: bool) -> Self {
        self.dns_forward = dns_forward;
        self
    }

    /// Addresses or networks that the guest may have, with a tap.
    #[must_use]
    pub fn addresses(mut self, addresses: impl IntoIterator<Item = IpNet>) -> Self {
        self.addresses = addresses.into_iter().collect();
        self
    }

    /// Rate limit of packets to the guest.
    #[must_use]
    pub fn receive_limit(mut self, receive_limit: RateLimit) -> Self {
        self.receive_limit = receive_limit;
        self
    }

    /// Rate limit of packets from the guest.
    #[must_use]
    pub fn transmit_limit(mut self, transmit_limit: RateLimit) -> Self {
        self.transmit_limit = transmit_limit;
        self
    }
}

impl VsockConfig {
    /// A guest with the address `cid`, whose connections go to `socket`.
    #[must_use]
    pub fn new(cid: u32, socket: impl Into<SocketPath>) -> Self {
        Self { cid, socket: socket.into() }
    }
}

impl BalloonConfig {
    /// MiB that the guest is asked to return.
    #[must_use]
    pub fn target_mib(mut self, target_mib: u64) -> Self {
        self.target_mib = target_mib;
        self
    }

    /// Lets the guest take memory back before it kills a process for lack of memory.
    #[must_use]
    pub fn deflate_on_oom(mut self) -> Self {
        self.deflate_on_oom = true;
        self
    }

    /// Seconds between the guest's statistics.
    #[must_use]
    pub fn statistics_interval(mut self, seconds: u16) -> Self {
        self.statistics_interval = seconds;
        self
    }

    /// Lets the guest report pages as it frees them.
    #[must_use]
    pub fn reporting(mut self) -> Self {
        self.reporting = true;
        self
    }

    /// Lets the guest hint at free pages on request.
    #[must_use]
    pub fn hinting(mut self) -> Self {
        self.hinting = true;
        self
    }
}

impl ConsoleConfig {
    /// A console for the client of `socket`.
    #[must_use]
    pub fn new(socket: impl Into<SocketPath>) -> Self {
        Self { socket: socket.into() }
    }
}

impl RateLimit {
    /// Limits bytes.
    #[must_use]
    pub fn bandwidth(mut self, bandwidth: Bucket) -> Self {
        self.bandwidth = Some(bandwidth);
        self
    }

    /// Limits requests or packets.
    #[must_use]
    pub fn ops(mut self, ops: Bucket) -> Self {
        self.ops = Some(ops);
        self
    }
}

impl Bucket {
    /// A bucket of `size` tokens that takes `refill_time` milliseconds to fill.
    #[must_use]
    pub fn new(size: u64, refill_time: u64) -> Self {
        Self { size, refill_time, one_time_burst: 0 }
    }

    /// Additional tokens at the start, which are not refilled.
    #[must_use]
    pub fn one_time_burst(mut self, one_time_burst: u64) -> Self {
        self.one_time_burst = one_time_burst;
        self
    }
}

impl Overrides {
    /// Adds an override of a disk.
    #[must_use]
    pub fn disk(mut self, disk: DiskOverride) -> Self {
        self.disks.push(disk);
        self
    }

    /// Adds an override of a network interface.
    #[must_use]
    pub fn network(mut self, network: NetOverride) -> Self {
        self.networks.push(network);
        self
    }

    /// Another socket or address for the socket device.
    #[must_use]
    pub fn vsock(mut self, vsock: VsockOverride) -> Self {
        self.vsock = Some(vsock);
        self
    }

    /// Another socket for the console beside the serial port.
    #[must_use]
    pub fn console(mut self, console: ConsoleConfig) -> Self {
        self.console = Some(console);
        self
    }
}

impl DiskOverride {
    /// Changes nothing yet of the disk `id`.
    #[must_use]
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), ..Self::default() }
    }

    /// The image, or with a layer the base.
    #[must_use]
    pub fn path(mut self, path: impl Into<FileRef>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// The parts of the image, in place of a path.
    #[must_use]
    pub fn parts<T: Into<FileRef>>(mut self, parts: impl IntoIterator<Item = T>) -> Self {
        self.parts = parts.into_iter().map(Into::into).collect();
        self
    }

    /// The file that takes this clone's writes.
    #[must_use]
    pub fn layer(mut self, layer: impl Into<FileRef>) -> Self {
        self.layer = Some(layer.into());
        self
    }

    /// Largest size of that file, in bytes.
    #[must_use]
    pub fn layer_size(mut self, layer_size: u64) -> Self {
        self.layer_size = Some(layer_size);
        self
    }

    /// Rate limit of its requests.
    #[must_use]
    pub fn limit(mut self, limit: RateLimit) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Uses an image that has changed since the snapshot ([`ChangedImage::Accept`]).
    #[must_use]
    pub fn accept_changed(mut self) -> Self {
        self.changed = Some(ChangedImage::Accept);
        self
    }
}

impl NetOverride {
    /// Changes nothing yet of the interface `id`.
    #[must_use]
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), ..Self::default() }
    }

    /// Its other end on the host.
    #[must_use]
    pub fn backend(mut self, backend: NetBackend) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Its hardware address. A running guest does not read it again by itself.
    #[must_use]
    pub fn mac(mut self, mac: impl Into<String>) -> Self {
        self.mac = Some(mac.into());
        self
    }

    /// Rate limit of packets to the guest.
    #[must_use]
    pub fn receive_limit(mut self, receive_limit: RateLimit) -> Self {
        self.receive_limit = Some(receive_limit);
        self
    }

    /// Rate limit of packets from the guest.
    #[must_use]
    pub fn transmit_limit(mut self, transmit_limit: RateLimit) -> Self {
        self.transmit_limit = Some(transmit_limit);
        self
    }
}

impl VsockOverride {
    /// The guest's address.
    #[must_use]
    pub fn cid(mut self, cid: u32) -> Self {
        self.cid = Some(cid);
        self
    }

    /// The unix socket on the host.
    #[must_use]
    pub fn socket(mut self, socket: impl Into<SocketPath>) -> Self {
        self.socket = Some(socket.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setters_say_what_a_configuration_file_says() {
        let text = r#"{"boot":{"kernel":"/k","initrd":"/i"},"vcpus":2,"memory_mib":64,"devices":{
            "disks":[{"id":"a","path":"/a","layer":"/l","limit":{"ops":{"size":5,"refill_time":100}}},
                     {"id":"b","path":"/b","read_only":true,"engine":"io_uring"}],
            "networks":[{"id":"n","backend":{"tap":"t"},"mtu":1400}],
            "vsock":{"cid":3,"socket":"/v"},"rng":true,"balloon":{"target_mib":8,"reporting":true},
            "console":{"socket":"/c"}}}"#;
        let ops = RateLimit::default().ops(Bucket::new(5, 100));
        let devices = Devices::default()
            .disk(DiskConfig::new("a", "/a").layer("/l").limit(ops))
            .disk(DiskConfig::new("b", "/b").read_only().engine(Engine::IoUring))
            .network(NetConfig::new("n", NetBackend::Tap("t".to_owned())).mtu(1400))
            .vsock(VsockConfig::new(3, "/v"))
            .rng()
            .balloon(BalloonConfig::default().target_mib(8).reporting())
            .console(ConsoleConfig::new("/c"));
        let config = VmConfig::new("/k").initrd("/i").vcpus(2).memory_mib(64).devices(devices);
        assert_eq!(config, serde_json::from_str(text).unwrap());
    }

    #[test]
    fn setters_say_what_a_request_for_overrides_says() {
        let text = r#"{"disks":[{"id":"a","layer":"/l","changed":"accept"}],
            "networks":[{"id":"n","mac":"02:00:00:00:00:01"}],
            "vsock":{"cid":7,"socket":"/v"},"console":{"socket":"/c"}}"#;
        let overrides = Overrides::default()
            .disk(DiskOverride::new("a").layer("/l").accept_changed())
            .network(NetOverride::new("n").mac("02:00:00:00:00:01"))
            .vsock(VsockOverride::default().cid(7).socket("/v"))
            .console(ConsoleConfig::new("/c"));
        assert_eq!(overrides, serde_json::from_str(text).unwrap());
    }
}
