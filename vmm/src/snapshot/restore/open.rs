//! Opens a snapshot once, and restores any number of VMs from it.

mod vm_memory;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::{HugePages, VmConfig};
use crate::error::{Error, Result};
use crate::kvm::host;
use crate::machine::shared::SharedMachine;
use crate::machine::shell::{FirstVcpu, Shell, VmShape};
use crate::machine::{Machine, MachineState};
use crate::memory::backing::{Backing, prefer_huge_pages};
use crate::memory::base::OverlayPages;
use crate::memory::files::lease::Leases;
use crate::memory::holes;
use crate::memory::page_set::PageSet;
use crate::memory::ram::GuestRam;
use crate::pager::handler::MemoryHandler;
use crate::persist::Persist;
use crate::snapshot::Metadata;
use crate::snapshot::disks::images;
use crate::snapshot::disks::layers;
use crate::snapshot::format::files::SnapshotFiles;
use crate::snapshot::format::manifest;
use crate::snapshot::format::place::open_ahead;
use crate::snapshot::format::working_set::{Plan, WorkingSet, WorkingSetFile};
use crate::snapshot::history::{History, RestoredFrom};
use crate::snapshot::lineage::{Lineage, PagesToCapture};
use crate::snapshot::opened::grant;
use crate::snapshot::opened::grant::Grants;
use crate::snapshot::opened::location::Location;
use crate::snapshot::opened::memory::{CapturedBase, LazyMemory, MemorySource, SnapshotMemory, Unpack};
use crate::snapshot::opened::relative;
use crate::snapshot::opened::relative::{Digests, OpenedMemory};
use crate::snapshot::opened::state::{read_manifest, read_named};
use crate::snapshot::restore::host_fit;
use crate::snapshot::restore::options::RestoreOptions;
use crate::snapshot::restore::record::{RecordUntil, Recording, TouchLog};
use crate::store::Store;
use crate::timing::{PhaseClock, RestorePhases, step_done};

/// An opened snapshot: verified, and checked against this host. VMs restored from it share it. Nothing
/// modifies it.
#[derive(Debug)]
pub struct Snapshot {
    location: Location,
    metadata: Metadata,
    config: VmConfig,
    /// Author of the state file, which decides the grants.
    origin: grant::Authorship,
    machine: Arc<MachineState>,
    memory: MemorySource,
    /// How a fork's children fill the packed memory that their parent fills on touch. Absent for a snapshot
    /// on disk.
    fills: Option<Unpack>,
    /// The pages of a diff.
    over: Option<OverlayPages>,
    lineage: Option<Lineage>,
    /// Digests that the content of both must have. A snapshot in memory has none.
    digests: Digests,
    layers: layers::LayerFiles,
    /// The files that VMs map.
    files: Arc<Leases>,
    /// The working set. A snapshot in memory has one of a fork's children.
    working_set: Option<Arc<WorkingSetFile>>,
}

/// The parts of a VM that was restored. Its vCPUs are halted.
pub(crate) struct Restored {
    pub machine: SharedMachine,
    pub history: History,
    /// The working set to read ahead, if an earlier restore recorded one.
    pub ahead: Option<Plan>,
    /// The recording of the pages that the guest touches, if the options ask for one.
    pub recording: Option<Recording>,
    /// The place of the working set of a template, or of a fork's children, that has none yet.
    pub working_set: Option<Arc<WorkingSetFile>>,
    /// Layers that were created for this VM. Its owner keeps them once the VM runs.
    pub layers: layers::FreshLayers,
    /// Durations of the phases so far.
    pub phases: RestorePhases,
}

impl Snapshot {
    /// Opens and verifies the snapshot `name`.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if it is missing, damaged, of a newer version, or its files do not belong
    /// together; [`Error::HostCpu`] if its guest uses CPU features that this host lacks.
    pub fn open(store: &Store, name: &str) -> Result<Self> {
        Self::open_allowing(store, name, &[])
    }

