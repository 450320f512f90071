//! The capture that snapshots and forks share: memory, and beside it the disks' layers, the configuration and
//! the images.

use std::collections::BTreeMap;

use super::room::DiskSpace;
use crate::config::VmConfig;
use crate::devices::virtio::block::Image;
use crate::error::Result;
use crate::machine::Machine;
use crate::machine::shared::SharedMachine;
use crate::progress::Progress;
use crate::run_control::RunState;
use crate::snapshot::disks::images;
use crate::snapshot::disks::layers;
use crate::snapshot::disks::layers::{FinishedLayer, LayerCopies};
use crate::snapshot::format::manifest::Metadata;
use crate::snapshot::history::History;
use crate::snapshot::take::capture::{
    Capture, CaptureRequest, CopyTarget, SideCapture, SpaceOnDisk, capture,
};
use crate::snapshot::take::trim::BalloonTrim;

/// A VM at one instant.
pub(crate) struct VmAtInstant {
    pub captured: Capture,
    /// The configuration at that instant. It may change before and after the pause.
    pub config: VmConfig,
    pub metadata: Metadata,
    /// Copies of the disks' layers, not synced yet.
    pub layers: Vec<FinishedLayer>,
}

/// The parts of a VM that are copied beside memory.
pub(crate) struct DiskCapture<'a> {
    pub vm: &'a SharedMachine,
    pub layers: LayerCopies,
    /// The disk space that takes the layers, unless they go to memory.
    pub room: Option<&'a DiskSpace<'a>>,
    /// The inflated balloon, if the snapshot trims the guest.
    pub trimmed: Option<BalloonTrim<'a>>,
}

/// Captures a running VM. The caller keeps other captures out.
///
/// # Errors
/// As [`capture`]; or an image cannot be read.
pub(crate) fn take(
    history: &mut History,
    request: &CaptureRequest<'_>,
    to: CopyTarget<'_>,
    mut beside: DiskCapture<'_>,
) -> Result<VmAtInstant> {
    let vm = beside.vm;
    let bytes = vm.config().memory_bytes();
    let (captured, (config, images)) =
        history.collect_dirty(bytes, |written| capture(vm, request, to, written, &mut beside))?;
    let layers = beside.layers.finish(&|bytes| about_to_write(beside.room, bytes))?;
    let mut metadata = Metadata::of(&config)?;
    metadata.disks = images::contents(&images)?;
    metadata.layers = layers::digests(&layers);
    Ok(VmAtInstant { captured, config, metadata, layers })
}

impl SideCapture for DiskCapture<'_> {
    type Taken = (VmConfig, BTreeMap<String, Vec<Image>>);

    fn copy_bulk(&mut self, progress: &Progress) -> Result<()> {
        about_to_write(self.room, self.layers.bytes());
        images::warm(self.vm)?;
        self.layers.copy_bulk(progress)
    }

    fn look(&mut self) -> u64 {
        self.layers.look()
    }

    fn copied(&self) -> u64 {
        self.layers.copied()
    }

    fn held(&self) -> u64 {
        self.layers.held()
    }

    fn pass(&mut self, guest: RunState, goes_on: &dyn Fn(u64) -> bool) -> Result<bool> {
        // A pause reserves nothing: it has little to copy, and file systems may be slow to reserve.
        if let Some(room) = self.room.filter(|_| guest == RunState::Running) {
            room.reserve_more(self.layers.place_left()?)?;
        }
        self.layers.pass(guest, &|bytes| about_to_write(self.room, bytes), goes_on)
    }

    fn take(&mut self, machine: &Machine) -> Result<Self::Taken> {
        self.trimmed.iter().try_for_each(|trimmed| trimmed.undo(machine))?;
        Ok((self.vm.config(), images::of(machine)?))
    }
}

/// Releases reserved space, if any was reserved.
fn about_to_write(room: Option<&DiskSpace<'_>>, bytes: u64) {
    room.into_iter().for_each(|room| room.about_to_write(bytes));
}
