//! Names of requests for snapshots, and of overrides.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use volt_vmm::config::Overrides;
use volt_vmm::config::devices::NetBackend;
use volt_vmm::config::overrides::NetOverride;
use volt_vmm::{ClockMode, Compression, Packing, RecordUntil, SnapshotKind, SnapshotOptions};

use super::machine::PageKind;
use crate::process::shared_pager::SharedPager;
use crate::rest::error::Fault;

/// `PUT /snapshot/create`
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateSnapshot {
    /// The state file to write, or the directory to create.
    pub(crate) snapshot_path: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) snapshot_type: Option<SnapshotType>,
    /// The memory file to write. Without it, the snapshot is a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mem_file_path: Option<PathBuf>,
    /// volt-vmm's own, like the next two: packs memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) compress: Option<Compression>,
    /// Bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) chunk_size: Option<u32>,
    /// Percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) least_saving: Option<u8>,
    /// volt-vmm's own: inflates the balloon first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) trim: bool,
    /// volt-vmm's own: has the guest's agent freeze the workload first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) quiesce: bool,
    /// volt-vmm's own: the longest pause of the guest, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_pause_ms: Option<u64>,
}

impl CreateSnapshot {
    /// Returns the library's options for it.
    ///
    /// # Errors
    /// An option of packing lacks a compression.
    pub(crate) fn options(&self) -> Result<SnapshotOptions, Fault> {
        let kind = match self.snapshot_type {
            Some(SnapshotType::Diff) => SnapshotKind::Diff,
            Some(SnapshotType::Full) | None => SnapshotKind::Full,
        };
        let max_pause = self.max_pause_ms.map(Duration::from_millis);
        let packing = Packing::from_options(self.compress, self.chunk_size, self.least_saving)?;
        let mut options = SnapshotOptions::default().kind(kind).packing(packing);
        (options.trim, options.max_pause) = (self.trim, max_pause);
        Ok(options)
    }
}

/// Firecracker's kinds of snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SnapshotType {
    Full,
    Diff,
}

/// `PUT /snapshot/load`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoadSnapshot {
    pub(crate) snapshot_path: PathBuf,
    #[serde(default)]
    pub(crate) resume_vm: bool,
    pub(crate) mem_file_path: Option<PathBuf>,
    pub(crate) mem_backend: Option<MemoryBackend>,
    /// Logs the guest's writes from the start. Every VM supports diffs; the first rewind is faster.
    #[serde(default)]
    track_dirty_pages: bool,
    /// Its older name.
    #[serde(default)]
    enable_diff_snapshots: bool,
    #[serde(default)]
    pub(crate) network_overrides: Vec<NetworkOverride>,
    #[serde(default)]
    pub(crate) vsock_override: Option<VsockSocket>,
    /// The kind of pages under guest memory, in place of the snapshot's.
    pub(crate) huge_pages: Option<PageKind>,
    /// Makes the guest's clocks jump by the time since the snapshot.
    #[serde(default)]
    clock_realtime: bool,
    /// volt-vmm's own: all differences of a clone.
    #[serde(default)]
    pub(crate) overrides: Overrides,
    /// volt-vmm's own: directories whose disks and sockets a snapshot of another user may use.
    #[serde(default)]
    pub(crate) allow_paths: Vec<PathBuf>,
    /// volt-vmm's own: lets the VM have disks and sockets that another VM has.
    #[serde(default)]
    pub(crate) allow_shared: bool,
    /// volt-vmm's own: how the guest's clocks treat the time since the snapshot.
    #[serde(default)]
    clock: ClockMode,
    /// volt-vmm's own: unpacks packed memory before the guest runs, not on touch.
    #[serde(default)]
    pub(crate) unpack: bool,
    /// volt-vmm's own: has a pager unpack it, which VMs of one snapshot share.
    pub(crate) pager: Option<SharedPager>,
    /// volt-vmm's own: gives the VM a base of its own.
    #[serde(default)]
    pub(crate) isolate_base: bool,
    /// volt-vmm's own: records the pages that the guest touches first, until this event.
    pub(crate) record: Option<RecordUntil>,
    /// volt-vmm's own: reads recorded pages ahead.
    #[serde(default = "usually")]
    pub(crate) prefetch: bool,
}

