//! The child's side of a fork: the session of the child's process.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io::{self, stdin};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use volt_vmm::config::Overrides;
use volt_vmm::{Error, FileRef, Pool, Snapshot, Vm, VmConfig};

use crate::failure::Failure;
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
pub(crate) fn run(api_socket: &Path, id: String) -> Result<Status, Failure> {
    close_inherited_descriptors();
    let mut socket = Some(take_socket()?);
    // Signals of the parent's terminal must not end the child.
    let _ = rustix::process::setsid();
    // exec named the process "exe", after /proc/self/exe.
    let _ = rustix::thread::set_name(c"volt-vmm");
    let outcome = receive_and_run(&mut socket, api_socket, id);
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
) -> Result<Status, Failure> {
    let ChildSetup { shape, overrides, paused } = receive(socket)?;
    let session = Session::with_slot(Slot::with_id(id), Some(api_socket))?;
    // Created while the parent captures its VM.
    let pool = Arc::new(Pool::filled(shape, 1)?);
    let snapshot = match socket {
        Some(socket) => Snapshot::receive(&socket.0)?,
        None => return Err(parent_lost(io::ErrorKind::NotConnected.into()).into()),
    };
    session.run("fork a VM", move || {
        let layers = new_layers(snapshot.config(), &overrides);
        let vm = start::take_over(&snapshot, overrides, pool)?;
        let layers = RemovedOnDrop(layers);
        drop(snapshot);
        run_with_siblings(socket, &vm, paused)?;
        layers.keep();
        *socket = None;
        Ok(vm.into())
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

/// Lists the layer files that a restore with these overrides creates.
fn new_layers(config: &VmConfig, overrides: &Overrides) -> Vec<PathBuf> {
    let writable = |id: &str| config.devices.disks.iter().any(|disk| disk.id == id && !disk.read_only);
    let layers = overrides.disks.iter().filter(|disk| writable(&disk.id));
    layers
        .filter_map(|disk| match &disk.layer {
            Some(FileRef::Path(path)) => Some(path.clone()),
            _ => None,
        })
        .collect()
}

/// Files that drop removes unless they are kept.
struct RemovedOnDrop(Vec<PathBuf>);

impl RemovedOnDrop {
    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for RemovedOnDrop {
    fn drop(&mut self) {
        self.0.iter().for_each(|path| drop(fs::remove_file(path)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_writable_disks_alone_are_new() {
        let devices = r#"{"disks":[
            {"id":"a","path":"/a","layer":"/l"},
            {"id":"b","path":"/b","layer":"/m","read_only":true}]}"#;
        let overrides =
            r#"{"disks":[{"id":"a","layer":"/x"},{"id":"b","layer":"/y"},{"id":"a","path":"/z"}]}"#;
        let config = VmConfig { devices: serde_json::from_str(devices).unwrap(), ..VmConfig::new("/k") };
        let layers = new_layers(&config, &serde_json::from_str(overrides).unwrap());
        assert_eq!(layers, [PathBuf::from("/x")]);
    }
}
