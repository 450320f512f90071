//! A VM: the owner's handle.

pub mod devices;
pub(crate) mod lent;
pub(crate) mod memory_usage;
pub(crate) mod metrics;
pub(crate) mod provisional;
mod restore;
pub(crate) mod working_set;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::config::devices::{BalloonConfig, ConsoleConfig, DiskConfig, NetConfig, VsockConfig};
use crate::config::sharing;
use crate::config::{CpuTemplate, FileRef, HugePages, IrqchipKind, VmConfig};
use crate::console::Console;
use crate::counters::snapshots::{ActPauses, SnapshotAct, SnapshotCounters};
use crate::devices::platform::Platform;
use crate::error::{Error, Invalid, Result};
use crate::events::VmEvent;
use crate::machine::Machine;
use crate::machine::pool::Pool;
use crate::machine::shared::SharedMachine;
use crate::machine::shell::{FirstVcpu, Shell, VmShape};
use crate::memory::backing::Backing;
use crate::memory::ram::GuestRam;
use crate::progress::Progress;
use crate::run_control::{Ending, RunState};
use crate::snapshot::format::working_set::{Plan, WorkingSetFile};
use crate::snapshot::history::History;
use crate::snapshot::restore::record::Recording;
use crate::snapshot::restore::rewind;
use crate::snapshot::take;
use crate::snapshot::take::capture::CaptureStats;
use crate::snapshot::take::writer;
use crate::snapshot::transfer::in_memory;
use crate::snapshot::{RestoreOptions, RewindStats, Snapshot, SnapshotFiles, SnapshotKind, SnapshotOptions};
use crate::store::Store;
use crate::store::dir::NewDir;
use crate::store::files::NewFiles;
use crate::sync::lock;
use crate::timing::RestorePhases;
use crate::vm::lent::LentVm;
use crate::vm::provisional::ProvisionalVm;
use crate::vm::working_set::PrefetchState;

/// Threads may share the first four, and hand over all.
const _: () = {
    const fn is_send<T: Send>() {}
    const fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<Vm>();
    is_send_and_sync::<Snapshot>();
    is_send_and_sync::<Pool>();
    is_send_and_sync::<Error>();
    is_send::<LentVm>();
    is_send::<VmBuilder>();
    is_send::<RestoreOptions>();
};

/// A VM: running, paused, or ended. Every method may be called from any thread. Dropping the VM ends it.
#[derive(Debug)]
pub struct Vm {
    /// Held during a capture or rewind, one at a time. Locked before the machine.
    history: Mutex<History>,
    pub(crate) machine: SharedMachine,
    /// The state of reading ahead.
    pub(crate) ahead: Mutex<PrefetchState>,
    /// Durations of the restore; absent after a boot.
    phases: Option<RestorePhases>,
    /// Counts snapshots, from the first on.
    snapshots: OnceLock<Box<SnapshotCounters>>,
    /// The place of the working set of a template, or of a fork's children, that has none yet.
    pub(crate) working_set: Option<Arc<WorkingSetFile>>,
    /// Dropped last, after the guest's end.
    pub(crate) recording: Option<Recording>,
}

impl Vm {
    /// Begins a VM that boots a kernel.
    #[must_use]
    pub fn builder() -> VmBuilder {
        VmBuilder::default()
    }

    pub(crate) fn of(machine: SharedMachine, history: History) -> Self {
        Self {
            history: Mutex::new(history),
            machine,
            ahead: Mutex::new(PrefetchState::Nothing),
            phases: None,
            snapshots: OnceLock::new(),
            working_set: None,
            recording: None,
        }
    }

    /// Adds a working set to read ahead, and a recording.
    pub(crate) fn with_working_set(mut self, ahead: Option<Plan>, recording: Option<Recording>) -> Self {
        self.ahead = Mutex::new(ahead.map_or(PrefetchState::Nothing, PrefetchState::Planned));
        self.recording = recording;
        self
    }

    /// The VM's configuration, with its present rate limits.
    #[must_use]
    pub fn config(&self) -> VmConfig {
        self.machine.config()
    }

    /// State of the VM.
    #[must_use]
    pub fn state(&self) -> RunState {
        self.machine.state()
    }

    /// Pauses all vCPUs and devices. Each vCPU finishes its current exit first. Pausing a paused VM succeeds.
    ///
    /// # Errors
    /// [`Error::NotNow`] if the guest has ended.
    pub fn pause(&self) -> Result<()> {
        self.machine.pause()
    }

