//! Firecracker's devices before the start: `/drives`, `/network-interfaces`, `/vsock`, `/entropy` and `/balloon`, in its words.
//! What can be changed afterwards is in `running_devices`.

use std::path::PathBuf;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, patch, put};
use serde::{Deserialize, Serialize};
use volt_vmm::config::Devices;
use volt_vmm::config::devices::{
    BalloonConfig, Cache, DiskConfig, Engine, NetBackend, NetConfig, RateLimit, VsockConfig,
};
use volt_vmm::{FileRef, VmConfig};

use crate::rest::Api;
use crate::rest::body::Body;
use crate::rest::error::Fault;

#[path = "running_devices.rs"]
mod running;

type Done = Result<StatusCode, Fault>;

pub(crate) fn routes() -> Router<Api> {
    Router::new()
        .route("/drives/{id}", put(set_drive).patch(running::change_drive))
        .route(
            "/network-interfaces/{id}",
            put(set_network_interface).patch(running::change_network_interface),
        )
        .route("/vsock", put(set_vsock))
        .route("/entropy", put(set_entropy))
        .route("/balloon", get(running::balloon).put(set_balloon).patch(running::change_balloon))
        .route("/balloon/statistics", get(running::statistics))
        .route("/balloon/hinting/start", patch(running::start_hinting))
        .route("/balloon/hinting/stop", patch(running::stop_hinting))
        .route("/balloon/hinting/status", get(running::hinting))
}

/// `PUT /drives/{drive_id}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Drive {
    drive_id: String,
    path_on_host: FileRef,
    pub(crate) is_root_device: bool,
    #[serde(default)]
    pub(crate) is_read_only: bool,
    #[serde(default)]
    cache_type: CacheType,
    #[serde(default)]
    io_engine: IoEngine,
    #[serde(default, skip_serializing_if = "RateLimit::is_none")]
    rate_limiter: RateLimit,
    /// volt-vmm's own: a layer between the image and the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    beneath_path: Option<FileRef>,
    /// volt-vmm's own: the file that takes what the guest writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    layer_path: Option<FileRef>,
    /// volt-vmm's own: the most that it may hold, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    layer_size: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum CacheType {
    /// As a client that names it expects: a flush does nothing.
    Unsafe,
    /// The default, unlike Firecracker's: what a guest has flushed survives a crash of the host unless the client says otherwise.
    #[default]
    Writeback,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum IoEngine {
    #[default]
    Sync,
    Async,
}

/// `PUT /network-interfaces/{iface_id}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkInterface {
    iface_id: String,
    host_dev_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    guest_mac: Option<String>,
    #[serde(default, skip_serializing_if = "RateLimit::is_none")]
    rx_rate_limiter: RateLimit,
    #[serde(default, skip_serializing_if = "RateLimit::is_none")]
    tx_rate_limiter: RateLimit,
}

/// `PUT /vsock`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Vsock {
    guest_cid: u32,
    uds_path: PathBuf,
    /// Deprecated by Firecracker, and still sent by its clients.
    #[serde(default, skip_serializing)]
    #[allow(dead_code)]
    vsock_id: Option<String>,
}

/// `PUT /entropy`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entropy {
    #[serde(default)]
    rate_limiter: RateLimit,
}

/// `PUT /balloon`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Balloon {
    amount_mib: u64,
    deflate_on_oom: bool,
    #[serde(default)]
    stats_polling_interval_s: u16,
    #[serde(default)]
    free_page_hinting: bool,
    #[serde(default)]
    free_page_reporting: bool,
}

/// The devices configured so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Drafted {
    pub(crate) drives: Vec<Drive>,
    pub(crate) networks: Vec<NetworkInterface>,
    pub(crate) vsock: Option<Vsock>,
    pub(crate) balloon: Option<Balloon>,
    pub(crate) entropy: bool,
}

impl Drafted {
    /// Puts them into `config`. The root device comes first, and the kernel is told of it.
    pub(crate) fn add_to(&self, config: &mut VmConfig) {
        let mut drives = self.drives.clone();
        drives.sort_by_key(|drive| !drive.is_root_device);
        if let Some(root) = drives.first().filter(|drive| drive.is_root_device) {
            let access = if root.is_read_only { "ro" } else { "rw" };
            config.boot.cmdline.push_str(&format!(" root=/dev/vda {access}"));
        }
        config.devices.disks = drives.into_iter().map(DiskConfig::from).collect();
        config.devices.networks = self.networks.iter().cloned().map(NetConfig::from).collect();
        config.devices.vsock = self
            .vsock
            .clone()
            .map(|vsock| VsockConfig { cid: vsock.guest_cid, socket: vsock.uds_path.into() });
        config.devices.balloon = self.balloon.clone().map(BalloonConfig::from);
        config.devices.rng = self.entropy;
    }
}