    /// Opens and verifies the snapshot `name`. If it is a diff that this user's volt-vmm did not write, its
    /// base must lie in one of the directories `allowed`.
    ///
    /// # Errors
    /// As [`Snapshot::open`].
    pub fn open_allowing(store: &Store, name: &str, allowed: &[PathBuf]) -> Result<Self> {
        let path = store.path_of(name)?;
        let _ahead = open_ahead(&path);
        let (manifest, file) = read_manifest(&path)?;
        step_done("state load, CRC, parse");
        let manifest::Manifest { metadata, config, machine, .. } = manifest;
        let origin = grant::origin_of(&file, &metadata, &config);
        drop(file); // the heap has room for what comes next
        step_done("origin");
        let OpenedMemory { memory, over, lineage, digests } = {
            let grants = Grants::of_paths(&origin, &path, allowed);
            relative::open(&path, &metadata, &|base| grants.check_base(base))?
        };
        let layers = layers::LayerFiles::Directory(path.clone());
        let files = leases(&path, &memory, over.as_ref())?;
        let working_set = Some(WorkingSetFile::of(&path, &metadata.id, metadata.memory_bytes));
        let memory = MemorySource::File(Arc::new(memory));
        let (state, memory) = ((metadata, config, machine), (memory, over));
        let snapshot = Self {
            origin,
            digests,
            working_set,
            ..Self::of_own(Location::Directory(path), state, memory, lineage, layers, files)
        };
        snapshot.check_host()?;
        step_done("host check");
        Ok(snapshot)
    }

    /// Opens a snapshot in two files. Whether the memory belongs to the state is not checked, except for its
    /// length.
    ///
    /// # Errors
    /// As [`Snapshot::open`].
    pub fn open_files(files: &SnapshotFiles) -> Result<Self> {
        let _ahead = files.open_ahead();
        let (manifest, text) = read_named(&files.state)?;
        step_done("state load, CRC, parse");
        let manifest::Manifest { metadata, config, machine, .. } = manifest;
        check_is_whole(&files.state, &metadata)?;
        let origin = grant::origin_of(&text, &metadata, &config);
        drop(text);
        step_done("origin");
        let memory = SnapshotMemory::open_raw(&files.memory, metadata.memory_bytes)?;
        let leases = leases(&files.state, &memory, None)?;
        let memory = (MemorySource::File(Arc::new(memory)), leases);
        Self::of_state_file(&files.state, origin, (metadata, config, machine), memory)
    }

    /// Opens a state file. A memory handler has the memory, and fills that of each VM when it is touched.
    ///
    /// # Errors
    /// As [`Snapshot::open`]. The handler is reached by a restore.
    pub fn open_handled(state: &Path, handler: &MemoryHandler) -> Result<Self> {
        let (manifest, text) = read_named(state)?;
        step_done("state load, CRC, parse");
        let manifest::Manifest { metadata, config, machine, .. } = manifest;
        check_is_whole(state, &metadata)?;
        let origin = grant::origin_of(&text, &metadata, &config);
        let memory = MemorySource::Handler(handler.clone());
        Self::of_state_file(state, origin, (metadata, config, machine), (memory, Arc::default()))
    }

    /// A snapshot whose memory lies apart from its state.
    fn of_state_file(
        path: &Path,
        origin: grant::Authorship,
        state: (Metadata, VmConfig, MachineState),
        (memory, leases): (MemorySource, Arc<Leases>),
    ) -> Result<Self> {
        // A state file alone has no layers, but it may be of a snapshot in a directory.
        let beside = path.parent().unwrap_or(Path::new("")).to_owned();
        let (location, layers) = (Location::Files(path.to_owned()), layers::LayerFiles::Directory(beside));
        let memory = (memory, None);
        let snapshot = Self { origin, ..Self::of_own(location, state, memory, None, layers, leases) };
        snapshot.check_host()?;
        step_done("host check");
        Ok(snapshot)
    }

    /// A snapshot in this process's memory, from which VMs are forked. `held` are the files that VMs map,
    /// which may include its memory.
    pub(crate) fn in_memory(
        state: (Metadata, VmConfig, MachineState),
        (memory, over): (CapturedBase, Option<OverlayPages>),
        lineage: Option<Lineage>,
        layers: BTreeMap<String, File>,
        held: Option<&Arc<Leases>>,
    ) -> Result<Self> {
        let location = Location::Memory;
        let (memory, fills, held) = match memory {
            CapturedBase::Whole(file) => {
                let held = held.filter(|held| held.cover(&file)).map(Arc::clone);
                (Arc::new(SnapshotMemory::Raw(file, location.path().to_owned())), None, held)
            }
            CapturedBase::Lazy(LazyMemory { memory, unpack }) => (memory, Some(unpack), None),
        };
        let files = held.map_or_else(|| leases(location.path(), &memory, over.as_ref()), Ok)?;
        let layers = layers::LayerFiles::Held(layers);
        let memory = (MemorySource::File(memory), over);
        Ok(Self { fills, ..Self::of_own(location, state, memory, lineage, layers, files) })
    }