    /// Calls `act` at each event of the VM from now on, on the thread that brings it about. It must not
    /// block, nor call the VM. The end is told once a call of [`Vm::wait_ending`] or [`Vm::wait_timeout`] has
    /// found it.
    pub fn follow(&self, act: impl Fn(&VmEvent) + Send + 'static) {
        self.machine.control().events().follow(act);
    }

    /// Resumes devices and vCPUs. Resuming a running VM succeeds.
    ///
    /// # Errors
    /// [`Error::NotNow`] if the guest has ended.
    pub fn resume(&self) -> Result<()> {
        self.machine.resume()?;
        if let Some(recording) = &self.recording {
            recording.notes().guest_started();
        }
        Ok(())
    }

    /// Saves the VM as `name` in `store`. The VM pauses for some milliseconds, and the snapshot has its state
    /// at that instant. The rest is written while the guest runs.
    ///
    /// # Errors
    /// The snapshot exists, the VM has ended, or the host refuses to write it. Nothing is left of the
    /// snapshot then, and the VM runs on.
    pub fn snapshot(&self, store: &Store, name: &str) -> Result<CaptureStats> {
        self.snapshot_with(store, name, &SnapshotOptions::default())
    }

    /// As [`Vm::snapshot`], with options.
    ///
    /// # Errors
    /// As [`Vm::snapshot`]; or the options ask for a diff and there is no base for it.
    pub fn snapshot_with(
        &self,
        store: &Store,
        name: &str,
        options: &SnapshotOptions,
    ) -> Result<CaptureStats> {
        self.counted(act_of(options), pauses_of, || self.snapshot_to_directory(store, name, options))
    }

    fn snapshot_to_directory(
        &self,
        store: &Store,
        name: &str,
        options: &SnapshotOptions,
    ) -> Result<CaptureStats> {
        options.validate(self.config().memory_bytes())?;
        self.warn_of_disks_that_go_on(options);
        let mut history = lock(&self.history);
        let dir = NewDir::begin(&store.path_of(name)?)?;
        let (stats, next) =
            writer::write(&self.machine, &mut history, options, &dir, self.recording.is_some())?;
        options.progress.commit().and_then(|()| dir.publish())?;
        options.progress.finish();
        log_pauses(name, &stats);
        history.published(next, self.config().memory_bytes(), options.is_template);
        Ok(stats)
    }

    /// As [`Vm::snapshot_with`], into two files. They replace files that are there: VMs that map an old one
    /// keep it. The memory of a diff ([`SnapshotOptions::diff`]) has the pages that changed since the VM's
    /// last snapshot, of whatever form; copied over the memory of that snapshot, they make the memory of this
    /// one. If there is a memory file of the right length already, the diff is copied over it at once.
    ///
    /// # Errors
    /// As [`Vm::snapshot_with`]; or a disk has a layer, or the options ask for packed memory.
    pub fn snapshot_to_files(
        &self,
        files: &SnapshotFiles,
        options: &SnapshotOptions,
    ) -> Result<CaptureStats> {
        self.counted(act_of(options), pauses_of, || self.snapshot_to_two_files(files, options))
    }

    fn snapshot_to_two_files(
        &self,
        files: &SnapshotFiles,
        options: &SnapshotOptions,
    ) -> Result<CaptureStats> {
        if options.packing.is_some() {
            return Err(Error::config("packing", Invalid::PackedFile));
        }
        options.validate(self.config().memory_bytes())?;
        take::files::refuse_layers(&self.machine)?;
        self.warn_of_disks_that_go_on(options);
        let mut history = lock(&self.history);
        let new = NewFiles::begin(&files.state, &files.memory)?;
        let is_recorded = self.recording.is_some();
        let stats = take::files::write(&self.machine, &mut history, options, &new, is_recorded)?;
        options.progress.commit().and_then(|()| new.publish())?;
        options.progress.finish();
        history.taken(self.config().memory_bytes());
        log_pauses(&files.state.display().to_string(), &stats);
        Ok(stats)
    }

    /// Warns of disks without a layer: a running guest goes on writing to them, and their snapshot does not.
    fn warn_of_disks_that_go_on(&self, options: &SnapshotOptions) {
        if self.state() == RunState::Running && !options.is_template {
            for disk in self.config().devices.disks.iter().filter(|disk| disk.is_written_in_place()) {
                log::warn!("{}", disk.warning_of_a_snapshot_while_it_runs());
            }
        }
    }

