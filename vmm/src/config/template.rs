//! The configuration of a template, from which VMs are made that have all files on the host anew.

use super::VmConfig;
use super::devices::NetBackend;

impl VmConfig {
    /// Returns the configuration without what one VM alone has on the host: its initrd, the files of disks
    /// that it writes, taps, forwarded ports and sockets. Placeholders are in their place.
    #[must_use]
    pub fn as_template(mut self) -> Self {
        let placeholder = |id: &str| format!("placeholder-{id}");
        self.boot.initrd = None;
        for disk in &mut self.devices.disks {
            if disk.is_written_in_place() {
                disk.path = placeholder(&disk.id).as_str().into();
            }
            disk.layer = disk.layer.take().map(|_| placeholder(&disk.id).as_str().into());
        }
        for (number, network) in self.devices.networks.iter_mut().enumerate() {
            match &mut network.backend {
                // The kernel has no longer names.
                NetBackend::Tap(name) => *name = format!("placeholder{number}"),
                NetBackend::Passt { forward } => forward.clear(),
                NetBackend::TapDescriptor(_) | NetBackend::Nat {} => {}
            }
        }
        if let Some(vsock) = &mut self.devices.vsock {
            vsock.socket = placeholder("vsock").as_str().into();
        }
        if let Some(console) = &mut self.devices.console {
            console.socket = placeholder("console").as_str().into();
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Devices;

    #[test]
    fn template_names_the_image_and_nothing_of_a_vm() {
        let devices = r#"{
            "disks": [
                {"id": "image", "parts": ["/image/1", "/image/2"], "read_only": true},
                {"id": "root", "path": "/image/base", "layer": "/own/layer"},
                {"id": "data", "path": "/own/data"}
            ],
            "networks": [
                {"id": "eth0", "backend": {"tap": "own0"}},
                {"id": "eth1", "backend": {"passt": {"forward": [[8080, 80]]}}}
            ],
            "vsock": {"cid": 3, "socket": "/own/vsock"},
            "console": {"socket": "/own/console"}
        }"#;
        let mut config = VmConfig::new("/image/kernel").initrd("/own/initrd");
        config.devices = serde_json::from_str::<Devices>(devices).unwrap();
        let template = config.clone().as_template();
        let text = serde_json::to_string(&template).unwrap();
        assert!(!text.contains("own") && !text.contains("8080"), "{text}");
        for path in ["/image/kernel", "/image/1", "/image/2", "/image/base"] {
            assert!(text.contains(path), "{text}");
        }
        template.devices.validate().unwrap();
        assert_eq!(template.clone().as_template(), template);
    }
}