    /// With the working set of a fork's children.
    pub(crate) fn with_working_set(self, working_set: Option<Arc<WorkingSetFile>>) -> Self {
        Self { working_set, ..self }
    }

    /// Without a working set, also without one that a fork's children share: none of them can then name pages
    /// that are mapped for another.
    #[must_use]
    pub fn without_working_set(self) -> Self {
        self.with_working_set(None)
    }

    /// The place of its working set.
    pub(crate) fn working_set_file(&self) -> Option<&Arc<WorkingSetFile>> {
        self.working_set.as_ref()
    }

    /// A snapshot of this process, with no files.
    fn of_own(
        location: Location,
        (metadata, config, machine): (Metadata, VmConfig, MachineState),
        (memory, over): (MemorySource, Option<OverlayPages>),
        lineage: Option<Lineage>,
        layers: layers::LayerFiles,
        files: Arc<Leases>,
    ) -> Self {
        let (origin, fills, working_set) = (grant::Authorship::Own, None, None);
        let (machine, digests) = (Arc::new(machine), Digests::default());
        Self {
            location,
            metadata,
            config,
            origin,
            machine,
            memory,
            fills,
            over,
            lineage,
            digests,
            layers,
            files,
            working_set,
        }
    }

    /// A snapshot received from another process's memory, if this host can run it.
    ///
    /// # Errors
    /// [`Error::HostCpu`].
    pub(crate) fn received(self) -> Result<Self> {
        self.check_host()?;
        Ok(self)
    }

    /// The lineage of VMs restored from it.
    pub(crate) fn lineage(&self) -> Option<&Lineage> {
        self.lineage.as_ref()
    }

    /// The layers of its disks.
    pub(crate) fn layers(&self) -> &layers::LayerFiles {
        &self.layers
    }

    /// The snapshot's metadata.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The machine's state, without memory.
    pub(crate) fn machine(&self) -> &MachineState {
        &self.machine
    }

    /// The complete memory, or the base's with a diff's pages.
    ///
    /// # Errors
    /// [`Error::Config`]: a memory handler has it.
    pub(crate) fn memory(&self) -> Result<(&SnapshotMemory, Option<&OverlayPages>)> {
        Ok((&**self.memory.file()?, self.over.as_ref()))
    }

    /// Memory that is filled on touch, if that of the captured VM was.
    pub(crate) fn fills(&self) -> Option<&Unpack> {
        self.fills.as_ref()
    }

    /// Digests that memory and the pages over it must have.
    pub(crate) fn digests(&self) -> Digests {
        self.digests
    }

    /// Author of the state file.
    pub(crate) fn origin(&self) -> &grant::Authorship {
        &self.origin
    }

    /// Its directory.
    pub(crate) fn path(&self) -> &Path {
        self.location.path()
    }

    /// The working set, if a restore recorded one.
    ///
    /// # Errors
    /// The set is damaged, or another snapshot's.
    pub(crate) fn working_set(&self) -> Result<Option<Arc<WorkingSet>>> {
        self.working_set.as_ref().map_or(Ok(None), |beside| beside.set())
    }

    /// The configuration of the captured VM.
    #[must_use]
    pub fn config(&self) -> &VmConfig {
        &self.config
    }

    /// Number of chunks of packed memory fetched so far, each once, on touch or ahead ([`Unpack::OnTouch`]).
    /// VMs with a base of their own are not counted ([`RestoreOptions::isolate_base`]).
    #[must_use]
    pub fn chunks_fetched(&self) -> u64 {
        self.memory.file().map_or(0, |memory| memory.chunks_fetched())
    }