    /// Takes a snapshot in memory, for VMs restored in this process. They share this VM's memory, and each
    /// keeps its own writes. The VM pauses for some milliseconds.
    ///
    /// # Errors
    /// The VM has ended, or the host refuses.
    pub fn snapshot_in_memory(&self) -> Result<Snapshot> {
        self.snapshot_in_memory_with(&Progress::default())
    }

    /// As [`Vm::snapshot_in_memory`]. Reports to `progress`, which can cancel the snapshot: it copies pages,
    /// or all of memory if the VM has written to much of it.
    ///
    /// # Errors
    /// As [`Vm::snapshot_in_memory`]; or [`Error::Cancelled`], and the VM is as it was.
    pub fn snapshot_in_memory_with(&self, progress: &Progress) -> Result<Snapshot> {
        let pauses = |(_, stats): &(_, CaptureStats)| pauses_of(stats);
        let take = || in_memory::snapshot(&self.machine, &mut lock(&self.history), progress);
        self.counted(SnapshotAct::InMemory, pauses, take).map(|(snapshot, _)| snapshot)
    }

    /// Forks the VM: makes a VM for each of `children`, which all run on from the same instant as this one.
    ///
    /// # Errors
    /// As [`Vm::snapshot_in_memory`] and [`Snapshot::restore_with`]; or two VMs would share a resource that
    /// serves one. No child is left then, and no layer file that was created for one.
    pub fn fork(&self, children: impl IntoIterator<Item = RestoreOptions>) -> Result<Vec<Self>> {
        self.fork_with(children, &Progress::default())
    }

    /// As [`Vm::fork`]. Reports to `progress`, which can cancel the fork. A child's own
    /// [`RestoreOptions::progress`] cancels the fork, too, once that child's turn has come.
    ///
    /// # Errors
    /// As [`Vm::fork`]; or [`Error::Cancelled`].
    pub fn fork_with(
        &self,
        children: impl IntoIterator<Item = RestoreOptions>,
        progress: &Progress,
    ) -> Result<Vec<Self>> {
        let children: Vec<_> = children.into_iter().collect();
        let overrides: Vec<_> = children.iter().map(|options| options.overrides.clone()).collect();
        sharing::check(&self.config().devices, &overrides)?;
        let here = self.snapshot_in_memory_with(progress)?;
        let restore = |options| progress.check().and_then(|()| here.restore_provisionally(options));
        let restored = children.into_iter().map(restore).collect::<Result<Vec<_>>>()?;
        progress.commit()?;
        Ok(restored.into_iter().map(ProvisionalVm::keep).collect())
    }

    /// Rewinds the VM in place to the snapshot that it was restored from: its memory, and the layers of its
    /// disks. It runs afterwards if it ran before. Its vsock connections end. Effects outside the VM cannot
    /// be undone, so a VM with a writable disk without a layer is not rewound.
    ///
    /// # Errors
    /// The VM was not restored, has ended, or has such a disk; then it is as it was. Or the host refuses
    /// midway; then the VM has ended.
    pub fn rewind(&self) -> Result<RewindStats> {
        let pauses = |stats: &RewindStats| ActPauses { paused: stats.paused, ..ActPauses::default() };
        let rewind = || rewind::rewind(&self.machine, &mut lock(&self.history));
        self.counted(SnapshotAct::Rewind, pauses, rewind)
    }

    /// Runs an act and counts it.
    fn counted<T>(
        &self,
        act: SnapshotAct,
        pauses: impl FnOnce(&T) -> ActPauses,
        run: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let began = Instant::now();
        let done = run();
        let counters = self.snapshots.get_or_init(Box::default);
        counters.add(act, began.elapsed(), done.as_ref().ok().map(pauses));
        done
    }

    /// Takes read leases on the files that a restored VM's memory is made of, where the host allows it. The
    /// VM ends before another program changes one.
    pub(crate) fn hold_files(&self) {
        if let Some(origin) = &mut lock(&self.history).origin {
            origin.hold(self.machine.control());
        }
    }

    /// Types `bytes` into the guest's serial console. Waits while the port's FIFO is full.
    ///
    /// # Errors
    /// [`Error::NotNow`] if the guest has ended.
    pub fn type_in(&self, bytes: &[u8]) -> Result<()> {
        self.machine.type_in(bytes)
    }

    /// Asks the guest to end: presses Ctrl-Alt-Del if it drives the keyboard, otherwise the power button
    /// (ACPI). Nothing happens if it drives neither, or does not run.
    ///
    /// # Errors
    /// [`Error::NotNow`] if the guest has ended; or KVM refuses the interrupt.
    pub fn request_end(&self) -> Result<()> {
        if self.state() == RunState::Ended {
            return Err(Error::NotNow { act: "ask the guest to end", state: "has ended" });
        }
        self.machine.on_platform(Platform::request_end)
    }

