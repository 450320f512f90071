//! Whether this host can run the guest of a snapshot.

use std::path::Path;

use crate::config::VmConfig;
use crate::error::Result;
use crate::kvm::template;
use crate::machine::MachineState;
use crate::snapshot::opened::state::{read_manifest, read_named};

/// Names the features that the guest of a snapshot sees and that this host's KVM lacks. `path` is the
/// snapshot's directory or its state file.
///
/// # Errors
/// The state cannot be read, or KVM refuses to tell.
pub fn features_missing_here(path: &Path) -> Result<Vec<String>> {
    let is_directory = crate::paths::metadata(path).is_ok_and(|found| found.is_dir());
    let (manifest, _) = if is_directory { read_manifest(path)? } else { read_named(path)? };
    missing(&manifest.config, &manifest.machine)
}

/// As [`features_missing_here`], of a state that was read.
pub(super) fn missing(config: &VmConfig, machine: &MachineState) -> Result<Vec<String>> {
    let vcpus = machine.vcpus.iter().map(|vcpu| (&vcpu.cpuid[..], &vcpu.msrs.0[..]));
    template::missing(config.cpu_template.as_deref(), vcpus)
}
