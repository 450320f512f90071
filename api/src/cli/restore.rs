//! `volt-vmm restore`: runs a VM from a snapshot. It is the fast path: only the restore itself happens before
//! the guest runs.

use std::mem::ManuallyDrop;
use std::path::PathBuf;

use clap::Args;
use volt_vmm::{ClockMode, RestoreOptions, VmShape};

use super::Outcome;
use super::confine::ConfineArgs;
use super::overrides::OverrideArgs;
use super::unpack::UnpackArgs;
use super::working_set::WorkingSetArgs;
use crate::process::start::SnapshotPlace;
use crate::process::{bounds, confinement, start};
use crate::session::Session;

/// Run a VM from a snapshot, which stays unchanged
#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// Directory of the snapshot; with --memory-file, its state file
    pub(super) dir: PathBuf,

    /// Map this file as the guest's memory. Whether it belongs to the state is not checked
    #[arg(long, value_name = "FILE")]
    pub(super) memory_file: Option<PathBuf>,

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

    /// Guest time: continue from the snapshot, or jump by the time since (realtime)
    #[arg(long, value_name = "continue|realtime", default_value_t)]
    pub(super) clock: ClockMode,

    /// Leave the guest paused until a client of the API resumes it
    #[arg(long, requires = "api_socket")]
    pub(super) paused: bool,

    /// Serve the REST API on this unix socket
    #[arg(long, value_name = "SOCKET")]
    pub(super) api_socket: Option<PathBuf>,

    #[command(flatten)]
    pub(super) confine: ConfineArgs,
}

impl Restore {
    /// Returns a restore without other options.
    pub(super) fn of(dir: PathBuf, api_socket: Option<PathBuf>) -> Self {
        Self {
            dir,
            memory_file: None,
            overrides: OverrideArgs::default(),
            allowed: Vec::new(),
            allow_shared: false,
            unpack: UnpackArgs::default(),
            isolate_base: false,
            working_set: WorkingSetArgs::default(),
            clock: ClockMode::default(),
            paused: false,
            api_socket,
            confine: ConfineArgs::default(),
        }
    }

    pub(crate) fn execute(self) -> Outcome {
        let may_wait = self.unpack.may_wait() || self.isolate_base;
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
        let directory = self.memory_file.is_none().then(|| self.dir.clone());
        let place = SnapshotPlace::of(self.dir, self.memory_file);
        let snapshot = ManuallyDrop::new(start::open(&place, &options)?);
        let config = snapshot.config();
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
        let mut session = Session::open(self.api_socket.as_deref())?;
        if may_wait {
            session.watch_signals()?;
        }
        session.run("restore a snapshot", || start::restore_lent(&snapshot, options))
    }
}
