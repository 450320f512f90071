//! Names of devices. Each device has one type here, which converts both ways and loses nothing.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use volt_vmm::FileRef;
use volt_vmm::config::Devices;
use volt_vmm::config::devices::{
    Cache, ConsoleConfig, DiskConfig, Engine, NetBackend, NetConfig, RateLimit, VsockConfig,
};
use volt_vmm::policy::IpNet;

use super::balloon::Balloon;
use super::metadata::MmdsConfig;
use super::{null_as_default, rate_limiter};
use crate::rest::error::Fault;

/// A disk: `PUT /drives/{drive_id}`, except for `is_root_device`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Drive {
    pub(crate) drive_id: String,
    path_on_host: FileRef,
    /// Not part of a disk: the draft keeps it, and the kernel command line names the root device.
    pub(crate) is_root_device: bool,
    /// Names the root device on the kernel command line by its partition. Not part of a disk either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) partuuid: Option<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    is_read_only: bool,
    #[serde(default)]
    cache_type: CacheType,
    #[serde(default, deserialize_with = "null_as_default")]
    io_engine: IoEngine,
    #[serde(default, deserialize_with = "rate_limiter::limit", skip_serializing_if = "RateLimit::is_none")]
    rate_limiter: RateLimit,
    /// Firecracker's, of a kind of drive that volt-vmm lacks.
    #[serde(default, skip_serializing)]
    socket: Option<String>,
    /// volt-vmm's own, as are the next two: `beneath`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    beneath_path: Option<FileRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    layer_path: Option<FileRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    layer_size: Option<u64>,
}

/// The default is volt-vmm's, unlike Firecracker's: flushed data survives a crash of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum CacheType {
    Unsafe,
    #[default]
    Writeback,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum IoEngine {
    #[default]
    Sync,
    Async,
}

impl Drive {
    /// Refuses a drive of another process.
    ///
    /// # Errors
    /// Names the field.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        match self.socket {
            Some(_) => Err(Fault::refused(
                "socket: volt-vmm has no vhost-user-block; give path_on_host in its place",
            )),
            None => Ok(()),
        }
    }
}

impl From<Drive> for DiskConfig {
    fn from(drive: Drive) -> Self {
        Self {
            id: drive.drive_id,
            path: drive.path_on_host,
            parts: Vec::new(),
            read_only: drive.is_read_only,
            cache: match drive.cache_type {
                CacheType::Unsafe => Cache::Unsafe,
                CacheType::Writeback => Cache::Writeback,
            },
            engine: match drive.io_engine {
                IoEngine::Sync => Engine::Sync,
                IoEngine::Async => Engine::IoUring,
            },
            beneath: drive.beneath_path,
            layer: drive.layer_path,
            layer_size: drive.layer_size,
            limit: drive.rate_limiter,
        }
    }
}

impl From<DiskConfig> for Drive {
    fn from(disk: DiskConfig) -> Self {
        // Firecracker has no name for parts: a disk of parts has an empty path here.
        let DiskConfig { id, path, parts: _, read_only, cache, engine, beneath, layer, layer_size, limit } =
            disk;
        Self {
            drive_id: id,
            path_on_host: path,
            is_root_device: false,
            partuuid: None,
            is_read_only: read_only,
            cache_type: match cache {
                Cache::Unsafe => CacheType::Unsafe,
                Cache::Writeback => CacheType::Writeback,
            },
            io_engine: match engine {
                Engine::Sync => IoEngine::Sync,
                Engine::IoUring => IoEngine::Async,
            },
            rate_limiter: limit,
            socket: None,
            beneath_path: beneath,
            layer_path: layer,
            layer_size,
        }
    }
}

/// A network interface: `PUT /network-interfaces/{iface_id}`. It has a tap, `host_dev_name`, or a
/// passt or a nat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkInterface {
    pub(crate) iface_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host_dev_name: Option<String>,
    /// volt-vmm's own, in place of a tap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    passt: Option<Passt>,
    /// volt-vmm's own, in place of a tap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nat: Option<Nat>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    guest_mac: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mtu: Option<u16>,
    /// volt-vmm's own.
    #[serde(default = "enabled", skip_serializing_if = "is_enabled")]
    offload: bool,
    /// volt-vmm's own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    dns_forward: bool,
    /// volt-vmm's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    addresses: Vec<IpNet>,
    #[serde(default, deserialize_with = "rate_limiter::limit", skip_serializing_if = "RateLimit::is_none")]
    rx_rate_limiter: RateLimit,
    #[serde(default, deserialize_with = "rate_limiter::limit", skip_serializing_if = "RateLimit::is_none")]
    tx_rate_limiter: RateLimit,
}

/// [`NetBackend::Passt`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Passt {
    #[serde(default)]
    forward: Vec<(u16, u16)>,
}