    /// Ends the VM at once. [`Vm::wait_ending`] then returns [`Ending::Stopped`], unless the guest ended
    /// first. This does not wait for the disks; [`Vm::wait_ending`] does.
    pub fn stop(&self) {
        self.machine.control().end(Ok(Ending::Stopped));
    }

    /// Waits until the guest ends.
    ///
    /// # Errors
    /// [`Error::Crashed`] if the guest ended in a triple fault or KVM could not run it.
    pub fn wait(&self) -> Result<()> {
        match self.wait_ending()? {
            Ending::Poweroff | Ending::Reboot | Ending::Stopped => Ok(()),
            Ending::Panicked => Err(Error::Crashed("kernel panic".to_owned())),
            Ending::TripleFault => Err(Error::Crashed("triple fault".to_owned())),
        }
    }

    /// Waits until the guest has ended and its disks have all that it wrote. Returns how the guest ended.
    /// Data that the host refuses to write is reported in the log.
    ///
    /// # Errors
    /// [`Error::Crashed`] if KVM could not run the guest.
    pub fn wait_ending(&self) -> Result<Ending> {
        self.machine.wait_ending()
    }

    /// As [`Vm::wait_ending`]. Returns `None` if the guest has not ended after `timeout`. Flushing the disks
    /// may take longer.
    ///
    /// # Errors
    /// As [`Vm::wait_ending`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<Ending>> {
        self.machine.wait_timeout(timeout)
    }

    /// Returns a descriptor that becomes readable when the guest ends, and stays readable even if it is read.
    /// An event loop polls it in place of a thread that waits. [`Vm::wait_ending`] then says how the guest
    /// ended, once its disks have what it wrote. Each call duplicates one eventfd; the caller closes the
    /// duplicate.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub fn ended_fd(&self) -> Result<OwnedFd> {
        self.machine.ended_fd()
    }

    /// Whether the guest has ended and its writes are still going to the disks' files. [`Vm::wait_ending`] is
    /// then at work, or a disk has a request under way, for which a vCPU may wait in its last exit. If the
    /// process exits meanwhile, the writes survive as long as the host runs; a crash of the host may then
    /// lose writes that were not flushed.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        self.machine.is_settling()
    }
}

/// The kind of a snapshot, by its options.
fn act_of(options: &SnapshotOptions) -> SnapshotAct {
    match options.kind {
        SnapshotKind::Full => SnapshotAct::Full,
        SnapshotKind::Diff => SnapshotAct::Diff,
    }
}

fn pauses_of(stats: &CaptureStats) -> ActPauses {
    ActPauses { paused: stats.paused, disks_stopped: stats.disks_stopped }
}

fn log_pauses(snapshot: &str, stats: &CaptureStats) {
    let CaptureStats { paused, disks_stopped, .. } = stats;
    log::info!(
        "snapshot {snapshot}: paused the guest for {paused:.1?}; its disks took no requests for \
         {disks_stopped:.1?} before the pause"
    );
}

/// Ends the VM, as [`Vm::stop`], and waits for its disks.
impl Drop for Vm {
    fn drop(&mut self) {
        self.stop();
        let _ = self.wait_ending(); // how it ended, nobody asks any more
    }
}

/// Builds a VM that boots a kernel.
#[derive(Debug)]
pub struct VmBuilder {
    kernel: Option<FileRef>,
    config: VmConfig,
    console: Console,
    paused: bool,
}

impl Default for VmBuilder {
    fn default() -> Self {
        Self { kernel: None, config: VmConfig::new(""), console: Console::discard(), paused: false }
    }
}

impl VmBuilder {
    /// Replaces the whole configuration.
    #[must_use]
    pub fn config(self, config: VmConfig) -> Self {
        Self { kernel: Some(config.boot.kernel.clone()), config, ..self }
    }

    /// The kernel: an ELF `vmlinux` or a bzImage.
    #[must_use]
    pub fn kernel(self, kernel: impl Into<FileRef>) -> Self {
        Self { kernel: Some(kernel.into()), ..self }
    }

    /// The initial RAM disk.
    #[must_use]
    pub fn initrd(mut self, initrd: impl Into<FileRef>) -> Self {
        self.config.boot.initrd = Some(initrd.into());
        self
    }

