//! The session of a process: signals, API socket and console around its one VM, and their clean-up.
//!
//! Call order: [`Session::open`], then [`Session::run`] or [`Session::wait_for_vm`]. Before the guest runs,
//! the session only blocks the signals and binds the socket: one system call without a socket. Threads,
//! terminal and API server start after the guest, so they do not delay a restore.

pub(crate) mod forked_child;
mod forwarder;
mod helper;
pub(crate) mod named;
mod remover;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use volt_vmm::internal::paths::wake_opener;
use volt_vmm::sandbox::{self, ThreadKind};
use volt_vmm::{Ending, Error, LentVm, Vm};

use crate::failure::Failure;
use crate::guest_agent;
use crate::image_start::{ImageStart, Writer};
use crate::output::recorded;
use crate::process::exit::Status;
use crate::process::home::Home;
use crate::process::vm_slot::Slot;
use crate::process::{home, signals};
use crate::rest::{ApiOptions, FlushedMetrics, Server, Socket, SocketFile};
use crate::terminal::console;
use crate::threads;

/// Signals, API socket and console around one VM.
#[derive(Debug)]
pub(crate) struct Session {
    slot: Arc<Slot>,
    /// `None` once the server has taken it.
    socket: Option<Socket>,
    file: Option<Arc<SocketFile>>,
    /// How the API is served.
    options: ApiOptions,
    /// The metrics of the VM, once the API is served or there is a file for them.
    metrics: Option<Arc<FlushedMetrics>>,
    watches_signals: bool,
    /// Whether the VM ends if the agent of a guest from a quiet snapshot does not wake it.
    requires_agent: bool,
    /// The steps to the start of an image's main process.
    image: Option<ImageStart>,
    /// The thread that writes a warm snapshot.
    writer: Option<Writer>,
    /// The thread that reports the end of a recording.
    recording: Option<JoinHandle<()>>,
}

impl Session {
    /// Blocks the signals and binds the API socket.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be bound, for example because another process serves it.
    pub(crate) fn open(api_socket: Option<&Path>) -> Result<Self, Failure> {
        Self::with_slot(Slot::with_id(home::name()), api_socket)
    }