/// [`NetBackend::Nat`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nat {}

fn enabled() -> bool {
    true
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference
fn is_enabled(offload: &bool) -> bool {
    *offload
}

impl TryFrom<NetworkInterface> for NetConfig {
    type Error = Fault;

    fn try_from(interface: NetworkInterface) -> Result<Self, Fault> {
        let backend = match (interface.host_dev_name, interface.passt, interface.nat) {
            (Some(tap), None, None) => NetBackend::Tap(tap),
            (None, Some(Passt { forward }), None) => NetBackend::Passt { forward },
            (None, None, Some(Nat {})) => NetBackend::Nat {},
            (None, None, None) => {
                return Err(Fault::refused(
                    "request body: missing field `host_dev_name` (or `passt`, or `nat`)",
                ));
            }
            (Some(_), Some(_), None) => {
                return Err(Fault::refused("passt: cannot be combined with host_dev_name; give one of them"));
            }
            (_, _, Some(_)) => {
                return Err(Fault::refused(
                    "nat: cannot be combined with host_dev_name or passt; give one of them",
                ));
            }
        };
        Ok(Self {
            id: interface.iface_id,
            backend,
            mac: interface.guest_mac,
            mtu: interface.mtu,
            offload: interface.offload,
            dns_forward: interface.dns_forward,
            addresses: interface.addresses,
            receive_limit: interface.rx_rate_limiter,
            transmit_limit: interface.tx_rate_limiter,
        })
    }
}

impl From<NetConfig> for NetworkInterface {
    fn from(network: NetConfig) -> Self {
        let NetConfig { id, backend, mac, mtu, offload, dns_forward, addresses, .. } = network.clone();
        let NetConfig { receive_limit, transmit_limit, .. } = network;
        let (host_dev_name, passt, nat) = match backend {
            NetBackend::Tap(tap) => (Some(tap), None, None),
            NetBackend::TapDescriptor(number) => (Some(format!("fd:{number}")), None, None),
            NetBackend::Passt { forward } => (None, Some(Passt { forward }), None),
            NetBackend::Nat {} => (None, None, Some(Nat {})),
        };
        Self {
            iface_id: id,
            host_dev_name,
            passt,
            nat,
            guest_mac: mac,
            mtu,
            offload,
            dns_forward,
            addresses,
            rx_rate_limiter: receive_limit,
            tx_rate_limiter: transmit_limit,
        }
    }
}

/// The socket between host and guest: `PUT /vsock`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Vsock {
    guest_cid: u32,
    uds_path: PathBuf,
    /// Deprecated by Firecracker, still sent by its clients, and ignored.
    #[serde(default, skip_serializing, rename = "vsock_id")]
    _vsock_id: Option<String>,
}

impl From<Vsock> for VsockConfig {
    fn from(vsock: Vsock) -> Self {
        Self { cid: vsock.guest_cid, socket: vsock.uds_path.into() }
    }
}

impl From<VsockConfig> for Vsock {
    fn from(VsockConfig { cid, socket }: VsockConfig) -> Self {
        Self { guest_cid: cid, uds_path: socket.as_path().to_owned(), _vsock_id: None }
    }
}

/// The console beside the serial port. volt-vmm's own, and only described.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConsoleSocket {
    uds_path: PathBuf,
}

impl From<ConsoleSocket> for ConsoleConfig {
    fn from(console: ConsoleSocket) -> Self {
        Self { socket: console.uds_path.into() }
    }
}

impl From<ConsoleConfig> for ConsoleSocket {
    fn from(ConsoleConfig { socket }: ConsoleConfig) -> Self {
        Self { uds_path: socket.as_path().to_owned() }
    }
}

/// The device for randomness: `PUT /entropy`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entropy {
    #[serde(default, deserialize_with = "rate_limiter::limit", skip_serializing_if = "RateLimit::is_none")]
    pub(crate) rate_limiter: RateLimit,
}

/// The root device: a drive, by the name of a partition if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RootDevice {
    pub(crate) id: String,
    pub(crate) partuuid: Option<String>,
}

impl RootDevice {
    /// The value of `root=` on the kernel command line. The root device is the first disk.
    pub(crate) fn name(&self) -> String {
        self.partuuid.as_ref().map_or_else(|| "/dev/vda".to_owned(), |uuid| format!("PARTUUID={uuid}"))
    }
}