    /// The kernel command line; [`crate::config::DEFAULT_CMDLINE`] by default.
    #[must_use]
    pub fn cmdline(mut self, cmdline: impl Into<String>) -> Self {
        self.config.boot.cmdline = cmdline.into();
        self
    }

    /// Number of vCPUs; 1 by default.
    #[must_use]
    pub fn vcpus(mut self, vcpus: u8) -> Self {
        self.config.vcpus = vcpus;
        self
    }

    /// Guest memory in MiB; 128 by default.
    #[must_use]
    pub fn memory_mib(mut self, mib: u64) -> Self {
        self.config.memory_mib = mib;
        self
    }

    /// Whether each two vCPUs are threads of one core; false by default.
    #[must_use]
    pub fn smt(mut self, smt: bool) -> Self {
        self.config.smt = smt;
        self
    }

    /// Size of the pages under guest memory; 4 KiB by default.
    #[must_use]
    pub fn huge_pages(mut self, huge_pages: HugePages) -> Self {
        self.config.huge_pages = huge_pages;
        self
    }

    /// Place of the interrupt controllers; split by default.
    #[must_use]
    pub fn irqchip(mut self, irqchip: IrqchipKind) -> Self {
        self.config.irqchip = irqchip;
        self
    }

    /// Whether a restore, a fork or a rewind gives the guest a new generation id; true by default.
    #[must_use]
    pub fn vmgenid(mut self, vmgenid: bool) -> Self {
        self.config.vmgenid = vmgenid;
        self
    }

    /// Changes of the CPU that the guest sees; none by default.
    #[must_use]
    pub fn cpu_template(mut self, template: CpuTemplate) -> Self {
        self.config.cpu_template = Some(Box::new(template));
        self
    }

    /// Adds a disk. The guest numbers disks in the order in which they are added.
    #[must_use]
    pub fn disk(mut self, disk: DiskConfig) -> Self {
        self.config.devices.disks.push(disk);
        self
    }

    /// Adds a network interface.
    #[must_use]
    pub fn network(mut self, network: NetConfig) -> Self {
        self.config.devices.networks.push(network);
        self
    }

    /// Gives the guest a vsock device.
    #[must_use]
    pub fn vsock(mut self, vsock: VsockConfig) -> Self {
        self.config.devices.vsock = Some(vsock);
        self
    }

    /// Gives the guest a balloon, through which it returns memory to the host.
    #[must_use]
    pub fn balloon(mut self, balloon: BalloonConfig) -> Self {
        self.config.devices.balloon = Some(balloon);
        self
    }

    /// Gives the guest a source of randomness (virtio-rng).
    #[must_use]
    pub fn rng(mut self) -> Self {
        self.config.devices.rng = true;
        self
    }

    /// Gives the guest a console beside the serial port, for the client of a socket.
    #[must_use]
    pub fn console_device(mut self, console: ConsoleConfig) -> Self {
        self.config.devices.console = Some(console);
        self
    }

    /// Describes the devices on the kernel command line, for kernels without ACPI. Needs
    /// [`IrqchipKind::Kernel`].
    #[must_use]
    pub fn on_cmdline(mut self) -> Self {
        self.config.devices.on_cmdline = true;
        self
    }

    /// Receiver of the guest's serial output; discarded by default.
    #[must_use]
    pub fn console(self, console: Console) -> Self {
        Self { console, ..self }
    }

    /// Leaves the guest paused before its first instruction, until [`Vm::resume`].
    #[must_use]
    pub fn start_paused(self) -> Self {
        Self { paused: true, ..self }
    }

    /// Boots the VM.
    ///
    /// # Errors
    /// A setting is out of range, a file cannot be loaded, or the host refuses the VM. The guest has not run
    /// then.
    pub fn start(self) -> Result<Vm> {
        let Self { kernel, mut config, console, paused } = self;
        config.boot.kernel =
            kernel.ok_or_else(|| Error::config("kernel", "no kernel given; a VM needs one to boot"))?;
        config.validate_boot()?;
        let ram = GuestRam::reserve(config.memory_bytes())?;
        let backing = match config.huge_pages {
            HugePages::None | HugePages::Transparent => Backing::Fresh,
            HugePages::Hugetlb => Backing::FreshHuge,
        };
        backing.map(&ram)?;
        let shell = Shell::new(ram, VmShape::of(&config), FirstVcpu::OwnThread)?;
        let mut machine = Machine::new(shell, &config, console)?;
        machine.boot(&config)?;
        let vm = Vm::of(SharedMachine::new(machine, config), History::default());
        if !paused {
            vm.resume()?;
        }
        Ok(vm)
    }
}
