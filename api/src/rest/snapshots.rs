//! Snapshots that are taken and restored, for the requests of both faces.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use serde::Deserialize;
use utoipa::ToSchema;
use volt_vmm::config::Overrides;
use volt_vmm::{
    AtCapture, CaptureStats, ChangedImages, ClockMode, Console, Error, HugePages, PagerOptions, Progress,
    RecordUntil, RestoreOptions, Snapshot, SnapshotFiles, SnapshotKind, SnapshotOptions, Store, Unpack,
};

use super::Api;
use super::counts::TimedAct;
use super::error::Fault;
use super::operations::OperationOf;
use crate::guest_agent;
use crate::process::jail;
use crate::process::serial_output::SerialOutput;
use crate::process::shared_pager::SharedPager;
use crate::process::start;
use crate::process::start::SnapshotPlace;

/// A snapshot to restore.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SnapshotToRestore {
    /// Its directory, or its state file.
    #[schema(value_type = String)]
    pub(crate) path: PathBuf,
    /// Its memory file, if it has two files.
    #[schema(value_type = Option<String>)]
    pub(crate) memory_path: Option<PathBuf>,
    /// The socket of the memory handler that fills its memory, in place of a memory file.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub(crate) memory_handler: Option<PathBuf>,
    /// Seconds to wait for the memory handler, instead of the default.
    #[serde(default)]
    pub(crate) handler_patience: Option<u64>,
    /// Leaves the guest paused.
    #[serde(default)]
    pub(crate) paused: bool,
    /// Ends the VM if its guest's agent does not wake it whole, after a quiet snapshot.
    #[serde(default)]
    pub(crate) require_agent: bool,
    /// Differences of this VM from the snapshot.
    #[serde(default)]
    pub(crate) overrides: Overrides,
    /// Directories whose disks and sockets a snapshot of another user may use.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub(crate) allow_paths: Vec<PathBuf>,
    /// Lets the VM have disks and sockets that another VM has.
    #[serde(default)]
    pub(crate) allow_shared: bool,
    /// How the guest's clocks treat the time since the snapshot.
    #[serde(default)]
    pub(crate) clock: ClockMode,
    /// Unpacks packed memory before the guest runs, not on touch.
    #[serde(default)]
    pub(crate) unpack: bool,
    /// Has a pager unpack it, which VMs of one snapshot share.
    pub(crate) pager: Option<SharedPager>,
    /// Gives the VM a base of its own.
    #[serde(default)]
    pub(crate) isolate_base: bool,
    /// The kind of pages under its memory, in place of the snapshot's.
    pub(crate) huge_pages: Option<HugePages>,
    /// Records the pages that the guest touches first, until this event.
    pub(crate) record: Option<RecordUntil>,
    /// Reads recorded pages ahead.
    #[serde(default = "usually")]
    pub(crate) prefetch: bool,
    /// Makes the first rewind as fast as later ones.
    #[serde(default)]
    pub(crate) rewindable: bool,
    /// How to treat changed images of disks; an override accepts one.
    #[serde(skip)]
    pub(crate) changed_images: ChangedImages,
    /// Grants the disks, sockets and taps that a snapshot of another user names in the jail around this
    /// process.
    #[serde(skip)]
    pub(crate) grants_jail: bool,
    /// Refuses to map the file of memory that was in huge pages, as Firecracker does.
    #[serde(skip)]
    pub(crate) refuses_huge_pages_of_a_file: bool,
}

impl SnapshotToRestore {
    /// Its place.
    fn place(&mut self) -> Result<SnapshotPlace, Fault> {
        let path = std::mem::take(&mut self.path);
        match (self.memory_path.take(), &self.memory_handler, self.handler_patience) {
            (Some(_), Some(_), _) => {
                Err(Fault::refused("memory_handler: memory_path names the memory already; give one of them"))
            }
            (_, None, Some(_)) => {
                Err(Fault::refused("handler_patience: is for a memory_handler; leave it out, or give one"))
            }
            (None, Some(socket), patience) => {
                Ok(SnapshotPlace::Handled(path, start::handler(socket, patience)))
            }
            (memory, None, None) => Ok(SnapshotPlace::of(path, memory)),
        }
    }