impl From<&Devices> for Drafted {
    /// What the running VM has. Which drive is the root device is not known any more: the kernel was told on its command line.
    fn from(devices: &Devices) -> Self {
        let drive = |disk: &DiskConfig| Drive {
            drive_id: disk.id.clone(),
            path_on_host: disk.path.clone(),
            is_root_device: false,
            is_read_only: disk.read_only,
            cache_type: match disk.cache {
                Cache::Unsafe => CacheType::Unsafe,
                Cache::Writeback => CacheType::Writeback,
            },
            io_engine: match disk.engine {
                Engine::Sync => IoEngine::Sync,
                Engine::IoUring => IoEngine::Async,
            },
            rate_limiter: disk.limit.clone(),
            beneath_path: disk.beneath.clone(),
            layer_path: disk.layer.clone(),
            layer_size: disk.layer_size,
        };
        let network = |network: &NetConfig| NetworkInterface {
            iface_id: network.id.clone(),
            host_dev_name: match &network.backend {
                NetBackend::Tap(name) => name.clone(),
                NetBackend::Passt { .. } => "passt".to_owned(),
            },
            guest_mac: network.mac.clone(),
            rx_rate_limiter: network.receive_limit.clone(),
            tx_rate_limiter: network.transmit_limit.clone(),
        };
        let vsock = |vsock: &VsockConfig| Vsock {
            guest_cid: vsock.cid,
            uds_path: vsock.socket.as_path().to_owned(),
            vsock_id: None,
        };
        let balloon = |balloon: &BalloonConfig| Balloon {
            amount_mib: balloon.target_mib,
            deflate_on_oom: balloon.deflate_on_oom,
            stats_polling_interval_s: balloon.statistics_interval,
            free_page_hinting: balloon.hinting,
            free_page_reporting: balloon.reporting,
        };
        Self {
            drives: devices.disks.iter().map(drive).collect(),
            networks: devices.networks.iter().map(network).collect(),
            vsock: devices.vsock.as_ref().map(vsock),
            balloon: devices.balloon.as_ref().map(balloon),
            entropy: devices.rng,
        }
    }
}

