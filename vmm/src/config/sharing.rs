//! Resources of the host that two VMs cannot have at once: a tap, a listening socket, a forwarded port, a
//! disk that is written in place. A clone needs its own while its parent runs.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use super::FileRef;
use super::devices::{Devices, DiskConfig, NetBackend};
use super::overrides::Overrides;
use crate::error::{Cure, Error, Invalid, Result};

/// A resource of the host that only one VM can have.
struct Exclusive {
    field: &'static str,
    /// As the host knows it, such as `tap tap0`.
    resource: String,
    /// How to give a clone another.
    cures: Vec<Cure>,
}

/// Checks that a VM with these devices can run beside clones of it with these overrides. Files that are made
/// for a clone alone are not checked: making them fails if they exist.
///
/// # Errors
/// [`Invalid::Shared`] names a resource that two of them would have.
pub fn check(devices: &Devices, clones: &[Overrides]) -> Result<()> {
    let mut owners: BTreeMap<String, usize> =
        exclusive(devices).map(|exclusive| (exclusive.resource, 0)).collect();
    for (child, overrides) in (1..).zip(clones) {
        let mut devices = devices.clone();
        overrides.clone().apply(&mut devices)?;
        for Exclusive { field, resource, cures } in exclusive(&devices) {
            if let Some(owner) = owners.insert(resource.clone(), child) {
                let owner = (owner > 0).then_some(owner);
                return Err(Error::config(field, Invalid::Shared { child, resource, owner, cures }));
            }
        }
    }
    Ok(())
}

/// The absolute form of a path, so that two processes with one working directory name a file alike.
fn on_host(path: &Path) -> impl fmt::Display {
    crate::paths::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

fn another(cure: Cure) -> Cure {
    Cure::Another(Box::new(cure))
}

fn exclusive(devices: &Devices) -> impl Iterator<Item = Exclusive> + '_ {
    let networks = devices.networks.iter().flat_map(|network| {
        let id = || network.id.clone();
        let exclusive =
            |resource, cure| Exclusive { field: "networks", resource, cures: vec![another(cure)] };
        match &network.backend {
            NetBackend::Tap(name) => vec![exclusive(format!("tap {name}"), Cure::Tap { id: id() })],
            NetBackend::TapDescriptor(number) => {
                vec![exclusive(format!("tap fd:{number}"), Cure::Tap { id: id() })]
            }
            NetBackend::Nat {} => Vec::new(),
            NetBackend::Passt { forward } => {
                let port = |(host, _): &(u16, u16)| format!("port {host} of 127.0.0.1");
                let ports = forward.iter().map(port);
                ports.map(|port| exclusive(port, Cure::ForwardedPorts { id: id() })).collect()
            }
        }
    });
    let vsock = devices.vsock.iter().map(|vsock| Exclusive {
        field: "vsock",
        resource: format!("socket {}", on_host(vsock.socket.as_path())),
        cures: vec![another(Cure::VsockSocket)],
    });
    let console = devices.console.iter().map(|console| Exclusive {
        field: "console",
        resource: format!("socket {}", on_host(console.socket.as_path())),
        cures: vec![another(Cure::ConsoleSocket)],
    });
    let written = devices.disks.iter().filter(|disk| disk.is_written_in_place());
    let disks = written.map(|DiskConfig { id, path, .. }| Exclusive {
        field: "disks",
        resource: match path {
            FileRef::Path(path) => format!("writable disk {}", on_host(path)),
            descriptor => format!("writable disk {descriptor}"),
        },
        cures: vec![another(Cure::DiskPath { id: id.clone() }), Cure::DiskLayer { id: id.clone() }],
    });
    networks.chain(vsock).chain(console).chain(disks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::report;

    const DEVICES: &str = r#"{
        "disks":[{"id":"shared","path":"/ro","read_only":true},{"id":"layered","path":"/base","layer":"/l"}],
        "networks":[{"id":"eth0","backend":{"tap":"tap0"}}],
        "vsock":{"cid":3,"socket":"/v"},"console":{"socket":"/c"}}"#;
    const OWN: &str = r#"{"networks":[{"id":"eth0","backend":{"tap":"tapN"}}],
        "vsock":{"socket":"/vN"},"console":{"socket":"/cN"}}"#;

    fn clones(texts: &[&str]) -> Vec<Overrides> {
        texts.iter().map(|text| serde_json::from_str(text).unwrap()).collect()
    }

    fn refused(devices: &str, overrides: &[&str], words: &[&str]) {
        let error = check(&serde_json::from_str(devices).unwrap(), &clones(overrides)).unwrap_err();
        let error = report(&error);
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }

    #[test]
    fn exclusive_and_read_only_resources_pass() {
        let of = |number: &str| OWN.replace('N', number);
        let (one, two) = (of("1"), of("2"));
        check(&serde_json::from_str(DEVICES).unwrap(), &clones(&[&one, &two])).unwrap();
        check(&Devices::default(), &clones(&["{}", "{}"])).unwrap();
    }

    #[test]
    fn relative_path_of_the_vm_and_absolute_path_of_a_clone_name_one_socket() {
        let socket = std::env::current_dir().unwrap().join("v");
        let own = format!(r#"{{"vsock":{{"socket":{socket:?}}}}}"#);
        refused(r#"{"vsock":{"cid":3,"socket":"v"}}"#, &[&own], &["socket", "/v"]);
    }

    #[test]
    fn resource_of_the_vm_is_refused_for_a_clone() {
        let one = OWN.replace('N', "1");
        refused(
            DEVICES,
            &["{}"],
            &["networks: child 1", "tap tap0, because the VM itself has it", "give network eth0 another tap"],
        );
        for (given, words) in [
            ("/v1", ["vsock: child 1", "socket /v,", "give the vsock device another socket"]),
            ("/c1", ["console: child 1", "socket /c,", "give the console another socket"]),
        ] {
            refused(DEVICES, &[&one.replace(given, &given[..2])], &words);
        }
        let written = r#"{"disks":[{"id":"root","path":"/image"}]}"#;
        refused(
            written,
            &["{}"],
            &[
                "disks: child 1",
                "writable disk /image",
                "give disk root another path",
                "or give disk root of the VM a layer",
            ],
        );
        let forwards = r#"{"networks":[{"id":"n","backend":{"passt":{"forward":[[8080,80]]}}}]}"#;
        refused(forwards, &["{}"], &["port 8080 of 127.0.0.1", "give network n other ports"]);
    }

    #[test]
    fn resource_of_a_clone_is_refused_for_another() {
        let one = OWN.replace('N', "1");
        refused(DEVICES, &[&one, &one], &["child 2 cannot have tap tap1, because child 1 has it"]);
    }
}