    /// Does as [`Session::open`], around a named or prewarmed slot.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub(crate) fn with_slot(slot: Slot, api_socket: Option<&Path>) -> Result<Self, Failure> {
        signals::block();
        let socket = api_socket.map(Socket::bind).transpose()?;
        let file = socket.as_ref().map(Socket::file);
        let (slot, options) = (Arc::new(slot), ApiOptions::default());
        let (watches_signals, requires_agent) = (false, false);
        Ok(Self {
            slot,
            socket,
            file,
            options,
            metrics: None,
            watches_signals,
            requires_agent,
            image: None,
            writer: None,
            recording: None,
        })
    }

    /// Ends the VM if the agent of a guest from a quiet snapshot does not wake it.
    #[must_use]
    pub(crate) fn requiring_agent(mut self, requires_agent: bool) -> Self {
        self.requires_agent = requires_agent;
        self
    }

    /// Takes the steps to the start of an image's main process, once the guest runs.
    #[must_use]
    pub(crate) fn starting_image(mut self, image: Option<ImageStart>) -> Self {
        self.image = image;
        self
    }

    /// Serves the API in another way than by default.
    #[must_use]
    pub(crate) fn serving(mut self, options: ApiOptions) -> Self {
        self.metrics = options.metrics.clone();
        self.options = options;
        self
    }

    /// Creates the VM with `make`, runs it until it ends, and returns the exit status.
    ///
    /// # Errors
    /// The error of `make`, a thread that the host cannot start, or a crash of the guest.
    pub(crate) fn run(
        mut self,
        act: &'static str,
        make: impl FnOnce() -> volt_vmm::Result<LentVm>,
    ) -> Result<Status, Failure> {
        let mut lent = None;
        // The returned VM is dropped at once: this thread may not close what it would own last.
        if let Err(error) = self.slot.start(act, || Ok(Arc::clone(lent.insert(make()?).vm()))) {
            return self.not_started(error, signals::ended_by());
        }
        let lent = lent.expect("make returned a VM");
        // This thread runs the first vCPU and is confined as such, so another one does everything else.
        lent.run(move |vm| {
            let services = self.start_services(&vm).inspect_err(|_| vm.stop());
            let ending = vm.wait_ending();
            self.shut_down(ending, services?)
        })?
    }

    /// Returns the outcome of a failed start: the status of signal `by_signal` (0: none) if that closed the
    /// slot before the start, otherwise the error.
    fn not_started(&self, error: Error, by_signal: i32) -> Result<Status, Failure> {
        if by_signal != 0 && self.slot.is_refusal_of_closed(&error) {
            return Ok(Status::Signal(by_signal));
        }
        Err(error.into())
    }

    /// Serves the API of a process without a VM until a client starts one, then runs that VM until it ends.
    ///
    /// # Errors
    /// A thread that the host cannot start, or a crash of the guest.
    pub(crate) fn wait_for_vm(mut self) -> Result<Status, Failure> {
        // A client will load or boot soon.
        wake_opener();
        sandbox::confine_this_thread(ThreadKind::Worker);
        // First, because clients wait for it. Signals are blocked until they are watched.
        let server = self.serve()?;
        self.watch_signals()?;
        server.iter().for_each(Server::expect_call);
        if let Some(vm) = self.slot.wait() {
            self.recording = recorded::report_at_end(&vm)?;
            console::attach(&vm)?;
            return self.shut_down(vm.wait_ending(), server);
        }
        self.finish(server);
        // A signal closed the slot, or a client cancelled a start.
        Ok(Status::of_ending(Ending::Stopped, signals::ended_by()))
    }

    /// Starts to receive signals. [`Session::run`] does this once the guest runs. A slow start calls it
    /// before, so that a signal can interrupt it.
    ///
    /// # Errors
    /// The host cannot start the thread.
    pub(crate) fn watch_signals(&mut self) -> Result<(), Failure> {
        if !std::mem::replace(&mut self.watches_signals, true) {
            let file = self.file.clone();
            signals::watch(Arc::clone(&self.slot), move || {
                home::get().into_iter().for_each(|home| home.ends_at_once(signals::ended_by()));
                if let Some(file) = &file {
                    file.remove();
                }
            })?;
        }
        Ok(())
    }

    /// Starts signals, console and API server beside the running guest.
    fn start_services(&mut self, vm: &Arc<Vm>) -> Result<Option<Server>, Failure> {
        log::debug!("the guest runs");
        self.recording = recorded::report_at_end(vm)?;
        self.watch_signals()?;
        match home::get() {
            Some(home) => home.vm_runs(vm)?,
            None => console::attach(vm)?,
        }
        let server = self.serve()?;
        match self.image.take() {
            Some(image) => {
                let keeps_working_set = image.keeps_working_set;
                self.writer = image.take(vm)?;
                // Its time begins when the command may start.
                if keeps_working_set {
                    note_working_set(vm);
                }
            }
            None => {
                guest_agent::wake(vm, self.requires_agent)?;
                note_working_set_of_child(vm);
            }
        }
        home::get().into_iter().for_each(Home::tell_started);
        Ok(server)
    }

    fn serve(&mut self) -> Result<Option<Server>, Failure> {
        if let Some(metrics) = &self.metrics {
            metrics.start(&self.slot)?;
        }
        let Some(socket) = self.socket.take() else { return Ok(None) };
        let mut options = std::mem::take(&mut self.options);
        options.metrics = Some(Arc::clone(self.metrics.get_or_insert_default()));
        Server::start(Arc::clone(&self.slot), socket, options).map(Some)
    }

    /// Cleans up after the guest's end and returns the exit status.
    fn shut_down(
        &mut self,
        ending: volt_vmm::Result<Ending>,
        server: Option<Server>,
    ) -> Result<Status, Failure> {
        console::leave();
        if let Some(recording) = self.recording.take() {
            let _ = recording.join();
        }
        let main = home::get().and_then(|home| home.main_ended(&ending));
        home::get().into_iter().for_each(|home| home.vm_has_ended(&ending, signals::ended_by()));
        self.finish(server);
        // Others know the end by now.
        let written = self.writer.take().map_or(Ok(Ok(())), Writer::join);
        if let Some(main) = main {
            return Ok(Status::Program(main.status));
        }
        let by_signal = signals::ended_by();
        if let Ok(Err(error)) = written
            && by_signal == 0
        {
            return Err(error.into());
        }
        Ok(Status::of_ending(ending?, by_signal))
    }

    /// Writes the last metrics, removes the socket's file, then answers the API calls in progress.
    fn finish(&self, server: Option<Server>) {
        signals::vm_has_ended();
        if let Some(metrics) = &self.metrics {
            metrics.finish(&self.slot);
        }
        if let Some(file) = &self.file {
            file.remove();
        }
        if let Some(server) = server {
            server.finish();
        }
    }
}