/// Describes all devices, as parts of `GET /vm/config`, with the root device if it is known.
pub(crate) fn describe(devices: Devices, root: Option<&RootDevice>) -> Value {
    let Devices {
        disks,
        networks,
        metadata,
        policy,
        vsock,
        rng,
        rng_limit,
        balloon,
        console,
        on_cmdline,
        allow_shared: _,
    } = devices;
    let drive = |disk: DiskConfig| {
        let root = root.filter(|root| root.id == disk.id);
        let partuuid = root.and_then(|root| root.partuuid.clone());
        Drive { is_root_device: root.is_some(), partuuid, ..Drive::from(disk) }
    };
    let mut described = json!({
        "drives": disks.into_iter().map(drive).collect::<Vec<_>>(),
        "network-interfaces": networks.into_iter().map(NetworkInterface::from).collect::<Vec<_>>(),
        "vsock": vsock.map(Vsock::from),
        "balloon": balloon.map(Balloon::from),
    });
    if let Some(metadata) = metadata {
        described["mmds-config"] = json!(MmdsConfig::from(metadata));
    }
    if rng {
        described["entropy"] = json!(Entropy { rate_limiter: rng_limit });
    }
    if let Some(console) = console {
        described["console"] = json!(ConsoleSocket::from(console));
    }
    // volt-vmm's own.
    if on_cmdline {
        described["devices_on_cmdline"] = json!(true);
    }
    if let Some(policy) = policy {
        described["policy"] = json!(policy);
    }
    described
}

/// A change of a drive: `PATCH /drives/{drive_id}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DriveChange {
    pub(crate) drive_id: String,
    pub(crate) path_on_host: Option<FileRef>,
    #[serde(default, deserialize_with = "rate_limiter::change")]
    pub(crate) rate_limiter: Option<RateLimit>,
}

