//! The life of a process around its one VM: signals, API socket, console, and what is cleaned up at the end.
//!
//! Call order: [`Session::open`], then [`Session::run`] with what makes the VM, or [`Session::wait_for_vm`]. Before the
//! guest runs only the signals are blocked and the socket, if any, is bound: one system call without a socket. Threads, terminal
//! and API server come after it, so a restore pays for none of them.

pub(crate) mod forked_child;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use volt_vmm::{Ending, Error, LentVm, Vm};

use crate::failure::Failure;
use crate::output::recorded;
use crate::process::exit::Status;
use crate::process::signals;
use crate::process::vm_slot::Slot;
use crate::rest::{Server, Socket, SocketFile};
use crate::terminal;
use crate::terminal::console;

/// See the module.
#[derive(Debug)]
pub(crate) struct Session {
    slot: Arc<Slot>,
    /// Until the server has it.
    socket: Option<Socket>,
    file: Option<Arc<SocketFile>>,
    watched: bool,
    /// Who waits for the end of a recording.
    recorded: Option<JoinHandle<()>>,
}

impl Session {
    /// Blocks the signals and claims the API socket. A socket that someone else serves is found out here, before any
    /// guest is started.
    ///
    /// # Errors
    /// The socket cannot be had.
    pub(crate) fn open(api_socket: Option<&Path>) -> Result<Self, Failure> {
        Self::of(Slot::new(), api_socket)
    }

    /// The same around a slot that is not like any other.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub(crate) fn of(slot: Slot, api_socket: Option<&Path>) -> Result<Self, Failure> {
        signals::block();
        let socket = api_socket.map(Socket::bind).transpose()?;
        let file = socket.as_ref().map(Socket::file);
        Ok(Self { slot: Arc::new(slot), socket, file, watched: false, recorded: None })
    }

    /// Makes the VM, stays with it until it ends, and says how.
    ///
    /// # Errors
    /// What `make` says, a host that refuses threads, or a crash of the guest.
    pub(crate) fn run(
        mut self,
        act: &'static str,
        make: impl FnOnce() -> volt_vmm::Result<LentVm>,
    ) -> Result<Status, Failure> {
        let mut lent = None;
        let started = self.slot.start(act, || Ok(Arc::clone(lent.insert(make()?).vm())));
        let lent = match started {
            Ok(_) => lent.expect("a VM was made"),
            Err(error) => return self.not_started(error, signals::ended_by()),
        };
        let mut attended = None;
        let ending = lent.run(|vm| attended = Some(self.attend(vm).inspect_err(|_| vm.stop())));
        let server = attended.transpose()?.flatten();
        self.wind_up(ending, server)
    }

    /// How a process ends that has no VM: by the signal `by_signal` (0: none), if that came before the VM was
    /// begun.
    fn not_started(&self, error: Error, by_signal: i32) -> Result<Status, Failure> {
        if by_signal != 0 && self.slot.refuses_for_its_end(&error) {
            return Ok(Status::Signal(by_signal));
        }
        Err(error.into())
    }

    /// Serves the API of a process without a VM until a client starts one, then stays with that.
    ///
    /// # Errors
    /// A host that refuses threads, or a crash of the guest.
    pub(crate) fn wait_for_vm(mut self) -> Result<Status, Failure> {
        self.watch_signals()?;
        let server = self.serve()?;
        if let Some(vm) = self.slot.wait() {
            self.recorded = recorded::tell_at_end(&vm)?;
            console::attach(&vm)?;
            return self.wind_up(vm.wait_ending(), server);
        }
        self.finish(server);
        Ok(Status::Signal(signals::ended_by()))
    }

    /// Takes signals from now on. [`Session::run`] does this once the guest runs; a start that may take long
    /// does it before, so that it can be interrupted.
    ///
    /// # Errors
    /// The host refuses the thread.
    pub(crate) fn watch_signals(&mut self) -> Result<(), Failure> {
        if !std::mem::replace(&mut self.watched, true) {
            let file = self.file.clone();
            signals::watch(Arc::clone(&self.slot), move || {
                if let Some(file) = &file {
                    file.remove();
                }
            })?;
        }
        Ok(())
    }

    /// Starts signals, console and API beside the guest.
    fn attend(&mut self, vm: &Arc<Vm>) -> Result<Option<Server>, Failure> {
        self.recorded = recorded::tell_at_end(vm)?;
        self.watch_signals()?;
        console::attach(vm)?;
        self.serve()
    }

    fn serve(&mut self) -> Result<Option<Server>, Failure> {
        self.socket.take().map(|socket| Server::start(Arc::clone(&self.slot), socket)).transpose()
    }

    /// What is left to do when the guest has ended.
    fn wind_up(
        &mut self,
        ending: volt_vmm::Result<Ending>,
        server: Option<Server>,
    ) -> Result<Status, Failure> {
        terminal::leave();
        if let Some(recorded) = self.recorded.take() {
            let _ = recorded.join();
        }
        self.finish(server);
        Ok(Status::of_ending(ending?, signals::ended_by()))
    }

    /// No new client finds the socket; those whose calls are being carried out get their answers.
    fn finish(&self, server: Option<Server>) {
        signals::vm_has_ended();
        if let Some(file) = &self.file {
            file.remove();
        }
        if let Some(server) = server {
            server.finish();
        }
    }
}

/// However the session ends, by an error or a panic too, its socket's file goes.
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
    fn signal_before_the_vm_is_begun_is_the_status_and_no_error() {
        let session = Session::of(Slot::new(), None).unwrap();
        session.slot.close();
        let refused = || {
            session
                .slot
                .start("restore a snapshot", || -> volt_vmm::Result<Vm> { unreachable!("it is closed") })
                .unwrap_err()
        };
        assert_eq!(session.not_started(refused(), libc::SIGTERM).unwrap(), Status::Signal(libc::SIGTERM));
        assert!(session.not_started(refused(), 0).is_err(), "a client has ended it");
        let other = Error::Crashed("made to fail".to_owned());
        assert!(session.not_started(other, libc::SIGTERM).is_err(), "a start that fails says why");
    }
}
