//! Firecracker's devices before the start: `/drives`, `/network-interfaces`, `/vsock`, `/entropy`,
//! `/balloon`. `running` changes those of a running VM.

use axum::Router;
use axum::extract::State;
use axum::routing::{any, get, patch, put};
use volt_vmm::VmConfig;
use volt_vmm::config::Devices;
use volt_vmm::config::devices::{DiskConfig, NetConfig};
use volt_vmm::config::metadata::MetadataConfig;

use super::names::balloon::Balloon;
use super::names::devices::{Drive, Entropy, NetworkInterface, RootDevice, Vsock};
use super::names::metadata::MmdsConfig;
use crate::rest::Api;
use crate::rest::body::{Body, Id};
use crate::rest::error::{Fault, StatusOnly};

mod running;

pub(crate) fn routes() -> Router<Api> {
    Router::new()
        .route("/drives/{id}", put(set_drive).patch(running::change_drive).delete(async || removal()))
        .route(
            "/network-interfaces/{id}",
            put(set_network_interface).patch(running::change_network_interface).delete(async || removal()),
        )
        .route("/pmem/{id}", any(async || lacks("pmem", "a drive")))
        .route("/hotplug/memory", any(async || lacks("hotplug/memory", "a balloon")))
        .route("/vsock", put(set_vsock))
        .route("/entropy", put(set_entropy))
        .route("/balloon", get(running::balloon).put(set_balloon).patch(running::change_balloon))
        .route("/balloon/statistics", get(running::statistics).patch(running::change_statistics))
        .route("/balloon/hinting/start", patch(running::start_hinting))
        .route("/balloon/hinting/stop", patch(running::stop_hinting))
        .route("/balloon/hinting/status", get(running::hinting))
}

/// Refuses a device that volt-vmm lacks.
fn lacks(what: &str, substitute: &str) -> Fault {
    Fault::refused(format!("{what}: not supported by volt-vmm; use {substitute}"))
}

/// Refuses to remove a device, as Firecracker does without PCI.
fn removal() -> Fault {
    Fault::refused("cannot remove a device: its bus is MMIO, and only PCI devices can be removed")
}

/// The devices configured so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DeviceDraft {
    pub(crate) devices: Devices,
    /// The drive that is the root device.
    pub(crate) root: Option<RootDevice>,
}

impl DeviceDraft {
    /// Puts the devices into `config`, the root device first, and names it on the kernel command line.
    pub(crate) fn add_to(&self, config: &mut VmConfig) {
        config.devices = self.devices.clone();
        let Some(root) = &self.root else { return };
        let is_root = |disk: &DiskConfig| disk.id == root.id;
        config.devices.disks.sort_by_key(|disk| !is_root(disk));
        if let Some(disk) = config.devices.disks.first().filter(|disk| is_root(disk)) {
            let access = if disk.read_only { "ro" } else { "rw" };
            config.boot.add_to_cmdline(&format!("root={} {access}", root.name()));
        }
    }
}

/// Each part replaces the one that it had before.
impl DeviceDraft {
    /// Adds a drive.
    ///
    /// # Errors
    /// It is a root device, and another drive is one already.
    pub(crate) fn put_drive(&mut self, drive: Drive) -> Result<(), Fault> {
        drive.check()?;
        let Self { devices, root } = self;
        let id = drive.drive_id.clone();
        let was_root = root.as_ref().is_some_and(|root| root.id == id);
        if drive.is_root_device {
            if root.is_some() && !was_root {
                return Err(Fault::refused("is_root_device: another drive is the root device already"));
            }
            *root = Some(RootDevice { id: id.clone(), partuuid: drive.partuuid.clone() });
        } else if was_root {
            *root = None;
        }
        replace(&mut devices.disks, drive.into(), |other| other.id == id);
        Ok(())
    }

    /// Adds a network interface.
    ///
    /// # Errors
    /// It has no backend, or two.
    pub(crate) fn put_network(&mut self, interface: NetworkInterface) -> Result<(), Fault> {
        let network = NetConfig::try_from(interface)?;
        let id = network.id.clone();
        replace(&mut self.devices.networks, network, |other| other.id == id);
        Ok(())
    }

