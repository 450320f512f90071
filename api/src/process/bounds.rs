//! The files that a VM's process may open once its guest runs (`--confine strict`).

use std::path::{Path, PathBuf};

use volt_vmm::config::devices::NetBackend;
use volt_vmm::config::{Devices, FileRef};
use volt_vmm::internal;
use volt_vmm::sandbox::Bounds;

/// Returns what the configuration of a VM names, and the directories that the user allows. `devices` are
/// absent in a process that waits for a VM.
pub(crate) fn of(allowed: &[PathBuf], devices: Option<&Devices>, snapshot: Option<&Path>) -> Bounds {
    let mut bounds = Bounds { directories: allowed.to_vec(), ..Bounds::default() };
    bounds.readable.extend(snapshot.map(Path::to_owned));
    // A snapshot gets this user's mark.
    bounds.readable.extend(internal::make_snapshot_key());
    let Some(devices) = devices else { return bounds };
    for disk in &devices.disks {
        let image = if disk.is_written_in_place() { &mut bounds.writable } else { &mut bounds.readable };
        image.extend(disk.image().filter_map(path_of));
        bounds.readable.extend(disk.beneath.as_ref().and_then(path_of));
        bounds.writable.extend(disk.layer.as_ref().and_then(path_of));
    }
    let has_tap = devices.networks.iter().any(|network| matches!(network.backend, NetBackend::Tap(_)));
    bounds.writable.extend(has_tap.then(|| "/dev/net/tun".into()));
    let sockets = devices.vsock.iter().map(|vsock| &vsock.socket);
    let sockets = sockets.chain(devices.console.iter().map(|console| &console.socket));
    bounds.sockets.extend(sockets.map(|socket| socket.as_path().to_owned()));
    bounds
}

fn path_of(file: &FileRef) -> Option<PathBuf> {
    match file {
        FileRef::Path(path) => Some(path.clone()),
        FileRef::Checked(file) => Some(file.path().to_owned()),
        FileRef::Fd(_) | FileRef::Untrusted(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_configuration_have_the_rights_of_their_use() {
        let devices = r#"{
            "disks": [
                {"id": "data", "path": "/data"},
                {"id": "image", "path": "/image", "read_only": true},
                {"id": "root", "path": "/base", "layer": "/layer"},
                {"id": "joined", "parts": ["/one", "/two"], "read_only": true}
            ],
            "vsock": {"cid": 3, "socket": "/run/v"}
        }"#;
        let devices = serde_json::from_str(devices).unwrap();
        let bounds = of(&["/allowed".into()], Some(&devices), Some("/snapshot".as_ref()));
        assert_eq!(bounds.directories, ["/allowed".as_ref() as &Path]);
        assert_eq!(bounds.writable, ["/data".as_ref() as &Path, "/layer".as_ref()]);
        for path in ["/snapshot", "/image", "/base", "/one", "/two"] {
            assert!(bounds.readable.iter().any(|readable| readable == path.as_ref() as &Path), "{bounds:?}");
        }
        assert_eq!(bounds.sockets, ["/run/v".as_ref() as &Path]);
        assert!(!bounds.from_start);
    }
}
