//! Candidates for arguments that name VMs, snapshots, images and volumes, for shells that complete them.

use std::ffi::OsStr;

use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};

use super::volume_place::Volumes;
use super::{image_place, snapshot_place};
use crate::run_dir::listing;
use crate::run_dir::root::RunRoot;
use crate::run_dir::vm_dir::VmDir;

/// Completes the names of all VMs.
pub(super) fn vms() -> ArgValueCandidates {
    ArgValueCandidates::new(|| names(|_| true))
}

/// Completes the names of VMs that live.
pub(super) fn living_vms() -> ArgValueCandidates {
    ArgValueCandidates::new(|| names(VmDir::is_alive))
}

/// Completes the names of VMs that have ended.
pub(super) fn ended_vms() -> ArgValueCandidates {
    ArgValueCandidates::new(|| names(|vm| !vm.is_alive()))
}

/// Completes the names of snapshots.
pub(super) fn snapshots() -> ArgValueCandidates {
    ArgValueCandidates::new(snapshot_names)
}

/// Completes the names of snapshots, and paths.
pub(super) fn snapshots_and_paths() -> ArgValueCompleter {
    ArgValueCompleter::new(|start: &OsStr| {
        let text = start.to_string_lossy();
        let is_begun = |name: &CompletionCandidate| name.get_value().to_string_lossy().starts_with(&*text);
        let mut found: Vec<_> = snapshot_names().into_iter().filter(is_begun).collect();
        found.extend(PathCompleter::any().complete(start));
        found
    })
}

/// Completes the names of VMs that live and of snapshots, for `snapshot create VM SNAPSHOT`.
pub(super) fn vms_and_snapshots() -> ArgValueCandidates {
    ArgValueCandidates::new(|| names(VmDir::is_alive).into_iter().chain(snapshot_names()).collect())
}

/// Completes the names of stored images.
pub(super) fn images() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let names = image_place::store().ok().and_then(|store| store.names().ok()).unwrap_or_default();
        names.keys().map(|name| CompletionCandidate::new(image_place::short_name(name))).collect()
    })
}

/// Completes the names of volumes.
pub(super) fn volumes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let all = Volumes::open().and_then(|volumes| volumes.all()).unwrap_or_default();
        all.iter().map(|volume| CompletionCandidate::new(volume.name.as_str())).collect()
    })
}

fn names(is_wanted: impl Fn(&VmDir) -> bool) -> Vec<CompletionCandidate> {
    // A shell shows no errors.
    let root = RunRoot::existing().ok().flatten();
    let all = root.and_then(|root| listing::all(&root).ok()).unwrap_or_default();
    all.iter().filter(|vm| is_wanted(vm)).map(|vm| CompletionCandidate::new(vm.name().as_str())).collect()
}

fn snapshot_names() -> Vec<CompletionCandidate> {
    let all = snapshot_place::names().unwrap_or_default();
    all.iter().map(|name| CompletionCandidate::new(name.as_str())).collect()
}