    /// Adds a metadata service for interfaces that were added before.
    ///
    /// # Errors
    /// An interface does not exist, or the address is not link-local.
    pub(crate) fn put_metadata(&mut self, config: MmdsConfig) -> Result<(), Fault> {
        let config = MetadataConfig::from(config);
        let networks = &self.devices.networks;
        config.validate(|id| networks.iter().any(|network| network.id == id))?;
        self.devices.metadata = Some(config);
        Ok(())
    }

    /// Adds a vsock device.
    pub(crate) fn put_vsock(&mut self, vsock: Vsock) {
        self.devices.vsock = Some(vsock.into());
    }

    /// Adds a device for randomness.
    pub(crate) fn put_entropy(&mut self, entropy: Entropy) {
        self.devices.rng = true;
        self.devices.rng_limit = entropy.rate_limiter;
    }

    /// Adds a balloon.
    pub(crate) fn put_balloon(&mut self, balloon: Balloon) {
        self.devices.balloon = Some(balloon.into());
    }
}

impl From<&Devices> for DeviceDraft {
    /// Describes a running VM's devices. Only its kernel command line names the root device.
    fn from(devices: &Devices) -> Self {
        Self { devices: devices.clone(), root: None }
    }
}

/// Refuses a body whose id is not the one in the path.
pub(crate) fn check_id(field: &str, path: &str, body: &str) -> Result<(), Fault> {
    if path == body {
        return Ok(());
    }
    Err(Fault::refused(format!("{field}: {body:?} in the body, but {path:?} in the request path")))
}

/// Replaces the element that `same` recognises, or appends `new`.
fn replace<T>(all: &mut Vec<T>, new: T, same: impl Fn(&T) -> bool) {
    match all.iter_mut().find(|one| same(one)) {
        Some(old) => *old = new,
        None => all.push(new),
    }
}

async fn set_drive(State(api): State<Api>, Id(id): Id, Body(drive): Body<Drive>) -> StatusOnly {
    check_id("drive_id", &id, &drive.drive_id)?;
    api.change_draft("set a drive", |draft| draft.devices.put_drive(drive))
}

async fn set_network_interface(
    State(api): State<Api>,
    Id(id): Id,
    Body(interface): Body<NetworkInterface>,
) -> StatusOnly {
    check_id("iface_id", &id, &interface.iface_id)?;
    api.change_draft("set a network interface", |draft| draft.devices.put_network(interface))
}

async fn set_vsock(State(api): State<Api>, Body(vsock): Body<Vsock>) -> StatusOnly {
    api.change_draft("set the vsock device", |draft| {
        draft.devices.put_vsock(vsock);
        Ok(())
    })
}

async fn set_entropy(State(api): State<Api>, Body(entropy): Body<Entropy>) -> StatusOnly {
    api.change_draft("set the entropy device", |draft| {
        draft.devices.put_entropy(entropy);
        Ok(())
    })
}