    /// Makes a halted machine of the snapshot, with the other parts of a VM.
    ///
    /// # Errors
    /// The host refuses memory, a VM, or a part of the state; or [`Error::Cancelled`].
    pub(crate) fn restored(&self, options: RestoreOptions, first: FirstVcpu) -> Result<Restored> {
        let mut clock = PhaseClock::start();
        options.progress.begin(0);
        options.progress.check()?;
        self.check_handler(&options)?;
        let ahead = self.ahead(&options)?;
        let notes = options.record.map(|marker| TouchLog::new(marker, self.metadata.memory_bytes));
        let mut config = self.config.clone();
        let is_mapped = matches!(self.memory, MemorySource::File(_));
        config.huge_pages = config.huge_pages.restored(options.huge_pages, config.memory_mib, is_mapped)?;
        let grants = Grants::of_paths(&self.origin, self.location.path(), &options.allowed);
        Grants { taps: options.allow_taps, ..grants }
            .check_devices(&mut config.devices, &options.overrides)?;
        let given = options.overrides.disks.iter().filter(|disk| disk.layer.is_some());
        let placed = given.map(|disk| disk.id.clone()).collect();
        options.overrides.clone().apply(&mut config.devices)?;
        if options.allow_shared {
            config.devices.allow_shared();
        }
        if let Some(service) = &mut config.devices.metadata {
            // Clones of one snapshot share no data.
            service.store = options.metadata.clone().unwrap_or_default();
        }
        let unpack =
            self.fills.as_ref().filter(|_| options.unpack == Unpack::OnTouch).unwrap_or(&options.unpack);
        let vm_memory::VmMemory { backing, lazy, over, files } =
            self.memory_of_vm(&options, config.huge_pages, unpack, notes.as_ref())?;
        let mut layers =
            layers::create_restore_layers(&self.layers, &mut config.devices, &placed, &options.progress)?;
        let shape = VmShape { logs_writes: options.rewindable, ..VmShape::of(&config) };
        let pooled = options.pool.as_ref().and_then(|pool| pool.take(shape, &self.machine));
        let (pooled, _refill) = pooled.unzip();
        let mut phases = RestorePhases { prepare: clock.phase_done(), ..RestorePhases::default() };
        let shell = shell(pooled, shape, backing, first)?;
        if config.huge_pages == HugePages::Transparent && shell.ram.faults().is_none() {
            prefer_huge_pages(&shell.ram);
            holes::prefer_huge_pages(&shell.ram)?;
        }
        shell.end_vm_on_fault_failure();
        phases.machine = clock.phase_done();
        let mut machine = Machine::new(shell, &config, options.console)?;
        machine.set_clock_mode(options.clock);
        config.devices.release_checked();
        self.layers.check(&self.metadata.layers, &machine)?;
        let (then, recorded) = (&self.metadata.disks, &self.config.devices.disks);
        images::check(then, recorded, &machine, &options.overrides, options.changed_images)?;
        phases.devices = clock.phase_done();
        machine.restore(&self.machine).map_err(|source| Error::Restore {
            path: self.location.state_file(),
            source: Box::new(source),
        })?;
        phases.state = clock.phase_done();
        let recording = notes.map(|notes| self.record(notes, &machine)).transpose()?;
        layers.close_unnamed();
        let recorded = self.over.as_ref().filter(|_| recording.is_some()).map(|over| Arc::clone(&over.pages));
        let lineage = self.lineage.clone().map(|lineage| match &recorded {
            Some(pages) => {
                Lineage { may_differ: PagesToCapture::NotBase(Some(Arc::clone(pages))), ..lineage }
            }
            None => lineage,
        });
        let origin = RestoredFrom {
            path: self.location.state_file(),
            machine: Arc::clone(&self.machine),
            lazy,
            over,
            changed: options.rewindable.then(|| PageSet::none(shape.memory_bytes)),
            files,
            listeners: Vec::new(),
        };
        let since_last = match (&self.location, &lineage) {
            // The parent's last snapshot is not the child's.
            (Location::Memory, _) => None,
            (_, Some(lineage)) => Some(lineage.may_differ.clone()),
            // The page tables show fetched pages like written ones.
            _ if options.rewindable && matches!(self.memory, MemorySource::Handler(_)) => {
                Some(PagesToCapture::Written(PageSet::none(shape.memory_bytes)))
            }
            (_, None) => Some(PagesToCapture::NotBase(recorded)),
        };
        options.progress.commit()?;
        let is_of_template = options.is_of_template;
        let mut history =
            History { lineage, since_last, origin: Some(origin), is_of_template, for_children: None };
        if is_of_template {
            history.forget();
        }
        let machine = SharedMachine::new(machine, config);
        let keeps_one = is_of_template || matches!(self.location, Location::Memory);
        let lacks_one = keeps_one && ahead.is_none() && recording.is_none();
        let working_set = self.working_set.clone().filter(|_| lacks_one);
        Ok(Restored { machine, history, ahead, recording, working_set, layers, phases })
    }

