//! The child's side of a fork: the session of the child's process.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, stdin};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use volt_vmm::internal::paths::DESCRIPTOR;
use volt_vmm::{Error, MetadataStore, Pool, Snapshot, Vm};

use crate::failure::Failure;
use crate::guest_agent;
use crate::process::confinement;
use crate::process::confinement_choice::ConfinementChoice;
use crate::process::exit::Status;
use crate::process::fork::detachment::Awaited;
use crate::process::fork::{ChildMessage, ChildSetup, ForkSocket, Run};
use crate::process::home::{self, Home};
use crate::process::log::{self, LogChange};
use crate::process::start;
use crate::process::vm_slot::Slot;
use crate::rest::ApiOptions;
use crate::session::Session;

/// Receives a VM from the parent through standard input, and runs it until it ends.
///
/// # Errors
/// Returns an error if no parent started this process, or if the detached VM fails. The parent reports
/// earlier errors.
pub(crate) fn run(api_socket: &Path, id: String, confinement: ConfinementChoice) -> Result<Status, Failure> {
    let mut parent = Some(Parent::take()?);
    // Signals of the parent's terminal must not end the child.
    let _ = rustix::process::setsid();
    // exec named the process "exe", after /proc/self/exe.
    let _ = rustix::thread::set_name(c"volt-vmm");
    let outcome = receive_and_run(&mut parent, api_socket, id, confinement);
    match (parent, outcome) {
        (Some(mut parent), Err(failure)) => {
            // If this fails, the parent has died.
            let (problem, cures) = (volt_vmm::problem(&failure), failure.cures());
            let _ = parent.socket.send(&ChildMessage::Failed { problem, cures });
            Ok(Status::Error)
        }
        (_, outcome) => outcome.inspect_err(|failure| {
            home::get().into_iter().for_each(|home| home.failed(failure));
        }),
    }
}

/// Takes over the log of the parent. Where its file cannot be opened any more, the child keeps its own
/// receiver: a log decides about no fork.
fn take_log(id: &str, change: LogChange) {
    if change == LogChange::default() {
        return;
    }
    if let Err(error) = log::change(id, change.clone()) {
        // Without a receiver to open, it cannot fail.
        let _ = log::change(id, LogChange { to: None, ..change });
        ::log::warn!("the log of the fork's parent is not kept: {error}");
    }
}

/// Receives the VM and runs it. `parent` is `None` once the child is detached.
fn receive_and_run(
    parent: &mut Option<Parent>,
    api_socket: &Path,
    id: String,
    mut confinement: ConfinementChoice,
) -> Result<Status, Failure> {
    let ChildSetup { shape, overrides, run_dir, paused, note, requires_agent, limits } =
        of(parent)?.receive()?;
    let id = match run_dir {
        Some(directory) => {
            let directory = confinement.check_run_dir(&directory)?;
            let home = home::enter(&directory, None, None)?;
            note.main.clone().map_or(Ok(()), |main| home.take_main(main))?;
            home.record.name.to_string()
        }
        None => id,
    };
    take_log(&id, confinement.log.clone());
    confinement.add_socket(api_socket);
    confinement::apply(confinement, Some(shape))?;
    let metadata = MetadataStore::new(limits.metadata);
    let serving = ApiOptions { longest_body: limits.longest_body, metadata, ..ApiOptions::default() };
    let metadata = serving.metadata.clone();
    let session = Session::with_slot(Slot::with_id(id), Some(api_socket))?.serving(serving);
    // Created while the parent captures its VM.
    let pool = Arc::new(Pool::filled(shape, 1)?);
    let snapshot = Snapshot::receive(&of(parent)?.socket.0)?;
    // The main process may end while siblings wake.
    home::get().map_or(Ok(()), Home::hear_main)?;
    session.run("fork a VM", move || {
        let child = start::take_over(&snapshot, overrides, metadata, pool)?;
        drop(snapshot);
        note.install();
        of(parent)?.run_with_siblings(child.vm(), paused, requires_agent)?;
        *parent = None;
        Ok(child.keep().into())
    })
}

fn of(parent: &mut Option<Parent>) -> volt_vmm::Result<&mut Parent> {
    parent.as_mut().ok_or_else(|| parent_lost(io::ErrorKind::NotConnected.into()))
}

/// The ends that the parent gave this process.
struct Parent {
    socket: ForkSocket,
    detachment: Awaited,
}

impl Parent {
    /// Takes the socket from standard input, which becomes /dev/null, and the pipe. Closes other descriptors
    /// that the parent inherited and passed on.
    fn take() -> Result<Self, Failure> {
        let act = "receive a VM: standard input is not a fork's socket (only `volt-vmm fork` starts this \
                   command)";
        let refused = |source: io::Error| Failure::system(act, source);
        // Succeeds for a connected socket only.
        rustix::net::getpeername(stdin()).map_err(|errno| refused(errno.into()))?;
        // SAFETY: this process has opened no descriptor beyond those that it was given.
        let _ = unsafe { libc::syscall(libc::SYS_close_range, DESCRIPTOR + 1, libc::c_uint::MAX, 0) };
        let detachment = Awaited::take().map_err(refused)?;
        let socket = rustix::io::fcntl_dupfd_cloexec(stdin(), 3).map_err(|errno| refused(errno.into()))?;
        let null = File::open("/dev/null").map_err(refused)?;
        rustix::stdio::dup2_stdin(&null).map_err(|errno| refused(errno.into()))?;
        Ok(Self { socket: ForkSocket(UnixStream::from(socket)), detachment })
    }

    fn receive<T: DeserializeOwned>(&mut self) -> volt_vmm::Result<T> {
        self.socket.receive().map_err(parent_lost)
    }

    fn send_ready(&mut self) -> volt_vmm::Result<()> {
        self.socket.send(&ChildMessage::Ready).map_err(parent_lost)
    }

    /// Runs the VM once all children are ready, and returns once the parent detaches them.
    fn run_with_siblings(&mut self, vm: &Vm, paused: bool, requires_agent: bool) -> volt_vmm::Result<()> {
        self.send_ready()?;
        self.receive::<Run>()?;
        if !paused {
            vm.resume()?;
            ::log::debug!("the child runs");
            // The session tries again.
            let woken = guest_agent::prepare(vm, requires_agent);
            woken.or_else(|error| if requires_agent { Err(error) } else { Ok(()) })?;
        }
        self.send_ready()?;
        match self.detachment.wait(&self.socket.0) {
            Ok(true) => {
                // The session tries again.
                let _ = guest_agent::finish(vm);
                Ok(())
            }
            Ok(false) => Err(parent_lost(io::ErrorKind::UnexpectedEof.into())),
            Err(source) => Err(parent_lost(source)),
        }
    }
}

fn parent_lost(source: io::Error) -> Error {
    Error::Host { act: "receive from the fork's parent".to_owned(), source }
}
