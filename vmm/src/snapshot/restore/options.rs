//! Options of a restore.

use std::path::PathBuf;
use std::sync::Arc;

use crate::config::{ClockMode, HugePages, Overrides};
use crate::console::Console;
use crate::machine::pool::Pool;
use crate::metadata::MetadataStore;
use crate::progress::Progress;
use crate::snapshot::disks::images::ChangedImages;
use crate::snapshot::opened::memory::Unpack;
use crate::snapshot::restore::record::RecordUntil;

/// Options of a restore.
#[derive(Debug)]
#[non_exhaustive]
pub struct RestoreOptions {
    /// Receiver of the guest's serial output.
    pub console: Console,
    /// Whether the guest runs at once, or waits for [`crate::Vm::resume`].
    pub resume: bool,
    /// Changes to the snapshot's devices for this VM.
    pub overrides: Overrides,
    /// How to treat images of disks without a layer that changed since the snapshot.
    pub changed_images: ChangedImages,
    /// Directories for the disks and sockets of a snapshot that this user's volt-vmm did not write. The
    /// snapshot gets no other host resource, except those in `overrides`.
    pub allowed: Vec<PathBuf>,
    /// Lets such a snapshot use the taps that it names. The kernel lets a process without capabilities use
    /// the taps of its user and group, and those without an owner.
    pub allow_taps: bool,
    /// Lets the VM have disks and sockets that another VM or process has, which is refused otherwise. Two
    /// VMs that write one disk damage its file system, unless that is made for it. A socket's path is taken
    /// from the other VM: its connections go on, and new ones come to this VM. A tap and a forwarded port
    /// stay refused, because the host gives each to one process.
    pub allow_shared: bool,
    /// Makes the first [`crate::Vm::rewind`] as quick as later ones: writes are logged from the start, which
    /// costs the guest a fault at the first write to each page.
    pub rewindable: bool,
    /// How the guest's clocks treat the time since the snapshot.
    pub clock: ClockMode,
    /// A pool of empty VMs. If it is empty or of another shape, the restore makes a VM.
    pub pool: Option<Arc<Pool>>,
    /// The data of the metadata service of this VM. A snapshot has none.
    pub metadata: Option<MetadataStore>,
    /// How packed memory is filled.
    pub unpack: Unpack,
    /// Gives the VM a base of its own, so that it shares no page of the snapshot's memory with other VMs. Raw
    /// memory and the pages of a diff are copied before the guest runs. Packed memory is unpacked as `unpack`
    /// says, but not by a pager. The copy takes as much memory as the snapshot has data. Disks are shared as
    /// before, and so is the memory with the VM's own forks.
    pub isolate_base: bool,
    /// The kind of pages under guest memory, in place of the snapshot's. [`HugePages::Hugetlb`] needs a
    /// memory handler.
    pub huge_pages: Option<HugePages>,
    /// Whether the working set that an earlier restore recorded, if any, is read ahead in the background.
    pub prefetch: bool,
    /// Records the pages that the guest touches, in order, until this event, and keeps them beside the
    /// snapshot in place of an earlier recording. Memory is then filled page by page and nothing is read
    /// ahead, so the VM is slow and stays so.
    pub record: Option<RecordUntil>,
    /// Gives the VM no past, since the snapshot is a template ([`crate::SnapshotOptions::is_template`]): it
    /// cannot be rewound, and its first snapshot is a full one.
    pub is_of_template: bool,
    /// Counts bytes of packed memory unpacked before the VM runs ([`Unpack::AtOnce`]), of memory copied for
    /// [`RestoreOptions::isolate_base`], and of layers copied to paths for a fork's child. Cancelling leaves
    /// no VM.
    pub progress: Progress,
}