    /// The working set to read ahead. Complete memory needs none. A set that is wrong is an error here,
    /// before there is a VM, unless the options use none.
    fn ahead(&self, options: &RestoreOptions) -> Result<Option<Plan>> {
        if options.record.is_none() && !options.prefetch {
            return Ok(None);
        }
        let set = self.working_set()?;
        step_done("working set");
        let is_packed = self.memory.file().is_ok_and(|memory| matches!(**memory, SnapshotMemory::Packed(_)));
        let is_there = is_packed && options.unpack == Unpack::AtOnce;
        let over = self.over.as_ref().map(|over| Arc::clone(&over.pages));
        Ok(set.filter(|_| options.record.is_none() && !is_there).map(|set| Plan { set, over }))
    }

    /// Starts the recording, which keeps the log at its end.
    fn record(&self, notes: Arc<TouchLog>, machine: &Machine) -> Result<Recording> {
        let beside = self.working_set.as_ref().filter(|_| !matches!(self.location, Location::Memory));
        let beside = beside.ok_or_else(|| {
            Error::config("record", "only a VM that is restored from a snapshot on disk can be recorded")
        })?;
        let (reached, ended) = (Arc::clone(&notes), Arc::clone(&notes));
        let reached = move || reached.reached();
        match notes.marker() {
            RecordUntil::Console => machine.platform().at_line(reached),
            RecordUntil::Vsock if machine.platform().at_connection(reached) => {}
            RecordUntil::Vsock => {
                return Err(Error::config(
                    "record",
                    "this VM has no vsock device, so no vsock connection can end the recording; choose \
                     another event",
                ));
            }
            RecordUntil::After(_) | RecordUntil::Api => {}
        }
        machine.shell().control.at_end(move || ended.vm_ended());
        Recording::begin(notes, Arc::clone(beside))
    }

    /// Reads the working set now, if there is one, in place of the first restore.
    ///
    /// # Errors
    /// It cannot be read, or is damaged. The restore tries again.
    #[cfg(feature = "internal")]
    pub fn look_for_working_set(&self) -> Result<()> {
        self.working_set.as_ref().map_or(Ok(()), |file| file.set().map(drop))
    }

    /// If this KVM offers the same features as that of the snapshot's host, no comparison is needed.
    fn check_host(&self) -> Result<()> {
        let taken_with = self.metadata.host_features.as_deref();
        if taken_with.is_some_and(|digest| host::feature_digest().is_ok_and(|here| here == digest)) {
            return Ok(());
        }
        let missing = host_fit::missing(&self.config, &self.machine)?;
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::HostCpu { path: self.location.path().to_owned(), missing: missing.join(", ") })
    }
}

/// Refuses the state of a diff in a directory, whose pages lie beside it.
fn check_is_whole(state: &Path, metadata: &Metadata) -> Result<()> {
    match metadata.base {
        None => Ok(()),
        Some(_) => {
            let problem = "belongs to a diff in a directory; restore that directory";
            Err(Error::snapshot(state, problem))
        }
    }
}

/// The files that VMs restored from this map.
fn leases(path: &Path, memory: &SnapshotMemory, over: Option<&OverlayPages>) -> Result<Arc<Leases>> {
    let files = Leases::of(memory.raw().into_iter().chain(over.map(|over| &over.file)));
    files.map(Arc::new).map_err(|source| Error::file("look at the memory of", path.display(), source))
}

/// An empty VM with this memory: a pooled one, or a new one.
fn shell(pooled: Option<Shell>, shape: VmShape, backing: Backing, first: FirstVcpu) -> Result<Shell> {
    if let Some(shell) = pooled {
        step_done("shell from the pool");
        backing.map(&shell.ram)?;
        expect_faults_of(shape.vcpus, &shell.ram);
        return Ok(shell);
    }
    let ram = GuestRam::reserve(shape.memory_bytes)?;
    backing.map(&ram)?;
    expect_faults_of(shape.vcpus, &ram);
    Shell::new(ram, shape, first)
}

/// Starts another thread for page faults, so that the second vCPU's are answered during a cold read for the
/// first. A VM with one vCPU pays nothing.
fn expect_faults_of(vcpus: u8, ram: &GuestRam) {
    if vcpus > 1
        && let Some(faults) = ram.faults()
    {
        faults.handler().expect_several();
    }
}
