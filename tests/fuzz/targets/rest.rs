//! Fuzzes the bodies of REST requests, decoded and converted as the API does it. A device is the same after
//! the API has described it and the description was read again.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use volt_fuzz::edit::{Edit, edited};
use volt_vmm::config::devices::{BalloonConfig, DiskConfig, NetConfig, VsockConfig};
use volt_vmm::{BootConfig, CpuTemplate, VmConfig};

// The API is a program, not a library: its files are compiled into this one, with all that they import.
#[allow(dead_code, unused_imports)]
#[path = "../../../api/src/rest/firecracker/names/mod.rs"]
mod names;
#[allow(dead_code)]
#[path = "../../../api/src/process/shared_pager.rs"]
mod shared_pager;

mod process {
    pub(crate) use crate::shared_pager;
}

mod rest {
    pub(crate) mod error {
        /// A refusal, without its status.
        #[derive(Debug)]
        pub(crate) struct Fault(pub(crate) String);

        impl Fault {
            pub(crate) fn refused(problem: impl Into<String>) -> Self {
                Self(problem.into())
            }
        }

        impl From<volt_vmm::Error> for Fault {
            fn from(error: volt_vmm::Error) -> Self {
                Self(volt_vmm::report(&error))
            }
        }
    }
}

use names::balloon::{Balloon, HintingStart, StatisticsChange};
use names::config_file::ConfigFile;
use names::cpu::CpuConfig;
use names::devices as device;
use names::logger::Logger;
use names::machine::{Action, BootSource, Machine, MachineChange, SetState};
use names::metrics::MetricsFile;
use names::serial::Serial;
use names::snapshot::{CreateSnapshot, LoadSnapshot, merge_overrides};

const LIMITER: &str =
    r#"{"bandwidth": {"size": 1024, "refill_time": 100, "one_time_burst": 7}, "ops": null}"#;

#[derive(Debug, Arbitrary)]
struct Input {
    body: u8,
    any: Option<String>,
    edits: Vec<Edit>,
}

/// Decodes a body, which must be the same after it is written again.
fn body<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(text: &str) -> Option<T> {
    let body: T = serde_json::from_str(text).ok()?;
    let written = serde_json::to_string(&body).expect("a body can be written");
    assert_eq!(serde_json::from_str::<T>(&written).expect("its own body"), body);
    Some(body)
}

/// Checks that a device describes itself as the body that made it.
fn device<B, C>(text: &str)
where
    B: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug + From<C>,
    C: TryFrom<B> + Clone + PartialEq + std::fmt::Debug,
{
    let Some(config) = body::<B>(text).and_then(|body| C::try_from(body).ok()) else { return };
    let described = B::from(config.clone());
    assert_eq!(C::try_from(described).ok(), Some(config));
}

