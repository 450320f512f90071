//! Fuzzes configuration files and overrides: what is accepted is the same after it is written and read again.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_fuzz::edit::{Edit, edited};
use volt_vmm::config::Overrides;
use volt_vmm::{VmConfig, parse_memory_mib, parse_size};

const SEED: &str = r#"{"boot": {"kernel": "/k", "initrd": "/i", "cmdline": "quiet"}, "vcpus": 2,
    "memory_mib": 64, "irqchip": "split", "devices": {
    "disks": [{"id": "a", "path": "/a", "read_only": true, "engine": "io_uring"},
        {"id": "b", "path": "/b", "layer": "/l", "layer_size": 1048576, "cache": "unsafe"},
        {"id": "c", "parts": ["/c", "/d"], "read_only": true}],
    "networks": [{"id": "n", "backend": {"tap": "tap0"}, "mac": "02:00:00:00:00:01", "mtu": 1500}],
    "vsock": {"cid": 3, "socket": "/v"}, "rng": true, "console": {"socket": "/c"},
    "balloon": {"target_mib": 8, "deflate_on_oom": true}}}"#;
const OVERRIDES: &str = r#"{"disks": [{"id": "b", "path": "/other"}],
    "networks": [{"id": "n", "backend": {"tap": "tap1"}}], "vsock": {"cid": 4, "socket": "/w"}}"#;

#[derive(Debug, Arbitrary)]
struct Input {
    text: Option<String>,
    edits: Vec<Edit>,
    overrides: Vec<Edit>,
    size: String,
}

fuzz_target!(|input: Input| {
    let Input { text, edits, overrides, size } = input;
    if let Ok(mib) = parse_memory_mib(&size) {
        assert_eq!(parse_size(&size, 1 << 20), Ok(mib << 20));
    }
    let text = text.unwrap_or_else(|| edited(SEED, edits));
    let Ok(config) = serde_json::from_str::<VmConfig>(&text) else { return };
    let written = serde_json::to_string(&config).expect("a configuration can be written");
    let again: VmConfig = serde_json::from_str(&written).expect("its own text");
    assert_eq!(serde_json::to_string(&again).expect("a configuration can be written"), written);
    assert_eq!(config.validate().is_ok(), again.validate().is_ok());
    if config.validate_boot().is_ok() {
        config.validate().expect("a configuration that boots");
        assert!(config.memory_bytes() >= 1 << 20);
    }
    let Ok(overrides) = serde_json::from_str::<Overrides>(&edited(OVERRIDES, overrides)) else { return };
    let (mut devices, count) = (config.devices.clone(), config.devices.disks.len());
    if overrides.apply(&mut devices).is_ok() {
        assert_eq!(devices.disks.len(), count, "overrides neither add nor remove a disk");
    }
});