    /// Refuses what Firecracker refuses, in its words, which its clients may look for.
    fn check_pages(
        is_refused: bool,
        place: &SnapshotPlace,
        snapshot: &Snapshot,
        asked: Option<HugePages>,
    ) -> volt_vmm::Result<()> {
        match (place, asked.unwrap_or(snapshot.config().huge_pages)) {
            (SnapshotPlace::Files(_), HugePages::Hugetlb) if is_refused => {
                let field = if asked.is_some() { "huge_pages" } else { "mem_backend" };
                let problem =
                    "Cannot restore hugetlbfs backed snapshot by mapping the memory file. Please use uffd.";
                Err(Error::Config { field, problem: problem.into() })
            }
            _ => Ok(()),
        }
    }
}

fn usually() -> bool {
    true
}

/// Restores a snapshot. Clients may follow its progress and cancel it.
pub(crate) async fn restore(
    api: &Api,
    mut snapshot: SnapshotToRestore,
    output: SerialOutput,
) -> Result<(), Fault> {
    api.refuse_after_configuration()?;
    if snapshot.require_agent && snapshot.paused {
        let problem = "require_agent: a paused guest does not answer; leave out paused, or this";
        return Err(Fault::refused(problem));
    }
    let place = snapshot.place()?;
    let unpack = Unpack::from_options(snapshot.unpack, snapshot.pager.map(PagerOptions::from))?;
    if snapshot.grants_jail {
        snapshot.allow_paths.push("/".into());
    }
    let progress = Progress::default();
    let operation = api.begin(OperationOf::Load, None, &progress)?;
    let mut options = RestoreOptions::default()
        .progress(&progress)
        .allow_taps(snapshot.grants_jail && !jail::is_of_root())
        .overrides(snapshot.overrides)
        .allowed(snapshot.allow_paths)
        .unpack(unpack)
        .isolate_base(snapshot.isolate_base)
        .prefetch(snapshot.prefetch)
        .record(snapshot.record)
        .clock(snapshot.clock)
        .huge_pages(snapshot.huge_pages)
        .allow_shared(snapshot.allow_shared)
        .metadata(api.metadata.clone())
        .changed_images(snapshot.changed_images);
    options.resume = !snapshot.paused;
    let (counts, requested) = (Arc::clone(&api.counts), Instant::now());
    let make = move |pool: Option<_>, console: Console| {
        let _operation = operation;
        // A prewarmed VM does not log writes; using it saves more time than the log. Over a memory handler,
        // only the log tells written pages from fetched ones.
        let is_handled = matches!(place, SnapshotPlace::Handled(..));
        options.rewindable = snapshot.rewindable && (pool.is_none() || is_handled);
        let called = Instant::now();
        let opened = start::open(&place, &options)?;
        let refuses = snapshot.refuses_huge_pages_of_a_file;
        SnapshotToRestore::check_pages(refuses, &place, &opened, options.huge_pages)?;
        let vm = Arc::new(start::restore(&opened, options.pool(pool).console(console))?);
        counts.called(TimedAct::Load, called.elapsed());
        guest_agent::wake(&vm, snapshot.require_agent)?;
        Ok(vm)
    };
    api.start("load a snapshot", move || output.open(), move |console, slot| make(slot.prewarmed(), console))
        .await?;
    api.counts.requested(TimedAct::Load, requested.elapsed());
    Ok(())
}

/// Takes a snapshot in a directory, or in a state file and a memory file, with the workload frozen if
/// `quiesce` is set. Clients may follow its progress and cancel it, by the `id` of their choice too.
pub(crate) async fn take(
    api: &Api,
    (path, memory): (PathBuf, Option<PathBuf>),
    mut options: SnapshotOptions,
    quiesce: bool,
    id: Option<String>,
) -> Result<CaptureStats, Fault> {
    let operation = api.begin(OperationOf::Snapshot, id, &options.progress)?;
    let act = match options.kind {
        SnapshotKind::Full => TimedAct::FullSnapshot,
        SnapshotKind::Diff => TimedAct::DiffSnapshot,
    };
    api.timed(act, Some(&options.progress.clone()), move |slot| {
        let _operation = operation;
        let vm = slot.vm("create a snapshot")?;
        if memory.is_some() {
            vm.check_two_files()?;
        }
        let snapshot = |options: &SnapshotOptions| match &memory {
            Some(memory) => vm.snapshot_to_files(&SnapshotFiles::new(&path, memory), options),
            None => {
                let (store, name) = Store::split(&path)?;
                vm.snapshot_with(&store, &name, options)
            }
        };
        guest_agent::capture(&vm, quiesce, |note, thaw| {
            options.note = note.value();
            if quiesce {
                options.captured = AtCapture::call(Arc::clone(thaw));
            }
            snapshot(&options)
        })
    })
    .await
}