fn usually() -> bool {
    true
}

/// Where a snapshot's memory comes from.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MemoryBackend {
    backend_type: BackendType,
    backend_path: PathBuf,
    /// volt-vmm's own: seconds to wait for a handler, instead of the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    patience: Option<u64>,
}

/// Firecracker's kinds of memory backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum BackendType {
    File,
    Uffd,
}

/// The place of a snapshot's memory, if it lies apart from the state.
#[derive(Debug, Default)]
pub(crate) struct GivenMemory {
    pub(crate) file: Option<PathBuf>,
    /// The socket of a memory handler, and seconds to wait for it.
    pub(crate) handler: Option<PathBuf>,
    pub(crate) patience: Option<u64>,
}

impl LoadSnapshot {
    /// The memory, unless the snapshot is a directory.
    ///
    /// # Errors
    /// The memory is named twice, or a file is to be waited for.
    pub(crate) fn memory(&self) -> Result<GivenMemory, Fault> {
        let file = |path: &PathBuf| GivenMemory { file: Some(path.clone()), ..GivenMemory::default() };
        match (&self.mem_file_path, &self.mem_backend) {
            // Firecracker's words, which its clients may look for.
            (Some(_), Some(_)) => Err(Fault::refused(
                "too many fields: either `mem_backend` or `mem_file_path` exclusively is required",
            )),
            (Some(path), None) => Ok(file(path)),
            (None, Some(MemoryBackend { backend_type, backend_path: path, patience })) => {
                match (backend_type, *patience) {
                    (BackendType::File, None) => Ok(file(path)),
                    (BackendType::File, Some(_)) => {
                        Err(Fault::refused("mem_backend: patience is for the backend Uffd; leave it out"))
                    }
                    (BackendType::Uffd, patience) => {
                        Ok(GivenMemory { handler: Some(path.clone()), patience, file: None })
                    }
                }
            }
            (None, None) => Ok(GivenMemory::default()),
        }
    }

    /// Whether the guest's writes are logged from the start, by either field.
    pub(crate) fn tracks_dirty_pages(&self) -> bool {
        self.track_dirty_pages || self.enable_diff_snapshots
    }

    /// How the guest's clocks treat the time since the snapshot, by either field.
    pub(crate) fn clock_mode(&self) -> ClockMode {
        if self.clock_realtime { ClockMode::Realtime } else { self.clock }
    }
}

/// A tap in place of a network interface's backend: an element of `network_overrides`.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkOverride {
    iface_id: String,
    host_dev_name: String,
}

impl From<NetworkOverride> for NetOverride {
    fn from(NetworkOverride { iface_id, host_dev_name }: NetworkOverride) -> Self {
        Self { id: iface_id, backend: Some(NetBackend::Tap(host_dev_name)), ..Self::default() }
    }
}

/// A path in place of the vsock device's socket: `vsock_override`.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct VsockSocket {
    #[schema(value_type = String)]
    uds_path: PathBuf,
}

/// Adds Firecracker's overrides to volt-vmm's own.
pub(crate) fn merge_overrides(
    mut overrides: Overrides,
    networks: Vec<NetworkOverride>,
    vsock: Option<VsockSocket>,
) -> Overrides {
    overrides.networks.extend(networks.into_iter().map(NetOverride::from));
    if let Some(VsockSocket { uds_path }) = vsock {
        overrides.vsock.get_or_insert_default().socket = Some(uds_path.into());
    }
    overrides
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn firecrackers_overrides_join_volt_vmms_own() {
        let own = r#"{"networks":[{"id":"a","mac":"02:00:00:00:00:01"}],"vsock":{"cid":9}}"#;
        let networks = serde_json::from_str(r#"[{"iface_id":"b","host_dev_name":"tap1"}]"#).unwrap();
        let vsock = serde_json::from_str(r#"{"uds_path":"/v"}"#).unwrap();
        let all = r#"{"networks":[{"id":"a","mac":"02:00:00:00:00:01"},{"id":"b","backend":{"tap":"tap1"}}],
                      "vsock":{"cid":9,"socket":"/v"}}"#;
        let merged = merge_overrides(serde_json::from_str(own).unwrap(), networks, Some(vsock));
        assert_eq!(merged, serde_json::from_str(all).unwrap());
    }
}
