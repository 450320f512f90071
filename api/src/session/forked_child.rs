//! The child's side of a fork: the session of the child's process.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, stdin};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use volt_vmm::{Error, Pool, Snapshot, Vm};

use crate::failure::Failure;
use crate::process::confinement;
use crate::process::confinement_choice::ConfinementChoice;
use crate::process::exit::Status;
use crate::process::fork::{ChildMessage, ChildSetup, ForkSocket, ParentMessage};
use crate::process::start;
use crate::process::vm_slot::Slot;
use crate::session::Session;

/// Receives a VM from the parent through standard input, and runs it until it ends.
///
/// # Errors
/// Returns an error if no parent started this process, or if the detached VM fails. The parent reports
/// earlier errors.
pub(crate) fn run(api_socket: &Path, id: String, confinement: ConfinementChoice) -> Result<Status, Failure> {
    close_inherited_descriptors();
    let mut socket = Some(take_socket()?);
    // Signals of the parent's terminal must not end the child.
    let _ = rustix::process::setsid();
    // exec named the process "exe", after /proc/self/exe.
    let _ = rustix::thread::set_name(c"volt-vmm");
    let outcome = receive_and_run(&mut socket, api_socket, id, confinement);
    match (socket, outcome) {
        (Some(mut socket), Err(failure)) => {
            // If this fails, the parent has died.
            let (problem, cures) = (volt_vmm::problem(&failure), failure.cures());
            let _ = socket.send(&ChildMessage::Failed { problem, cures });
            Ok(Status::Error)
        }
        (_, outcome) => outcome,
    }
}

/// Receives the VM and runs it. `socket` is `None` once the child is detached.
fn receive_and_run(
    socket: &mut Option<ForkSocket>,
    api_socket: &Path,
    id: String,
    mut confinement: ConfinementChoice,
) -> Result<Status, Failure> {
    let ChildSetup { shape, overrides, paused } = receive(socket)?;
    confinement.add_socket(api_socket);
    confinement::apply(confinement, Some(shape))?;
    let session = Session::with_slot(Slot::with_id(id), Some(api_socket))?;
    // Created while the parent captures its VM.
    let pool = Arc::new(Pool::filled(shape, 1)?);
    let snapshot = match socket {
        Some(socket) => Snapshot::receive(&socket.0)?,
        None => return Err(parent_lost(io::ErrorKind::NotConnected.into()).into()),
    };
    session.run("fork a VM", move || {
        let child = start::take_over(&snapshot, overrides, pool)?;
        drop(snapshot);
        run_with_siblings(socket, child.vm(), paused)?;
        *socket = None;
        Ok(child.keep().into())
    })
}

/// Runs the VM once all children are ready, and returns once the parent detaches them.
fn run_with_siblings(socket: &mut Option<ForkSocket>, vm: &Vm, paused: bool) -> volt_vmm::Result<()> {
    send_ready(socket)?;
    expect(socket, ParentMessage::Run)?;
    if !paused {
        vm.resume()?;
    }
    send_ready(socket)?;
    expect(socket, ParentMessage::Detach)
}

fn receive<T: serde::de::DeserializeOwned>(socket: &mut Option<ForkSocket>) -> volt_vmm::Result<T> {
    let socket = socket.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into());
    socket.and_then(ForkSocket::receive).map_err(parent_lost)
}

fn expect(socket: &mut Option<ForkSocket>, expected: ParentMessage) -> volt_vmm::Result<()> {
    match receive::<ParentMessage>(socket)? {
        message if message == expected => Ok(()),
        _ => Err(parent_lost(io::ErrorKind::InvalidData.into())),
    }
}

fn send_ready(socket: &mut Option<ForkSocket>) -> volt_vmm::Result<()> {
    let socket = socket.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into());
    socket.and_then(|socket| socket.send(&ChildMessage::Ready)).map_err(parent_lost)
}

fn parent_lost(source: io::Error) -> Error {
    Error::Host { act: "receive from the fork's parent".to_owned(), source }
}

/// Takes the socket from standard input, and replaces standard input with /dev/null.
fn take_socket() -> Result<ForkSocket, Failure> {
    let act = "receive a VM: standard input is not a fork's socket (only `volt-vmm fork` starts this \
               command)";
    let refused = |source: io::Error| Failure::system(act, source);
    // Succeeds for a connected socket only.
    rustix::net::getpeername(stdin()).map_err(|errno| refused(errno.into()))?;
    let socket = rustix::io::fcntl_dupfd_cloexec(stdin(), 3).map_err(|errno| refused(errno.into()))?;
    let null = File::open("/dev/null").map_err(refused)?;
    rustix::stdio::dup2_stdin(&null).map_err(|errno| refused(errno.into()))?;
    Ok(ForkSocket(UnixStream::from(socket)))
}

/// Closes descriptors that the parent inherited and passed on.
fn close_inherited_descriptors() {
    // SAFETY: this process has opened no descriptor beyond the standard streams yet.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}