async fn set_balloon(State(api): State<Api>, Body(balloon): Body<Balloon>) -> StatusOnly {
    api.change_draft("set the balloon", |draft| {
        draft.devices.put_balloon(balloon);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use volt_vmm::config::devices::{Cache, Engine};

    use super::*;
    use crate::process::vm_slot::Slot;
    use crate::rest::ApiOptions;
    use crate::rest::testing::{Serving, answer, at_once};

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
    fn one_of_two_concurrent_root_drives_is_refused() {
        for _ in 0..100 {
            let api = Api::new(Arc::new(Slot::new()), ApiOptions::default());
            let mut statuses = at_once(&["a", "b", "c", "d"], |id| {
                let drive = json!({"drive_id": id, "path_on_host": "/d", "is_root_device": true});
                let drive = Body(serde_json::from_value(drive).unwrap());
                answer(set_drive(State(api.clone()), Id((*id).to_owned()), drive))
            });
            statuses.sort_unstable();
            assert_eq!(statuses, [204, 400, 400, 400]);
            let DeviceDraft { devices, root } = api.draft().devices;
            assert_eq!(devices.disks.iter().map(|disk| &disk.id).collect::<Vec<_>>(), [&root.unwrap().id]);
        }
    }

    #[test]
    fn the_root_device_comes_first_and_the_kernel_is_told() {
        let disk = |id: &str| {
            let drive = json!({"drive_id": id, "path_on_host": "/d", "is_root_device": false,
                               "is_read_only": true, "io_engine": "Async"});
            DiskConfig::from(serde_json::from_value::<Drive>(drive).unwrap())
        };
        let devices = Devices { disks: vec![disk("data"), disk("root")], ..Devices::default() };
        let root = Some(RootDevice { id: "root".to_owned(), partuuid: None });
        let draft = DeviceDraft { devices, root };
        let mut config = VmConfig::new("/k");
        draft.add_to(&mut config);
        let ids: Vec<_> = config.devices.disks.iter().map(|disk| disk.id.as_str()).collect();
        assert_eq!(ids, ["root", "data"]);
        assert!(config.boot.cmdline.ends_with(" root=/dev/vda ro"), "{}", config.boot.cmdline);
        let partuuid = Some("0eaa91a0-01".to_owned());
        let draft = DeviceDraft { root: draft.root.map(|root| RootDevice { partuuid, ..root }), ..draft };
        "quiet -- /bin/sh".clone_into(&mut config.boot.cmdline);
        draft.add_to(&mut config);
        assert_eq!(config.boot.cmdline, "quiet root=PARTUUID=0eaa91a0-01 ro -- /bin/sh");
        assert_eq!(
            (config.devices.disks[0].cache, config.devices.disks[0].engine),
            (Cache::Writeback, Engine::IoUring)
        );
    }

    #[test]
    fn description_equals_the_requests() {
        let api = Serving::start();
        let interface = r#"{"iface_id":"eth0","mtu":1400,"offload":false,"passt":{"forward":[[8080,80]]}}"#;
        let root = r#"{"drive_id":"root","path_on_host":"/r","is_root_device":true}"#;
        assert_eq!(api.ask("PUT", "/network-interfaces/eth0", interface).0, 204);
        assert_eq!(api.ask("PUT", "/drives/root", root).0, 204);
        let entropy = r#"{"rate_limiter":{"ops":{"size":5,"refill_time":100,"one_time_burst":7}}}"#;
        assert_eq!(api.ask("PUT", "/entropy", entropy).0, 204);
        let found: Value = serde_json::from_str(&api.ask("GET", "/vm/config", "").1).unwrap();
        assert_eq!(found["network-interfaces"][0], serde_json::from_str::<Value>(interface).unwrap());
        assert_eq!(found["drives"][0]["is_root_device"], Value::Bool(true));
        assert_eq!(found["entropy"], serde_json::from_str::<Value>(entropy).unwrap());
        assert!(found.get("console").is_none(), "{found}");
    }

    #[test]
    fn invalid_device_is_refused_by_its_field() {
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
            ("/network-interfaces/e", r#"{"iface_id":"e"}"#, "missing field `host_dev_name`"),
            ("/network-interfaces/e", r#"{"iface_id":"f","host_dev_name":"t"}"#, "iface_id: \"f\""),
            ("/entropy", r#"{"rate_limiter":{"ops":{"size":1}}}"#, "refill_time"),
            ("/pmem/a", "{}", "pmem: not supported"),
            ("/hotplug/memory", "{}", "hotplug/memory: not supported"),
        ] {
            api.refuses("PUT", path, body, 400, words);
        }
        for path in ["/drives/a", "/drives/none", "/network-interfaces/e"] {
            api.refuses("DELETE", path, "", 400, "cannot remove a device: its bus is MMIO");
        }
        let null = r#"{"drive_id":"b","path_on_host":"/d","is_root_device":false,"rate_limiter":
                       {"ops":{"size":1,"refill_time":1,"one_time_burst":null},"bandwidth":null}}"#;
        assert_eq!(api.ask("PUT", "/drives/b", null).0, 204);
        api.refuses("PUT", "/drives/%FF", root, 400, "request path: Invalid URL: Invalid UTF-8");
    }
}