impl From<Drive> for DiskConfig {
    fn from(drive: Drive) -> Self {
        Self {
            id: drive.drive_id,
            path: drive.path_on_host,
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

impl From<NetworkInterface> for NetConfig {
    fn from(interface: NetworkInterface) -> Self {
        Self {
            id: interface.iface_id,
            backend: NetBackend::Tap(interface.host_dev_name),
            mac: interface.guest_mac,
            mtu: None,
            offload: true,
            receive_limit: interface.rx_rate_limiter,
            transmit_limit: interface.tx_rate_limiter,
        }
    }
}

impl From<Balloon> for BalloonConfig {
    fn from(balloon: Balloon) -> Self {
        Self {
            target_mib: balloon.amount_mib,
            deflate_on_oom: balloon.deflate_on_oom,
            statistics_interval: balloon.stats_polling_interval_s,
            reporting: balloon.free_page_reporting,
            hinting: balloon.free_page_hinting,
        }
    }
}

/// The id in the path and that in the body must be one.
pub(crate) fn check_id(field: &str, path: &str, body: &str) -> Result<(), Fault> {
    if path == body {
        return Ok(());
    }
    Err(Fault::refused(format!("{field}: {body:?}, but the path says {path:?}")))
}

/// Puts `new` in the place of the one that `same` recognises, or behind the others.
fn replace<T>(all: &mut Vec<T>, new: T, same: impl Fn(&T) -> bool) {
    match all.iter_mut().find(|one| same(one)) {
        Some(old) => *old = new,
        None => all.push(new),
    }
}

async fn set_drive(State(api): State<Api>, Path(id): Path<String>, Body(drive): Body<Drive>) -> Done {
    check_id("drive_id", &id, &drive.drive_id)?;
    let other_root = |other: &Drive| other.is_root_device && other.drive_id != id;
    if drive.is_root_device && api.draft().devices.drives.iter().any(other_root) {
        return Err(Fault::refused("is_root_device: another drive is the root device already"));
    }
    api.change_draft("set a drive", |draft| {
        replace(&mut draft.devices.drives, drive, |other| other.drive_id == id);
    })
}

async fn set_network_interface(
    State(api): State<Api>,
    Path(id): Path<String>,
    Body(interface): Body<NetworkInterface>,
) -> Done {
    check_id("iface_id", &id, &interface.iface_id)?;
    api.change_draft("set a network interface", |draft| {
        replace(&mut draft.devices.networks, interface, |other| other.iface_id == id);
    })
}

async fn set_vsock(State(api): State<Api>, Body(vsock): Body<Vsock>) -> Done {
    api.change_draft("set the vsock device", |draft| draft.devices.vsock = Some(vsock))
}

async fn set_entropy(State(api): State<Api>, Body(entropy): Body<Entropy>) -> Done {
    if !entropy.rate_limiter.is_none() {
        return Err(Fault::refused("rate_limiter: not supported here; leave it out"));
    }
    api.change_draft("set the entropy device", |draft| draft.devices.entropy = true)
}

async fn set_balloon(State(api): State<Api>, Body(balloon): Body<Balloon>) -> Done {
    api.change_draft("set the balloon", |draft| draft.devices.balloon = Some(balloon))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::testing::Serving;

    #[test]
    fn devices_are_configured_one_by_one() {
        let api = Serving::start();
        for (path, body) in [
            ("/drives/data", r#"{"drive_id":"data","path_on_host":"/d","is_root_device":false}"#),
            (
                "/drives/root",
                r#"{"drive_id":"root","path_on_host":"/r","is_root_device":true,"is_read_only":true}"#,
            ),
            ("/network-interfaces/eth0", r#"{"iface_id":"eth0","host_dev_name":"tap0"}"#),
            ("/vsock", r#"{"vsock_id":"v","guest_cid":3,"uds_path":"/v.sock"}"#),
            ("/entropy", "{}"),
            ("/balloon", r#"{"amount_mib":64,"deflate_on_oom":true,"free_page_reporting":true}"#),
        ] {
            assert_eq!(api.ask("PUT", path, body).0, 204, "{path}");
        }
        let (_, found) = api.ask("GET", "/vm/config", "");
        for words in
            [r#""drive_id":"root""#, r#""host_dev_name":"tap0""#, r#""guest_cid":3"#, r#""amount_mib":64"#]
        {
            assert!(found.contains(words), "{words}: {found}");
        }
    }

    #[test]
    fn cache_is_what_the_client_names_and_otherwise_writeback() {
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
    fn the_root_device_comes_first_and_the_kernel_is_told() {
        let drive = |id: &str, root| Drive {
            drive_id: id.to_owned(),
            path_on_host: FileRef::from("/d"),
            is_root_device: root,
            is_read_only: true,
            cache_type: CacheType::default(),
            io_engine: IoEngine::Async,
            rate_limiter: RateLimit::default(),
            beneath_path: None,
            layer_path: None,
            layer_size: None,
        };
        let drafted =
            Drafted { drives: vec![drive("data", false), drive("root", true)], ..Drafted::default() };
        let mut config = VmConfig::new("/k");
        drafted.add_to(&mut config);
        let ids: Vec<_> = config.devices.disks.iter().map(|disk| disk.id.as_str()).collect();
        assert_eq!(ids, ["root", "data"]);
        assert!(config.boot.cmdline.ends_with(" root=/dev/vda ro"), "{}", config.boot.cmdline);
        assert_eq!(
            (config.devices.disks[0].cache, config.devices.disks[0].engine),
            (Cache::Writeback, Engine::IoUring)
        );
    }

    #[test]
    fn what_does_not_fit_is_refused_by_its_field() {
        let api = Serving::start();
        let root = r#"{"drive_id":"a","path_on_host":"/d","is_root_device":true}"#;
        assert_eq!(api.ask("PUT", "/drives/a", root).0, 204);
        assert_eq!(api.ask("PUT", "/drives/a", root).0, 204, "the same once more");
        for (path, body, words) in [
            ("/drives/b", root, "drive_id: \"a\""),
            ("/drives/b", r#"{"drive_id":"b","path_on_host":"/d","is_root_device":true}"#, "another drive"),
            (
                "/drives/b",
                r#"{"drive_id":"b","path_on_host":"/d","is_root_device":false,"x":1}"#,
                "unknown field `x`",
            ),
            ("/drives/b", r#"{"drive_id":"b","is_root_device":false}"#, "missing field `path_on_host`"),
            ("/network-interfaces/e", r#"{"iface_id":"f","host_dev_name":"t"}"#, "iface_id: \"f\""),
            ("/entropy", r#"{"rate_limiter":{"ops":{"size":1,"refill_time":1}}}"#, "rate_limiter"),
        ] {
            api.refuses("PUT", path, body, 400, words);
        }
    }
}
