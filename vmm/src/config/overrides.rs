//! Differences between clones of one snapshot: the files, taps and sockets of devices, and their rate limits.
//! They change the configuration before a machine is made from it, never the saved state.

use serde::{Deserialize, Serialize};
use volt_policy::{IpNet, Policy};

use super::devices::{ConsoleConfig, Devices, NetBackend, NetConfig, RateLimit};
use super::{FileRef, SocketPath};
use crate::error::{Error, Invalid, Result};

/// Changes to a snapshot's devices. A field that is not given stays as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(not(feature = "internal"), non_exhaustive)]
pub struct Overrides {
    /// Disks.
    pub disks: Vec<DiskOverride>,
    /// Network interfaces.
    pub networks: Vec<NetOverride>,
    /// The socket device.
    pub vsock: Option<VsockOverride>,
    /// Another socket for the console beside the serial port.
    pub console: Option<ConsoleConfig>,
    /// Another policy of the network interfaces, in place of the whole one.
    pub policy: Option<PolicyOverride>,
}

/// Another policy of the network interfaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum PolicyOverride {
    /// This one.
    Policy(Policy),
    /// `"none"`: the guest may reach all that the interfaces reach.
    Without(Without),
}

/// The absence of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Without {
    /// There is none.
    None,
}

/// Another file for a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(feature = "internal"), non_exhaustive)]
pub struct DiskOverride {
    /// The disk.
    pub id: String,
    /// The image, or with a layer the base. Its content must be that at the time of the snapshot.
    #[serde(default)]
    pub path: Option<FileRef>,
    /// The parts of the image, in place of `path`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<FileRef>,
    /// The file that takes this clone's writes.
    #[serde(default)]
    pub layer: Option<FileRef>,
    /// Largest size of that file, in bytes.
    #[serde(default)]
    pub layer_size: Option<u64>,
    /// Rate limit of its requests.
    #[serde(default)]
    pub limit: Option<RateLimit>,
    /// How to treat an image that has changed since the snapshot.
    #[serde(default)]
    pub changed: Option<ChangedImage>,
}

impl DiskOverride {
    /// Returns the files that the override names.
    pub fn files_mut(&mut self) -> impl Iterator<Item = &mut FileRef> {
        self.path.iter_mut().chain(&mut self.parts).chain(&mut self.layer)
    }

    /// Whether it replaces the image.
    #[must_use]
    pub fn has_image(&self) -> bool {
        self.path.is_some() || !self.parts.is_empty()
    }
}

/// Treatment of an image that has changed since the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ChangedImage {
    /// Uses it. The guest's file system may find a disk that contradicts its memory.
    Accept,
}

/// Another backend, address or rate limit for a network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(feature = "internal"), non_exhaustive)]
pub struct NetOverride {
    /// The interface.
    pub id: String,
    /// Its other end on the host.
    #[serde(default)]
    pub backend: Option<NetBackend>,
    /// Its hardware address. A running guest does not read it again by itself.
    #[serde(default)]
    pub mac: Option<String>,
    /// With a tap, the addresses or networks that the guest may have. An empty list leaves those of before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub addresses: Vec<IpNet>,
    /// Rate limit of packets to the guest.
    #[serde(default)]
    pub receive_limit: Option<RateLimit>,
    /// Rate limit of packets from the guest.
    #[serde(default)]
    pub transmit_limit: Option<RateLimit>,
}

/// Another socket, or another address, for the socket device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(feature = "internal"), non_exhaustive)]
pub struct VsockOverride {
    /// The guest's address. The reset of its connections tells the guest.
    #[serde(default)]
    pub cid: Option<u32>,
    /// The unix socket on the host.
    #[serde(default)]
    pub socket: Option<SocketPath>,
}