fuzz_target!(|input: Input| {
    let Input { body: kind, any, edits } = input;
    let with = |seed: &str, edits| any.clone().unwrap_or_else(|| edited(seed, edits));
    match kind % 20 {
        0 => {
            let seed =
                r#"{"drive_id": "a", "path_on_host": "/a", "is_root_device": false, "rate_limiter": R}"#;
            device::<device::Drive, DiskConfig>(&with(&seed.replace('R', LIMITER), edits));
        }
        1 => {
            let seed = r#"{"iface_id": "n", "host_dev_name": "tap0", "guest_mac": "02:00:00:00:00:01",
                "mtu": 1500}"#;
            device::<device::NetworkInterface, NetConfig>(&with(seed, edits));
        }
        2 => device::<device::Vsock, VsockConfig>(&with(r#"{"guest_cid": 3, "uds_path": "/v"}"#, edits)),
        3 => {
            let seed = r#"{"amount_mib": 8, "deflate_on_oom": true, "stats_polling_interval_s": 1}"#;
            device::<Balloon, BalloonConfig>(&with(seed, edits));
        }
        4 => {
            let seed = r#"{"kernel_image_path": "/k", "initrd_path": "/i", "boot_args": "quiet"}"#;
            device::<BootSource, BootConfig>(&with(seed, edits));
        }
        5 => {
            let seed = r#"{"vcpu_count": 2, "mem_size_mib": 64, "smt": false, "irqchip": "split"}"#;
            let Ok(change) = serde_json::from_str::<MachineChange>(&with(seed, edits)) else { return };
            if let Err(fault) = change.apply_to_cpu(&mut None) {
                assert!(!fault.0.is_empty());
            }
            match change.apply(Machine::default()) {
                Ok(machine) => machine
                    .config(body(r#"{"kernel_image_path": "/k"}"#).expect("a body"))
                    .validate()
                    .expect("a machine that was checked"),
                Err(fault) => assert!(!fault.0.is_empty()),
            }
        }
        6 => drop(serde_json::from_str::<SetState>(&with(r#"{"state": "Paused"}"#, edits))),
        7 => drop(serde_json::from_str::<Action>(&with(r#"{"action_type": "InstanceStart"}"#, edits))),
        8 => {
            let seed =
                r#"{"snapshot_path": "/s", "snapshot_type": "Full", "compress": "lz4", "chunk_size": 65536}"#;
            let Ok(request) = serde_json::from_str::<CreateSnapshot>(&with(seed, edits)) else { return };
            match request.options() {
                Ok(options) => {
                    let _ = options.packing.map(|packing| packing.validate(64 << 20));
                }
                Err(fault) => assert!(!fault.0.is_empty()),
            }
        }
        9 => {
            let seed = r#"{"snapshot_path": "/s", "resume_vm": true, "network_overrides":
                [{"iface_id": "n", "host_dev_name": "t"}], "vsock_override": {"uds_path": "/v"},
                "mem_backend": {"backend_type": "File", "backend_path": "/m"}, "clock_realtime": true,
                "record": "console", "pager": {"group": "g"}, "overrides": {"disks": [{"id": "a"}]}}"#;
            let Ok(load) = serde_json::from_str::<LoadSnapshot>(&with(seed, edits)) else { return };
            if let Err(fault) = load.memory() {
                assert!(!fault.0.is_empty());
            }
            let overrides = merge_overrides(load.overrides, load.network_overrides, load.vsock_override);
            let mut devices = VmConfig::new("/k").devices;
            let is_empty = overrides == volt_vmm::config::Overrides::default();
            assert!(
                is_empty || overrides.apply(&mut devices).is_err(),
                "overrides of devices that no VM has"
            );
            if let Some(pager) = load.pager {
                let _ = volt_vmm::Unpack::from_options(load.unpack, Some(pager.into()));
            }
        }
        10 => drop(serde_json::from_str::<device::DriveChange>(&with(
            r#"{"drive_id": "a", "path_on_host": "/b"}"#,
            edits,
        ))),
        11 => drop(serde_json::from_str::<device::NetworkInterfaceChange>(&with(
            r#"{"iface_id": "n", "rx_rate_limiter": {"ops": {"size": 1, "refill_time": 1}}}"#,
            edits,
        ))),
        12 => drop(serde_json::from_str::<HintingStart>(&with(r#"{"acknowledge_on_stop": true}"#, edits))),
        13 => {
            drop(serde_json::from_str::<StatisticsChange>(&with(r#"{"stats_polling_interval_s": 5}"#, edits)))
        }
        14 => {
            let seed = r#"{"log_path": "/l", "level": "Info", "show_level": true, "module": "volt_vmm"}"#;
            let _ = body::<Logger>(&with(seed, edits));
        }
        15 => {
            let seed = r#"{"serial_out_path": "/s", "rate_limiter": {"size": 1, "refill_time": 1}}"#;
            let _ = body::<Serial>(&with(seed, edits));
        }
        16 => {
            let seed = r#"{"boot-source": {"kernel_image_path": "/k"}, "drives": [{"drive_id": "a",
                "path_on_host": "/a", "is_root_device": true, "partuuid": "7", "io_engine": null}],
                "machine-config": {"vcpu_count": 1, "mem_size_mib": 64}, "vsock": null, "pmem": []}"#;
            let Ok(file) = serde_json::from_str::<ConfigFile>(&with(seed, edits)) else { return };
            if let Err(fault) = file.refuse_unsupported() {
                assert!(!fault.0.is_empty());
            }
        }
        17 => drop(body::<MetricsFile>(&with(r#"{"metrics_path": "/m"}"#, edits))),
        18 => {
            let seed = r#"{"kvm_capabilities": ["55", "!56"], "cpuid_modifiers": [{"leaf": "0x7", "subleaf":
                "0b0", "flags": 1, "modifiers": [{"register": "ebx", "bitmap": "0b01x_10x"}]}],
                "msr_modifiers": [{"addr": "0x10a", "bitmap": "0b0x1"}]}"#;
            let Some(config) = body::<CpuConfig>(&with(seed, edits)) else { return };
            let Ok(template) = CpuTemplate::try_from(config) else { return };
            assert_eq!(CpuTemplate::try_from(CpuConfig::from(&template)).ok(), Some(template));
        }
        _ => {
            let _ = body::<device::Entropy>(&with("{}", edits));
        }
    }
});
