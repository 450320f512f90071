//! Firecracker's configuration file: the bodies of its requests, by the names that `GET /vm/config` has for
//! them.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use super::balloon::Balloon;
use super::devices::{Drive, Entropy, NetworkInterface, Vsock};
use super::logger::Logger;
use super::machine::{BootSource, MachineChange};
use super::metadata::MmdsConfig;
use super::metrics::MetricsFile;
use super::serial::Serial;
use crate::rest::error::Fault;

/// See the module.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct ConfigFile {
    pub(crate) boot_source: BootSource,
    pub(crate) machine_config: Option<MachineChange>,
    #[serde(default)]
    pub(crate) drives: Vec<Drive>,
    #[serde(default)]
    pub(crate) network_interfaces: Vec<NetworkInterface>,
    pub(crate) vsock: Option<Vsock>,
    pub(crate) entropy: Option<Entropy>,
    pub(crate) balloon: Option<Balloon>,
    /// Path of a custom CPU template. Its reader is [`super::cpu::CpuConfig::template_of`].
    pub(crate) cpu_config: Option<PathBuf>,
    pub(crate) logger: Option<Logger>,
    pub(crate) metrics: Option<MetricsFile>,
    pub(crate) mmds_config: Option<MmdsConfig>,
    pub(crate) serial: Option<Serial>,
    #[serde(default)]
    pmem: Vec<Value>,
    memory_hotplug: Option<Value>,
}

impl ConfigFile {
    /// Whether JSON is such a file: volt-vmm's own has no key of these names.
    pub(crate) fn is_recognized_by(keys: &Value) -> bool {
        ["boot-source", "machine-config", "drives", "network-interfaces"]
            .iter()
            .any(|key| keys.get(key).is_some())
    }

    /// Refuses what volt-vmm lacks.
    ///
    /// # Errors
    /// Names the key.
    pub(crate) fn refuse_unsupported(&self) -> Result<(), Fault> {
        for (key, given) in
            [("pmem", !self.pmem.is_empty()), ("memory-hotplug", self.memory_hotplug.is_some())]
        {
            if given {
                return Err(Fault::refused(format!("{key}: not supported; leave it out")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use volt_vmm::FileRef;

    use super::*;
    use crate::rest::firecracker::machine::Draft;

    fn draft(file: &Value) -> Result<Draft, String> {
        let file: ConfigFile = serde_json::from_value(file.clone()).map_err(|error| error.to_string())?;
        Draft::of_file(file, None).map_err(|fault| fault.to_string())
    }

    #[test]
    fn file_configures_a_vm() {
        let file = json!({
            "boot-source": {"kernel_image_path": "/k", "boot_args": "quiet", "initrd_path": null},
            "drives": [
                {"drive_id": "data", "path_on_host": "/d", "is_root_device": false, "partuuid": null},
                {"drive_id": "root", "path_on_host": "/r", "is_root_device": true, "is_read_only": true},
            ],
            "machine-config": {"vcpu_count": 2, "mem_size_mib": 1024, "smt": false},
            "network-interfaces": [
                {"iface_id": "net1", "guest_mac": "06:00:AC:10:00:02", "host_dev_name": "tap0"},
            ],
            "vsock": null, "balloon": null, "entropy": {}, "logger": null, "mmds-config": null, "pmem": [],
        });
        assert!(ConfigFile::is_recognized_by(&file));
        let config = draft(&file).unwrap().config().unwrap();
        assert_eq!((config.vcpus, config.memory_mib), (2, 1024));
        assert_eq!(config.boot.kernel, FileRef::from("/k"));
        assert_eq!(config.boot.cmdline, "quiet root=/dev/vda ro");
        let ids: Vec<_> = config.devices.disks.iter().map(|disk| disk.id.as_str()).collect();
        assert_eq!(ids, ["root", "data"]);
        assert_eq!(config.devices.networks.len(), 1);
        assert!(config.devices.rng);
    }

    #[test]
    fn invalid_part_is_refused_by_its_name() {
        let with = |key: &str, value: Value| {
            let mut file = json!({"boot-source": {"kernel_image_path": "/k"}});
            file[key] = value;
            draft(&file).unwrap_err()
        };
        for (key, value, words) in [
            ("pmem", json!([{}]), "pmem: not supported"),
            ("memory-hotplug", json!({}), "memory-hotplug: not supported"),
            ("machine-config", json!({"vcpu_count": 1}), "missing field `mem_size_mib`"),
            ("machine-config", json!({"vcpu_count": 0, "mem_size_mib": 1}), "vcpus: 0"),
            ("machine-config", json!({"vcpu_count": 1, "mem_size_mib": 1, "cpu_template": "T9"}), "T9"),
            ("cpu-config", json!({"msr_modifiers": []}), "invalid type"),
            ("logger", json!({"level": "loud"}), "loud"),
            ("disks", json!([]), "unknown field `disks`"),
            ("metrics", json!({}), "missing field `metrics_path`"),
            ("boot-source", json!({}), "kernel_image_path"),
        ] {
            let error = with(key, value);
            assert!(error.contains(words), "{key}: {error}");
        }
        assert!(!ConfigFile::is_recognized_by(&json!({"boot": {"kernel": "/k"}})));
        let incomplete = json!({"drives": []});
        assert!(ConfigFile::is_recognized_by(&incomplete));
        assert!(draft(&incomplete).unwrap_err().contains("missing field `boot-source`"));
    }
}