/// A change of a network interface: `PATCH /network-interfaces/{iface_id}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkInterfaceChange {
    pub(crate) iface_id: String,
    #[serde(default, deserialize_with = "rate_limiter::change")]
    pub(crate) rx_rate_limiter: Option<RateLimit>,
    #[serde(default, deserialize_with = "rate_limiter::change")]
    pub(crate) tx_rate_limiter: Option<RateLimit>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_compose, prop_oneof, proptest};
    use serde::de::DeserializeOwned;
    use volt_vmm::config::devices::{BalloonConfig, Bucket};
    use volt_vmm::config::metadata::MetadataConfig;
    use volt_vmm::policy::Policy;

    use super::*;
    use crate::rest::firecracker::names::testing::{files, through_a_body};

    fn buckets() -> impl Strategy<Value = Option<Bucket>> {
        let bucket = |(size, refill_time, one_time_burst)| Bucket { size, refill_time, one_time_burst };
        proptest::option::of(any::<(u64, u64, u64)>().prop_map(bucket))
    }

    fn limits() -> impl Strategy<Value = RateLimit> {
        (buckets(), buckets()).prop_map(|(bandwidth, ops)| RateLimit { bandwidth, ops })
    }

    prop_compose! {
        fn disks()(
            id in "[a-z]{1,8}",
            path in "/[a-z]{1,8}",
            read_only: bool,
            is_unsafe: bool,
            is_ring: bool,
            beneath in files(),
            layer in files(),
            layer_size: Option<u64>,
            limit in limits(),
        ) -> DiskConfig {
            let cache = if is_unsafe { Cache::Unsafe } else { Cache::Writeback };
            let engine = if is_ring { Engine::IoUring } else { Engine::Sync };
            let path = FileRef::from(&path);
            let parts = Vec::new();
            DiskConfig { id, path, parts, read_only, cache, engine, beneath, layer, layer_size, limit }
        }
    }

    fn backends() -> impl Strategy<Value = NetBackend> {
        prop_oneof![
            "(passt|tap[0-9])".prop_map(NetBackend::Tap),
            any::<Vec<(u16, u16)>>().prop_map(|forward| NetBackend::Passt { forward }),
            Just(NetBackend::Nat {}),
        ]
    }

    prop_compose! {
        fn networks()(
            id in "[a-z]{1,8}",
            backend in backends(),
            mac in proptest::option::of("02(:[0-9a-f]{2}){5}"),
            mtu: Option<u16>,
            offload: bool,
            dns_forward: bool,
            has_address: bool,
            receive_limit in limits(),
            transmit_limit in limits(),
        ) -> NetConfig {
            let addresses = has_address.then(|| "172.16.0.2/32".parse().unwrap()).into_iter().collect();
            NetConfig {
                id, backend, mac, mtu, offload, dns_forward, addresses, receive_limit, transmit_limit,
            }
        }
    }

    prop_compose! {
        fn balloons()(
            target_mib: u64,
            deflate_on_oom: bool,
            statistics_interval: u16,
            reporting: bool,
            hinting: bool,
        ) -> BalloonConfig {
            BalloonConfig { target_mib, deflate_on_oom, statistics_interval, reporting, hinting }
        }
    }

    proptest! {
        #[test]
        fn a_device_survives_firecrackers_names(
            disk in disks(),
            network in networks(),
            balloon in balloons(),
            cid: u32,
            socket in "/[a-z]{1,8}",
        ) {
            let vsock = VsockConfig { cid, socket: PathBuf::from(&socket).into() };
            let console = ConsoleConfig { socket: PathBuf::from(&socket).into() };
            prop_assert_eq!(DiskConfig::from(through_a_body::<_, Drive>(&disk)), disk);
            let interface = through_a_body::<_, NetworkInterface>(&network);
            prop_assert_eq!(NetConfig::try_from(interface).unwrap(), network);
            prop_assert_eq!(VsockConfig::from(through_a_body::<_, Vsock>(&vsock)), vsock);
            prop_assert_eq!(ConsoleConfig::from(through_a_body::<_, ConsoleSocket>(&console)), console);
            prop_assert_eq!(BalloonConfig::from(through_a_body::<_, Balloon>(&balloon)), balloon);
        }

        #[test]
        fn devices_survive_v1_and_a_configuration_file(
            disks in proptest::collection::vec(disks(), 0..3),
            networks in proptest::collection::vec(networks(), 0..3),
            balloon in proptest::option::of(balloons()),
            has_metadata: bool,
            has_policy: bool,
            cid: Option<u32>,
            rng: bool,
            rng_limit in limits(),
            on_cmdline: bool,
            has_console: bool,
        ) {
            let socket = || PathBuf::from("/socket").into();
            let metadata = has_metadata.then(|| MetadataConfig::new(["eth0"]).require_token());
            let vsock = cid.map(|cid| VsockConfig { cid, socket: socket() });
            let console = has_console.then(|| ConsoleConfig { socket: socket() });
            let (allow_shared, rng_limit) = (false, if rng { rng_limit } else { RateLimit::default() });
            let devices = Devices {
                disks,
                networks,
                metadata,
                policy: has_policy.then(Policy::default),
                vsock,
                rng,
                rng_limit,
                balloon,
                console,
                on_cmdline,
                allow_shared,
            };
            let body = serde_json::to_string(&devices).unwrap();
            prop_assert_eq!(serde_json::from_str::<Devices>(&body).unwrap(), devices.clone());
            prop_assert_eq!(described(&describe(devices.clone(), None)), devices);
        }
    }

    /// Reads a description of devices.
    fn described(description: &Value) -> Devices {
        fn part<T: DeserializeOwned>(description: &Value, name: &str) -> T {
            serde_json::from_value(description[name].clone()).unwrap()
        }
        let networks: Vec<NetworkInterface> = part(description, "network-interfaces");
        Devices {
            disks: part::<Vec<Drive>>(description, "drives").into_iter().map(DiskConfig::from).collect(),
            networks: networks.into_iter().map(|network| NetConfig::try_from(network).unwrap()).collect(),
            metadata: part::<Option<MmdsConfig>>(description, "mmds-config").map(MetadataConfig::from),
            policy: part(description, "policy"),
            vsock: part::<Option<Vsock>>(description, "vsock").map(VsockConfig::from),
            rng: part::<Option<Entropy>>(description, "entropy").is_some(),
            rng_limit: part::<Option<Entropy>>(description, "entropy").unwrap_or_default().rate_limiter,
            balloon: part::<Option<Balloon>>(description, "balloon").map(BalloonConfig::from),
            console: part::<Option<ConsoleSocket>>(description, "console").map(ConsoleConfig::from),
            on_cmdline: part::<Option<bool>>(description, "devices_on_cmdline").is_some(),
            allow_shared: false,
        }
    }

    #[test]
    fn cache_is_writeback_unless_the_client_names_another() {
        for (named, expected) in [
            ("", Cache::Writeback),
            (r#","cache_type":"Writeback""#, Cache::Writeback),
            (r#","cache_type":"Unsafe""#, Cache::Unsafe),
        ] {
            let drive = format!(r#"{{"drive_id":"a","path_on_host":"/d","is_root_device":false{named}}}"#);
            let drive: Drive = serde_json::from_str(&drive).unwrap();
            assert_eq!(DiskConfig::from(drive).cache, expected, "{named}");
        }
    }

    #[test]
    fn interface_has_a_tap_or_a_passt() {
        let convert = |more: &str| {
            let body = format!(r#"{{"iface_id":"e"{more}}}"#);
            NetConfig::try_from(serde_json::from_str::<NetworkInterface>(&body).unwrap())
        };
        let forward = vec![(8080, 80)];
        let network = convert(r#","passt":{"forward":[[8080,80]]},"offload":false,"mtu":1400"#).unwrap();
        assert_eq!(
            (network.backend, network.offload, network.mtu),
            (NetBackend::Passt { forward }, false, Some(1400))
        );
        let network = convert(r#","host_dev_name":"passt""#).unwrap();
        assert_eq!((network.backend, network.offload), (NetBackend::Tap("passt".to_owned()), true));
        convert("").unwrap_err();
        convert(r#","host_dev_name":"t","passt":{}"#).unwrap_err();
    }
}
