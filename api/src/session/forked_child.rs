//! The child's side of a fork: the life of its process, from its first act on.
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
use crate::process::fork::{Answer, Link, Order, Word};
use crate::process::start;
use crate::process::vm_slot::Slot;
use crate::session::Session;

/// Takes a VM over from the parent at standard input, and stays with it.
///
/// # Errors
/// Nobody has started this process for it; or the VM ends in an error once it is on its own. What is wrong before that is
/// the parent's to tell.
pub(crate) fn run(api_socket: &Path, id: String) -> Result<Status, Failure> {
    close_what_was_inherited();
    let mut link = Some(take_link()?);
    // What ends the parent, at its terminal, is not for its children.
    let _ = rustix::process::setsid();
    // Not that of the link it was started through.
    let _ = rustix::thread::set_name(c"volt-vmm");
    let outcome = live(&mut link, api_socket, id);
    match (link, outcome) {
        (Some(mut link), Err(failure)) => {
            // If it cannot be told, there is nobody to be told.
            let _ = link.say(&Answer::Failed(volt_vmm::report(&failure)));
            Ok(Status::Error)
        }
        (_, outcome) => outcome,
    }
}

/// Without a link it is on its own.
fn live(link: &mut Option<Link>, api_socket: &Path, id: String) -> Result<Status, Failure> {
    let Order { shape, overrides, paused } = hear(link)?;
    let session = Session::of(Slot::named(id), Some(api_socket))?;
    // The parent has not come so far yet.
    let ready = Arc::new(Pool::filled(shape, 1)?);
    let snapshot = match link {
        Some(link) => Snapshot::receive(&link.0)?,
        None => return Err(lost(io::ErrorKind::NotConnected.into()).into()),
    };
    session.run("fork a VM", move || {
        let layers = layers_made(snapshot.config(), &overrides);
        let vm = start::take_over(&snapshot, overrides, ready)?;
        let made = Made(layers);
        drop(snapshot);
        agree(link, &vm, paused)?;
        made.keep();
        *link = None;
        Ok(vm.into())
    })
}

/// Runs when the others do, and stays when they do.
fn agree(link: &mut Option<Link>, vm: &Vm, paused: bool) -> volt_vmm::Result<()> {
    say_ready(link)?;
    expect(link, Word::Go)?;
    if !paused {
        vm.resume()?;
    }
    say_ready(link)?;
    expect(link, Word::Stay)
}

fn hear<T: serde::de::DeserializeOwned>(link: &mut Option<Link>) -> volt_vmm::Result<T> {
    link.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into()).and_then(Link::hear).map_err(lost)
}

fn expect(link: &mut Option<Link>, word: Word) -> volt_vmm::Result<()> {
    match hear::<Word>(link)? {
        heard if heard == word => Ok(()),
        _ => Err(lost(io::ErrorKind::InvalidData.into())),
    }
}

fn say_ready(link: &mut Option<Link>) -> volt_vmm::Result<()> {
    let link = link.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into());
    link.and_then(|link| link.say(&Answer::Ready)).map_err(lost)
}

fn lost(source: io::Error) -> Error {
    Error::Host { act: "hear from the parent".to_owned(), source }
}

/// Standard input, in place of which there is nothing from now on.
fn take_link() -> Result<Link, Failure> {
    let act =
        "take over a VM: nobody hands one over at standard input (`volt-vmm fork` is what makes a fork)";
    let refused = |source: io::Error| Failure::system(act, source);
    // A socket, and connected.
    rustix::net::getpeername(stdin()).map_err(|errno| refused(errno.into()))?;
    let link = rustix::io::fcntl_dupfd_cloexec(stdin(), 3).map_err(|errno| refused(errno.into()))?;
    let nothing = File::open("/dev/null").map_err(refused)?;
    rustix::stdio::dup2_stdin(&nothing).map_err(|errno| refused(errno.into()))?;
    Ok(Link(UnixStream::from(link)))
}

/// Descriptors that the parent was started with, for itself.
fn close_what_was_inherited() {
    // SAFETY: nothing in this process has opened a descriptor beyond the standard streams yet.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

/// The files that a restore with these makes.
fn layers_made(config: &VmConfig, overrides: &Overrides) -> Vec<PathBuf> {
    let writable = |id: &str| config.devices.disks.iter().any(|disk| disk.id == id && !disk.read_only);
    let layers = overrides.disks.iter().filter(|disk| writable(&disk.id));
    layers
        .filter_map(|disk| match &disk.layer {
            Some(FileRef::Path(path)) => Some(path.clone()),
            _ => None,
        })
        .collect()
}

/// Files that go again unless they are kept.
struct Made(Vec<PathBuf>);

impl Made {
    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        self.0.iter().for_each(|path| drop(fs::remove_file(path)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_layers_that_are_written_are_made() {
        let devices = r#"{"disks":[{"id":"a","path":"/a","layer":"/l"},{"id":"b","path":"/b","layer":"/m","read_only":true}]}"#;
        let overrides =
            r#"{"disks":[{"id":"a","layer":"/x"},{"id":"b","layer":"/y"},{"id":"a","path":"/z"}]}"#;
        let config = VmConfig { devices: serde_json::from_str(devices).unwrap(), ..VmConfig::new("/k") };
        let made = layers_made(&config, &serde_json::from_str(overrides).unwrap());
        assert_eq!(made, [PathBuf::from("/x")]);
    }
}
