//! `volt-vmm restore`: runs a VM from a snapshot. It is the fast path: only the restore itself happens before
//! the guest runs.

use std::mem::ManuallyDrop;
use std::path::PathBuf;

use clap::{ArgGroup, Args};
use volt_vmm::{ClockMode, RestoreOptions, VmShape};

use super::Outcome;
use super::complete;
use super::confine::ConfineArgs;
use super::log_options::LogArgs;
use super::overrides::OverrideArgs;
use super::snapshot_place;
use super::unpack::UnpackArgs;
use super::vms::children::own_sockets;
use super::vms::naming::NamingArgs;
use super::working_set::WorkingSetArgs;
use crate::process::guest_note::GuestNote;
use crate::process::start::SnapshotPlace;
use crate::process::{bounds, confinement, home, start};
use crate::run_dir::record::Origin;
use crate::session::Session;

/// Run a VM from a snapshot, which stays unchanged
///
/// Example: volt-vmm restore --detach --name web warm
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("served").args(["api_socket", "name", "detach", "remove"]).multiple(true))]
pub(crate) struct Restore {
    /// Name of the snapshot, or its directory; with --memory-file or --memory-handler, its state file
    #[arg(value_name = "SNAPSHOT", add = complete::snapshots_and_paths())]
    pub(super) dir: PathBuf,

    /// Map this file as the guest's memory. Whether it belongs to the state is not checked
    #[arg(long, value_name = "FILE")]
    pub(super) memory_file: Option<PathBuf>,

    /// Fill the guest's memory on touch by the handler that listens at this socket, which speaks as
    /// Firecracker's page-fault handlers do
    #[arg(long, value_name = "SOCKET", conflicts_with = "memory_file")]
    pub(super) memory_handler: Option<PathBuf>,

    /// Time to wait for the memory handler, at the start and for each page, before the VM ends [default: 10]
    #[arg(long, value_name = "SECONDS", requires = "memory_handler")]
    pub(super) handler_patience: Option<u64>,

    #[command(flatten)]
    pub(super) naming: NamingArgs,

    #[command(flatten)]
    pub(super) overrides: OverrideArgs,

    /// Allow a snapshot of another user, or of this user without its mark, to use disks, sockets and the base
    /// of a diff in this directory. With --confine strict, the process opens files in it while its guest
    /// runs. Repeatable
    #[arg(long = "allow-path", value_name = "DIR")]
    pub(super) allowed: Vec<PathBuf>,

    /// Use disks and sockets that another VM or process uses. Two VMs that write one disk damage its file
    /// system. A socket's path is taken from the other VM, which gets no new connections. A tap or a
    /// forwarded port cannot be shared
    #[arg(long)]
    pub(super) allow_shared: bool,

    #[command(flatten)]
    pub(super) unpack: UnpackArgs,

    /// Give the VM a base of its own, so that it shares no page of the snapshot's memory with other VMs. It
    /// takes as much memory as the snapshot has data. Raw memory is copied before the guest runs, about 1 ms
    /// for each MiB of data; packed memory is unpacked on touch, or before with --unpack. Disks stay shared
    #[arg(long)]
    pub(super) isolate_base: bool,

    #[command(flatten)]
    pub(super) working_set: WorkingSetArgs,

    /// Fail, and end the VM, if the agent of a guest from a quiet snapshot (snapshot create --quiesce) does
    /// not wake it whole: with entropy, time and names of its own, and all hooks
    #[arg(long, conflicts_with = "paused")]
    pub(super) require_agent: bool,

    /// Guest time: continue from the snapshot, or jump by the time since (realtime)
    #[arg(long, value_name = "continue|realtime", default_value_t)]
    pub(super) clock: ClockMode,

    /// Leave the guest paused until a client of the API resumes it
    #[arg(long, requires = "served")]
    pub(super) paused: bool,