impl Overrides {
    /// Changes `devices`, those of a snapshot.
    ///
    /// # Errors
    /// [`Error::Config`] if a device does not exist, the changed devices are invalid, or a network had a
    /// descriptor of the process that ran the VM, and gets no other backend.
    pub fn apply(self, devices: &mut Devices) -> Result<()> {
        let Self { disks, networks, vsock, console, policy } = self;
        let is_replaced = |id: &str| networks.iter().any(|given| given.id == id && given.backend.is_some());
        let is_lost = |network: &&NetConfig| {
            matches!(network.backend, NetBackend::TapDescriptor(_)) && !is_replaced(&network.id)
        };
        if let Some(lost) = devices.networks.iter().find(is_lost) {
            let problem = "its tap was a descriptor of the process that ran the VM; give it another backend";
            return Err(Error::config("networks", format!("{}: {problem}", lost.id)));
        }
        for DiskOverride { id, path, parts, layer, layer_size, limit, changed: _ } in disks {
            let disk = devices.disks.iter_mut().find(|disk| disk.id == id);
            let disk = disk.ok_or_else(|| unknown("disks", &id))?;
            if path.is_some() || !parts.is_empty() {
                (disk.path, disk.parts) = (path.unwrap_or_default(), parts);
            }
            disk.layer = layer.or(disk.layer.take());
            disk.layer_size = layer_size.or(disk.layer_size);
            change(&mut disk.limit, limit);
        }
        for NetOverride { id, backend, mac, addresses, receive_limit, transmit_limit } in networks {
            let network = devices.networks.iter_mut().find(|network| network.id == id);
            let network = network.ok_or_else(|| unknown("networks", &id))?;
            set(&mut network.backend, backend);
            network.mac = mac.or(network.mac.take());
            if !addresses.is_empty() || network.backend.fixes_addresses() {
                network.addresses = addresses;
            }
            change(&mut network.receive_limit, receive_limit);
            change(&mut network.transmit_limit, transmit_limit);
        }
        if let Some(VsockOverride { cid, socket }) = vsock {
            let vsock = devices.vsock.as_mut().ok_or_else(|| no_such("vsock"))?;
            set(&mut vsock.cid, cid);
            set(&mut vsock.socket, socket);
        }
        if console.is_some() {
            let own = devices.console.as_mut().ok_or_else(|| no_such("console"))?;
            set(own, console);
        }
        match policy {
            Some(PolicyOverride::Policy(policy)) => devices.policy = Some(policy),
            Some(PolicyOverride::Without(Without::None)) => devices.policy = None,
            None => {}
        }
        devices.validate()
    }
}

fn no_such(field: &'static str) -> Error {
    Error::config(field, Invalid::NoSuchDevice)
}