/// How long a command may be silent before its VM's working set is kept. A server, and the main process of a
/// sandbox, may never print anything.
const SILENT: Duration = Duration::from_secs(10);

/// Lets the first VM that is restored from a warm snapshot keep what its guest touches up to the first output
/// of its command: later ones have these pages from the start.
fn note_working_set(vm: &Arc<Vm>) {
    let Some(home) = home::get().filter(|_| vm.lacks_working_set()) else { return };
    // The VM may end before.
    let vm = Arc::downgrade(vm);
    home.at_first_sign_of_main(SILENT, move || {
        let kept = vm.upgrade().map(|vm| vm.keep_working_set());
        if let Some(Err(error)) = kept {
            log::warn!("later runs of this image read no memory ahead: {}", volt_vmm::problem(&error));
        }
    });
}

/// Lets the first child of a fork keep what its guest touches up to the end of the first connection that a
/// program of the host makes to it, as for a command. Children of later forks have these pages from the
/// start. A connection counts if it has ended before this call: the parent's client may run a command at
/// once.
fn note_working_set_of_child(vm: &Arc<Vm>) {
    if !vm.lacks_working_set() {
        return;
    }
    let (tell_end, has_ended) = sync_channel(1);
    let tell_end = move || {
        // The thread that waits may have failed to start.
        let _ = tell_end.send(());
    };
    if !vm.at_end_of_connection(tell_end) {
        return;
    }
    // The VM may end before.
    let vm = Arc::downgrade(vm);
    let keep = move || {
        let kept = has_ended.recv().ok().and_then(|()| vm.upgrade()).map(|vm| vm.keep_working_set());
        if let Some(Err(error)) = kept {
            log::warn!("children of later forks map no memory ahead: {}", volt_vmm::problem(&error));
        }
    };
    if let Err(error) = threads::spawn("working-set", "to keep a working set", keep) {
        log::warn!("{}", volt_vmm::problem(&error));
    }
}

/// Removes the socket's file, also after an error or a panic.
impl Drop for Session {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            file.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_before_the_start_is_a_status_and_not_an_error() {
        let session = Session::with_slot(Slot::new(), None).unwrap();
        session.slot.close();
        let refused = || {
            session
                .slot
                .start("restore a snapshot", || -> volt_vmm::Result<Vm> {
                    unreachable!("the slot is closed")
                })
                .unwrap_err()
        };
        assert_eq!(session.not_started(refused(), libc::SIGTERM).unwrap(), Status::Signal(libc::SIGTERM));
        assert!(session.not_started(refused(), 0).is_err(), "a client closed the slot");
        let other = Error::Crashed("made to fail".to_owned());
        assert!(session.not_started(other, libc::SIGTERM).is_err(), "a failed start keeps its error");
    }
}