    /// Serve the REST API on this unix socket
    #[arg(long, value_name = "SOCKET")]
    pub(super) api_socket: Option<PathBuf>,

    #[command(flatten)]
    pub(super) log: LogArgs,

    #[command(flatten)]
    pub(super) confine: ConfineArgs,
}

impl Restore {
    /// Returns a restore without other options.
    pub(super) fn of(dir: PathBuf, api_socket: Option<PathBuf>) -> Self {
        Self {
            dir,
            memory_file: None,
            memory_handler: None,
            handler_patience: None,
            naming: NamingArgs::default(),
            overrides: OverrideArgs::default(),
            allowed: Vec::new(),
            allow_shared: false,
            unpack: UnpackArgs::default(),
            isolate_base: false,
            working_set: WorkingSetArgs::default(),
            clock: ClockMode::default(),
            paused: false,
            require_agent: false,
            api_socket,
            log: LogArgs::default(),
            confine: ConfineArgs::default(),
        }
    }

    pub(crate) fn execute(mut self) -> Outcome {
        if !self.naming.is_given() {
            return self.restore();
        }
        let (naming, api_socket) = (std::mem::take(&mut self.naming), self.api_socket.take());
        let origin = snapshot_place::existing(&self.dir);
        let origin = std::path::absolute(&origin).unwrap_or(origin);
        naming.run(Origin::Snapshot(origin), api_socket, |api_socket| Self { api_socket, ..self }.restore())
    }

    fn restore(mut self) -> Outcome {
        if self.memory_file.is_none() && self.memory_handler.is_none() {
            self.dir = snapshot_place::existing(&self.dir);
        }
        self.log.apply(&home::name())?;
        let may_wait = self.unpack.may_wait() || self.isolate_base || self.memory_handler.is_some();
        let mut options = RestoreOptions::default()
            .overrides(self.overrides.into())
            .allowed(self.allowed)
            .allow_shared(self.allow_shared)
            .unpack(self.unpack.unpack()?)
            .isolate_base(self.isolate_base)
            .clock(self.clock)
            .prefetch(!self.working_set.no_prefetch)
            .record(self.working_set.record);
        options.resume = !self.paused;
        // Strict confinement has limits for the VM's shape, and bounds for its files.
        // Not dropped: this thread may not close files once it has run a vCPU, and then the process ends.
        let has_directory = self.memory_file.is_none() && self.memory_handler.is_none();
        let directory = has_directory.then(|| self.dir.clone());
        let place = match self.memory_handler {
            Some(socket) => SnapshotPlace::Handled(self.dir, start::handler(&socket, self.handler_patience)),
            None => SnapshotPlace::of(self.dir, self.memory_file),
        };
        let snapshot = ManuallyDrop::new(start::open(&place, &options)?);
        let config = snapshot.config();
        if let Some(home) = home::get() {
            if let Some(main) = GuestNote::in_snapshot(&snapshot).main {
                home.take_main(main)?;
            }
            own_sockets(&mut options.overrides, &config.devices, home.directory());
        }
        let bounds = || {
            let mut devices = config.devices.clone();
            // An invalid override is told when the snapshot is restored.
            let _ = options.overrides.clone().apply(&mut devices);
            bounds::of(&options.allowed, Some(&devices), directory.as_deref())
        };
        let mut choice = self.confine.choice(bounds);
        self.api_socket.iter().for_each(|socket| choice.add_socket(socket));
        if choice.strict.is_some() && !self.working_set.no_prefetch {
            // Cheaper here than from the empty root. The restore tells of an error.
            let _ = snapshot.look_for_working_set();
        }
        confinement::apply(choice, Some(VmShape::of(config)))?;
        let mut session = Session::open(self.api_socket.as_deref())?.requiring_agent(self.require_agent);
        if may_wait {
            session.watch_signals()?;
        }
        session.run("restore a snapshot", || start::restore_lent(&snapshot, options))
    }
}