fn unknown(field: &'static str, id: &str) -> Error {
    Error::config(field, Invalid::NoSuchId { id: id.to_owned() })
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

fn change(limit: &mut RateLimit, value: Option<RateLimit>) {
    if let Some(value) = value {
        limit.change(&value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::devices::{Bucket, VsockConfig};

    #[test]
    fn given_fields_change_and_others_stay() {
        let disk = r#"{"disks":[{"id":"a","path":"/a","layer":"/l"},{"id":"b","path":"/b"}]}"#;
        let mut devices: Devices = serde_json::from_str(disk).unwrap();
        devices.vsock = Some(VsockConfig { cid: 3, socket: "/v".into() });
        devices.console = Some(ConsoleConfig { socket: "/c".into() });
        let overrides = r#"{"disks":[{"id":"a","layer":"/m"}],"vsock":{"cid":4},"console":{"socket":"/d"}}"#;
        serde_json::from_str::<Overrides>(overrides).unwrap().apply(&mut devices).unwrap();
        assert_eq!((&devices.disks[0].path, &devices.disks[0].layer), (&"/a".into(), &Some("/m".into())));
        assert_eq!(devices.disks[1].layer, None);
        assert_eq!(devices.vsock, Some(VsockConfig { cid: 4, socket: "/v".into() }));
        assert_eq!(devices.console, Some(ConsoleConfig { socket: "/d".into() }));
    }

    #[test]
    fn addresses_are_those_of_a_guest_behind_a_tap() {
        let text = r#"{"networks":[{"id":"eth0","backend":{"tap":"tap0"},"addresses":["10.0.0.2/32"]}]}"#;
        let apply = |network: &str| {
            let mut devices: Devices = serde_json::from_str(text).unwrap();
            let overrides = format!(r#"{{"networks":[{{"id":"eth0",{network}}}]}}"#);
            let overrides = serde_json::from_str::<Overrides>(&overrides).unwrap();
            let applied = overrides.apply(&mut devices).map_err(|error| error.to_string());
            applied.map(|()| serde_json::to_value(&devices.networks[0].addresses).unwrap().to_string())
        };
        assert_eq!(apply(r#""backend":{"tap":"tap1"}"#).unwrap(), r#"["10.0.0.2/32"]"#);
        assert_eq!(apply(r#""addresses":["10.0.0.3/32"]"#).unwrap(), r#"["10.0.0.3/32"]"#);
        assert_eq!(apply(r#""backend":{"passt":{}}"#).unwrap(), "[]");
        let refused = apply(r#""backend":{"passt":{}},"addresses":["10.0.0.3/32"]"#).unwrap_err();
        assert!(refused.contains("addresses are for a tap"), "{refused}");
    }

    #[test]
    fn policy_is_replaced_as_a_whole_or_removed() {
        let mut devices: Devices = serde_json::from_str(r#"{"policy":{"deny":["*:25"]}}"#).unwrap();
        let mut apply = |text: &str| {
            serde_json::from_str::<Overrides>(text).unwrap().apply(&mut devices).unwrap();
            serde_json::to_string(&devices.policy).unwrap()
        };
        assert!(apply("{}").contains("*:25"));
        let replaced = apply(r#"{"policy":{"allow":["example.org"]}}"#);
        assert!(replaced.contains("example.org") && !replaced.contains("*:25"), "{replaced}");
        assert_eq!(apply(r#"{"policy":"none"}"#), "null");
        assert!(serde_json::from_str::<Overrides>(r#"{"policy":"some"}"#).is_err());
    }

    #[test]
    fn path_and_parts_replace_each_other() {
        let disks = r#"{"disks":[{"id":"a","path":"/a","read_only":true}]}"#;
        let mut devices: Devices = serde_json::from_str(disks).unwrap();
        let image = |devices: &Devices| devices.disks[0].image().map(ToString::to_string).collect::<Vec<_>>();
        for (given, expected) in [
            (r#""parts":["/b","/c"]"#, &["/b", "/c"][..]),
            (r#""limit":{}"#, &["/b", "/c"]),
            (r#""path":"/d""#, &["/d"]),
        ] {
            let overrides = format!(r#"{{"disks":[{{"id":"a",{given}}}]}}"#);
            serde_json::from_str::<Overrides>(&overrides).unwrap().apply(&mut devices).unwrap();
            assert_eq!(image(&devices), expected);
        }
    }

    #[test]
    fn missing_bucket_stays_and_an_empty_one_removes_the_limit() {
        let bucket = |size| Some(Bucket { size, refill_time: 100, one_time_burst: 0 });
        let mut limit = RateLimit { bandwidth: bucket(5), ops: bucket(6) };
        limit.change(&RateLimit { bandwidth: None, ops: bucket(7) });
        assert_eq!(limit, RateLimit { bandwidth: bucket(5), ops: bucket(7) });
        limit.change(&RateLimit { bandwidth: bucket(0), ops: None });
        assert_eq!(limit, RateLimit { bandwidth: None, ops: bucket(7) });
    }

    #[test]
    fn override_of_a_missing_device_is_refused_by_its_name() {
        let apply = |text: &str| {
            let overrides: Overrides = serde_json::from_str(text).unwrap();
            overrides.apply(&mut Devices::default()).unwrap_err().to_string()
        };
        assert!(apply(r#"{"disks":[{"id":"x"}]}"#).contains("\"x\""));
        assert!(apply(r#"{"networks":[{"id":"y"}]}"#).contains("\"y\""));
        assert!(apply(r#"{"vsock":{"cid":4}}"#).starts_with("vsock: "));
        assert!(apply(r#"{"console":{"socket":"/c"}}"#).starts_with("console: "));
    }
}
