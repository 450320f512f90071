//! The start of a VM that runs an image, up to the moment when its main process can start.
//!
//! ```text
//!   boots ── agent listens ──[ warm snapshot: captured ]──┐
//!                                └── written beside       ├── volumes ── wake ── ready
//!   is restored from a warm snapshot ─────────────────────┘
//! ```
//!
//! Both ways lead to the same guest: a later run of an image is a restore, and nobody can tell.

use std::fs::File;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::process::setpriority_process;
use volt_job::job::Mount;
use volt_vmm::{AtCapture, FileRef, RunState, SnapshotOptions, Store, Vm};

use crate::agent::control;
use crate::failure::Failure;
use crate::guest_agent;
use crate::threads;

/// The steps between the start of the guest and that of its main process.
#[derive(Debug, Default)]
pub(crate) struct ImageStart {
    /// The snapshot to take, if it is missing.
    pub(crate) warm: Option<NewWarm>,
    /// Disks that have a placeholder so far, by their ids, and their files.
    pub(crate) volumes: Vec<(String, PathBuf)>,
    /// Disks to mount.
    pub(crate) mounts: Vec<Mount>,
    /// Whether this process may keep the working set of the snapshot that the VM is restored from.
    pub(crate) keeps_working_set: bool,
}

/// A warm snapshot to take.
#[derive(Debug)]
pub(crate) struct NewWarm {
    pub(crate) directory: PathBuf,
    /// Kept until the snapshot is complete.
    pub(crate) lock: File,
    /// Whether the VM is for the snapshot alone: it ends once it is captured, and fails without it.
    pub(crate) is_all: bool,
}

/// The nice value of the thread that writes a warm snapshot (setpriority(2)): a tenth of the weight of other
/// threads.
const WRITERS_PRIORITY: i32 = 10;

/// The thread that writes a warm snapshot.
pub(crate) type Writer = JoinHandle<volt_vmm::Result<()>>;

impl ImageStart {
    /// Takes the steps. If the VM ends meanwhile, its end tells why. Returns the thread that still writes.
    ///
    /// # Errors
    /// The agent does not answer, or a volume has no file.
    pub(crate) fn take(self, vm: &Arc<Vm>) -> Result<Option<Writer>, Failure> {
        let is_all = self.warm.as_ref().is_some_and(|warm| warm.is_all);
        match control::await_agent(vm)? {
            true => {}
            false if is_all => {
                return Err(Failure::config("image", "its VM ended before its agent answered"));
            }
            false => return Ok(None),
        }
        log::debug!("the agent answers");
        let writer = self.warm.map(|warm| warm.take(vm)).transpose()?;
        if is_all {
            vm.stop();
            return Ok(writer);
        }
        let finished =
            self.volumes.iter().try_for_each(|(id, file)| vm.change_disk(id, &FileRef::from(file.as_path())));
        // A volume may be mounted over files that get the VM's names.
        let mount = || if self.mounts.is_empty() { Ok(()) } else { control::mount(vm, &self.mounts) };
        match finished.and_then(|()| mount()).and_then(|()| guest_agent::wake_before_all(vm)) {
            Err(_) if vm.state() == RunState::Ended => {}
            finished => finished?,
        }
        log::debug!("the main process may start");
        Ok(writer)
    }
}

impl NewWarm {
    /// Takes the snapshot. Returns once the guest goes on; the thread writes the rest.
    ///
    /// # Errors
    /// The host refuses the thread.
    fn take(self, vm: &Arc<Vm>) -> Result<Writer, Failure> {
        let (captured, is_captured) = channel();
        let vm = Arc::clone(vm);
        let writer = threads::spawn("warm", "to take the warm snapshot", move || {
            let is_all = self.is_all;
            let written = self.write(&vm, captured);
            if is_all {
                return written;
            }
            // The end of the VM tells enough.
            if let Err(error) = written
                && vm.state() != RunState::Ended
            {
                let problem = volt_vmm::problem(&error);
                log::warn!("the next run of this image starts cold again: no warm snapshot: {problem}");
            }
            Ok(())
        })?;
        // A thread that fails drops its end.
        let _ = is_captured.recv();
        Ok(writer)
    }

    fn write(self, vm: &Arc<Vm>, captured: Sender<()>) -> volt_vmm::Result<()> {
        let (store, name) = Store::split(&self.directory)?;
        let is_all = self.is_all;
        guest_agent::capture_before_all(vm, |note, let_others| {
            let (let_others, captured) = (Arc::clone(let_others), Mutex::new(captured));
            let goes_on = move || {
                let_others();
                let captured = captured.lock().unwrap_or_else(PoisonError::into_inner);
                // After an error of another thread, none waits.
                let _ = captured.send(());
                // The command may need the only processor. A refusal makes it wait longer.
                if !is_all {
                    let _ = setpriority_process(None, WRITERS_PRIORITY);
                }
            };
            let mut options = SnapshotOptions::default();
            options.note = note.value();
            options.captured = AtCapture::call(Arc::new(goes_on));
            options.is_template = true;
            vm.snapshot_with(&store, &name, &options).map(drop)
        })?;
        drop(self.lock);
        Ok(())
    }
}