impl Default for RestoreOptions {
    /// A running guest whose output is discarded.
    fn default() -> Self {
        Self {
            console: Console::discard(),
            resume: true,
            overrides: Overrides::default(),
            changed_images: ChangedImages::default(),
            allowed: Vec::new(),
            allow_taps: false,
            allow_shared: false,
            rewindable: false,
            clock: ClockMode::default(),
            pool: None,
            metadata: None,
            unpack: Unpack::default(),
            isolate_base: false,
            huge_pages: None,
            prefetch: true,
            record: None,
            is_of_template: false,
            progress: Progress::default(),
        }
    }
}

impl RestoreOptions {
    /// Takes the snapshot as a template for a VM without a past.
    #[must_use]
    pub fn of_template(self) -> Self {
        Self { is_of_template: true, ..self }
    }

    /// Sends the guest's serial output to `console`.
    #[must_use]
    pub fn console(self, console: Console) -> Self {
        Self { console, ..self }
    }

    /// Leaves the guest paused until [`crate::Vm::resume`].
    #[must_use]
    pub fn paused(self) -> Self {
        Self { resume: false, ..self }
    }

    /// Changes the snapshot's devices for this VM.
    #[must_use]
    pub fn overrides(self, overrides: Overrides) -> Self {
        Self { overrides, ..self }
    }

    /// Takes an empty VM from `pool` if it has one of the right shape.
    #[must_use]
    pub fn pool(self, pool: impl Into<Option<Arc<Pool>>>) -> Self {
        Self { pool: pool.into(), ..self }
    }

    /// Gives the VM's metadata service this data.
    #[must_use]
    pub fn metadata(self, store: MetadataStore) -> Self {
        Self { metadata: Some(store), ..self }
    }

    /// Fills packed memory in another way.
    #[must_use]
    pub fn unpack(self, unpack: Unpack) -> Self {
        Self { unpack, ..self }
    }

    /// Gives the VM a base of its own, which it shares with no other VM.
    #[must_use]
    pub fn isolate_base(self, isolate_base: bool) -> Self {
        Self { isolate_base, ..self }
    }

    /// Puts another kind of pages under guest memory than the snapshot's.
    #[must_use]
    pub fn huge_pages(self, kind: impl Into<Option<HugePages>>) -> Self {
        Self { huge_pages: kind.into(), ..self }
    }

    /// Records the pages that the guest touches until the event.
    #[must_use]
    pub fn record(self, marker: impl Into<Option<RecordUntil>>) -> Self {
        Self { record: marker.into(), ..self }
    }

    /// Makes the first rewind as quick as later ones.
    #[must_use]
    pub fn rewindable(self) -> Self {
        Self { rewindable: true, ..self }
    }

    /// How the guest's clocks treat the time since the snapshot, also at a rewind.
    #[must_use]
    pub fn clock(self, clock: ClockMode) -> Self {
        Self { clock, ..self }
    }

    /// Lets the VM have disks and sockets that another VM has.
    #[must_use]
    pub fn allow_shared(self, allow_shared: bool) -> Self {
        Self { allow_shared, ..self }
    }

    /// Allows a foreign snapshot these directories for its disks and sockets.
    #[must_use]
    pub fn allowed(self, directories: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        Self { allowed: directories.into_iter().map(Into::into).collect(), ..self }
    }

    /// Allows a foreign snapshot the taps that it names.
    #[must_use]
    pub fn allow_taps(self, allow_taps: bool) -> Self {
        Self { allow_taps, ..self }
    }

    /// How to treat images of disks without a layer that changed since the snapshot.
    #[must_use]
    pub fn changed_images(self, changed_images: ChangedImages) -> Self {
        Self { changed_images, ..self }
    }

    /// Whether a recorded working set is read ahead.
    #[must_use]
    pub fn prefetch(self, prefetch: bool) -> Self {
        Self { prefetch, ..self }
    }

    /// Reports to `progress`, which can cancel the restore.
    #[must_use]
    pub fn progress(self, progress: &Progress) -> Self {
        Self { progress: progress.clone(), ..self }
    }
}
