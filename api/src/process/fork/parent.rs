//! The parent's side of a fork.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use volt_vmm::config::{Devices, Overrides};
use volt_vmm::internal::paths::{OWN_PROGRAM, Process, Program, Stream};
use volt_vmm::internal::sharing;
use volt_vmm::internal::{paths, random_hex};
use volt_vmm::{Cure, Error, FileRef, Handover, Invalid, Progress, Vm, VmShape};

use super::children;
use super::detachment::Detachment;
use super::{ChildMessage, ChildSetup, ForkSocket, RequestLimits, Run};
use crate::descriptors::allow_descriptors;
use crate::failure::Failure;
use crate::process::child_command::{CHILD_NAME, child_arguments, confinement_of_child};
use crate::process::confinement;
use crate::process::guest_note::GuestNote;
use crate::threads;

/// Time between two looks whether a fork was cancelled.
const LOOK: Duration = Duration::from_millis(100);

/// A child to create.
#[derive(Debug)]
pub(crate) struct ChildSpec {
    /// The socket on which it serves its API.
    pub(crate) api_socket: PathBuf,
    /// The file to append its guest's serial output to. Without one the output is discarded.
    pub(crate) serial: Option<PathBuf>,
    /// Its run directory, if it has a name.
    pub(crate) run_dir: Option<PathBuf>,
    pub(crate) overrides: Overrides,
}

/// A running child.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct Forked {
    pub(crate) pid: u32,
    #[schema(value_type = String)]
    pub(crate) api_socket: PathBuf,
    pub(crate) id: String,
}

/// Properties that all children of a fork share.
#[derive(Clone, Debug)]
pub(crate) struct Fork {
    /// Whether their VMs stay paused.
    pub(crate) paused: bool,
    /// The note about the guest at the capture.
    pub(crate) note: GuestNote,
    /// Whether the agent of each child has to wake its guest.
    pub(crate) requires_agent: bool,
    pub(crate) limits: RequestLimits,
}

/// Forks a VM into children, each in its own process, all from the same instant. The VM goes on. `progress`
/// tells the progress of the copy of its memory, and cancels the fork until its children run. `captured` is
/// called once the VM goes on, in the background if that takes a call to the guest's agent.
///
/// # Errors
/// The first error of a child; it names the child. Or the fork was cancelled. Then no child and no file of a
/// child remains.
pub(crate) fn fork(
    vm: &Vm,
    wanted: Vec<ChildSpec>,
    how: Fork,
    progress: &Progress,
    captured: &Arc<dyn Fn() + Send + Sync>,
) -> Result<Vec<Forked>, Failure> {
    progress.check()?;
    let config = vm.config();
    check(&config.devices, &wanted)?;
    // The parent holds a socket for each child until it is detached.
    allow_descriptors();
    // The children start while the parent captures its VM.
    let (overrides, run_dir) = (Overrides::default(), None);
    let Fork { paused, note, requires_agent, limits } = how;
    let is_quiet = note.quiet;
    let shape = VmShape::of(&config);
    let setup = ChildSetup { shape, overrides, run_dir, paused, note, requires_agent, limits };
    let confinement = confinement_of_child(&confinement::chosen())?;
    let detachment =
        Detachment::new().map_err(|source| Failure::system("create the pipe of a fork", source))?;
    let children = wanted.into_iter().map(|wanted| {
        progress.check()?;
        Child::spawn(wanted, &setup, &confinement, &detachment)
    });
    let mut children = children.collect::<Result<Vec<_>, _>>()?;
    let snapshot = vm.snapshot_in_memory_with(progress)?;
    // A strictly confined VM writes nothing that another one reads.
    let is_strict = confinement::chosen().strict.is_some();
    let snapshot = if is_strict { snapshot.without_working_set() } else { snapshot };
    let handover = snapshot.handover()?;
    drop(snapshot);
    log::debug!("the VM is captured, and goes on");
    let thaw = Arc::clone(captured);
    if !is_quiet || threads::spawn("thaw", "to thaw the workload", move || thaw()).is_err() {
        captured();
    }
    for child in &mut children {
        progress.check()?;
        child.send_handover(&handover)?;
    }
    drop(handover);
    for child in &mut children {
        child.wait_until_ready(progress)?;
    }
    progress.commit()?;
    for child in &mut children {
        child.send(&Run)?;
    }
    for child in &mut children {
        child.receive_ready()?;
    }
    detachment.detach_all().map_err(|source| Failure::system("detach the children of a fork", source))?;
    Ok(children.into_iter().map(Child::release).collect())
}

/// Checks what needs no child.
fn check(devices: &Devices, wanted: &[ChildSpec]) -> Result<(), Failure> {
    let config = |field, problem| Err(Error::Config { field, problem }.into());
    if wanted.is_empty() {
        return config("children", "none given; a fork needs at least one".into());
    }
    for (number, child) in wanted.iter().enumerate() {
        if wanted[..number].iter().any(|other| other.api_socket == child.api_socket) {
            return config("api_socket", format!("{} is given twice", child.api_socket.display()).into());
        }
        // Names the child whose overrides are invalid by themselves.
        let applied = child.overrides.clone().apply(&mut devices.clone());
        applied.map_err(|error| Failure::child(&child.api_socket, volt_vmm::problem(&error)))?;
        let Some((disk, fd, cure)) = descriptor(devices, &child.overrides) else { continue };
        return config("disks", Invalid::OwnDescriptor { disk, fd, child: number + 1, cure: cure.into() });
    }
    let overrides: Vec<_> = wanted.iter().map(|child| child.overrides.clone()).collect();
    Ok(sharing::check(devices, &overrides)?)
}

/// Finds a disk whose file is a descriptor, which the child would not have, and how to replace it.
fn descriptor(devices: &Devices, overrides: &Overrides) -> Option<(String, i32, Cure)> {
    let path = |id: &String, file| {
        let cure = Cure::DiskPath { id: id.clone() };
        (id.clone(), file, Cure::Another(Box::new(cure)))
    };
    let layer = |id: &String, file| (id.clone(), file, Cure::CloneLayer { id: id.clone() });
    let own = overrides.disks.iter().flat_map(|disk| {
        let image = disk.path.iter().chain(&disk.parts).map(|file| path(&disk.id, file));
        image.chain(disk.layer.iter().map(|file| layer(&disk.id, file)))
    });
    let replaced = |id: &str| overrides.disks.iter().any(|disk| disk.id == id && disk.has_image());
    let kept = devices.disks.iter().filter(|disk| !replaced(&disk.id));
    let kept = kept.flat_map(|disk| disk.image().map(|file| path(&disk.id, file)));
    own.chain(kept).find_map(|(id, file, cure)| match file {
        FileRef::Fd(fd) | FileRef::Untrusted(fd) => Some((id, *fd, cure)),
        _ => None,
    })
}

/// A child that is not detached yet. Drop ends its process and removes its files.
struct Child {
    /// `None` once detached.
    process: Option<Process>,
    socket: Option<ForkSocket>,
    forked: Forked,
    /// The file of its serial output, if this fork created it.
    serial: Option<PathBuf>,
}

impl Child {
    fn spawn(
        wanted: ChildSpec,
        setup: &ChildSetup,
        confinement: &str,
        detachment: &Detachment,
    ) -> Result<Self, Failure> {
        let ChildSpec { api_socket, serial, run_dir, overrides } = wanted;
        let failed = |act: &str, source: io::Error| {
            Failure::child(&api_socket, volt_vmm::problem(&Failure::system(act, source)))
        };
        let id = random_hex()?;
        let (near, far) = UnixStream::pair().map_err(|source| failed("create its socket", source))?;
        let detachment = detachment.of_child().map_err(|source| failed("duplicate its pipe", source))?;
        let output = match &serial {
            Some(path) => Some(
                open_output(path).map_err(|source| failed(&format!("open {}", path.display()), source))?,
            ),
            None => None,
        };
        let created = output.as_ref().is_some_and(|(_, created)| *created);
        let program = Program {
            name: Some(CHILD_NAME.into()),
            stdin: Stream::File(far.into()),
            stdout: output.map_or(Stream::Null, |(file, _)| Stream::File(file.into())),
            stderr: Stream::Inherited,
            descriptor: Some(detachment),
            ..Program::new(OWN_PROGRAM).arguments(child_arguments(&api_socket, &id, confinement))
        };
        let process = program.start();
        let forked = |pid| Forked { pid, api_socket: api_socket.clone(), id };
        let serial = serial.filter(|_| created);
        let process = process.map_err(|source| {
            serial.iter().for_each(|path| drop(paths::remove_file(path)));
            failed("start its process", source)
        })?;
        let (forked, socket) = (forked(process.id()), Some(ForkSocket(near)));
        let mut child = Self { process: Some(process), socket, forked, serial };
        child.send(&ChildSetup { overrides, run_dir, ..setup.clone() })?;
        Ok(child)
    }

    fn send_handover(&mut self, handover: &Handover) -> Result<(), Failure> {
        let Some(socket) = &self.socket else { return Err(self.failure()) };
        handover.send(&socket.0).map_err(|error| match &error {
            Error::Host { source, .. } if is_closed(source) => self.failure(),
            _ => Failure::child(&self.forked.api_socket, volt_vmm::problem(&error)),
        })
    }

    fn send(&mut self, message: &impl Serialize) -> Result<(), Failure> {
        let Some(socket) = &mut self.socket else { return Err(self.failure()) };
        socket.send(message).map_err(|source| match is_closed(&source) {
            true => self.failure(),
            false => {
                let problem = volt_vmm::problem(&Failure::system("send a message to the child", source));
                Failure::child(&self.forked.api_socket, problem)
            }
        })
    }

    /// Returns the error of a child that closed its socket. The child sends it before it exits.
    fn failure(&mut self) -> Failure {
        self.receive_ready().err().unwrap_or_else(|| self.early_exit())
    }

    /// As [`Child::receive_ready`], until the fork is cancelled.
    fn wait_until_ready(&mut self, progress: &Progress) -> Result<(), Failure> {
        loop {
            progress.check()?;
            if self.socket.as_ref().is_none_or(|socket| socket.is_readable_within(LOOK)) {
                return self.receive_ready();
            }
        }
    }

    fn receive_ready(&mut self) -> Result<(), Failure> {
        match self.socket.as_mut().map(ForkSocket::receive) {
            Some(Ok(ChildMessage::Ready)) => Ok(()),
            Some(Ok(ChildMessage::Failed { problem, cures })) => {
                Err(Failure::Child { socket: self.forked.api_socket.clone(), problem, cures })
            }
            Some(Err(_)) | None => Err(self.early_exit()),
        }
    }

    /// Returns the error of a child that exited without a message.
    fn early_exit(&mut self) -> Failure {
        self.socket = None;
        let status = self.process.as_mut().and_then(|process| process.wait().ok());
        let how = status.map_or_else(String::new, |status| format!(" ({status})"));
        Failure::child(&self.forked.api_socket, format!("its process ended before the VM ran{how}"))
    }

    /// Leaves a detached child alone. A child that has ended by now has run, and is no error.
    fn release(mut self) -> Forked {
        self.process.take().into_iter().for_each(children::add);
        let Forked { pid, api_socket, id } = &mut self.forked;
        Forked { pid: *pid, api_socket: std::mem::take(api_socket), id: std::mem::take(id) }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            self.socket = None;
            let _ = process.wait(); // the closed socket ends it, and it removes its own files
            self.serial.iter().for_each(|path| drop(paths::remove_file(path)));
        }
    }
}

/// Tells whether a send failed because the child closed its socket. After another failure the child lives and
/// waits for the message, so the parent must not wait for the child.
fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

/// Opens a file to append output to, and says whether it is new.
fn open_output(path: &Path) -> io::Result<(File, bool)> {
    let append = OFlags::WRONLY | OFlags::APPEND;
    match paths::open(path, append | OFlags::CREATE | OFlags::EXCL, 0o600) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            // O_NONBLOCK: a pipe without a reader does not block. O_NOCTTY: a terminal does not become ours.
            let file = paths::open(path, append | OFlags::NONBLOCK | OFlags::NOCTTY, 0)?;
            rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
            Ok((file, false))
        }
        created => Ok((created?, true)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::testing::Dir;

    fn wanted(socket: &str, overrides: &str) -> ChildSpec {
        let overrides = serde_json::from_str(overrides).unwrap();
        ChildSpec { api_socket: socket.into(), serial: None, run_dir: None, overrides }
    }

    fn refused(devices: &str, wanted: &[ChildSpec]) -> String {
        check(&serde_json::from_str(devices).unwrap(), wanted).unwrap_err().to_string()
    }

    #[test]
    fn invalid_children_are_refused_before_a_process_starts() {
        assert!(refused("{}", &[]).starts_with("children: none given"));
        let twice = [wanted("/a", "{}"), wanted("/b", "{}"), wanted("/a", "{}")];
        assert_eq!(refused("{}", &twice), "api_socket: /a is given twice");
        let given = r#"{"disks":[{"id":"root","path":"fd:7","read_only":true}]}"#;
        let error = refused(given, &[wanted("/a", "{}")]);
        assert!(error.starts_with("disks: root: fd:7 is a descriptor of this process"), "{error}");
        let parts = r#"{"disks":[{"id":"root","parts":["/a","fd:8"],"read_only":true}]}"#;
        let error = refused(parts, &[wanted("/a", "{}")]);
        assert!(error.starts_with("disks: root: fd:8 is a descriptor of this process"), "{error}");
        let other = r#"{"disks":[{"id":"root","path":"/image"}]}"#;
        for given in [given, parts] {
            check(&serde_json::from_str(given).unwrap(), &[wanted("/a", other)]).unwrap();
        }
        let error = refused(r#"{"disks":[{"id":"root","path":"/image"}]}"#, &[wanted("/a", given_layer())]);
        assert!(error.contains("fd:9"), "{error}");
        let cures = |devices: &str, child| {
            check(&serde_json::from_str(devices).unwrap(), &[child]).unwrap_err().cures()
        };
        let path = Cure::DiskPath { id: "root".to_owned() };
        assert_eq!(cures(given, wanted("/a", "{}")), [Cure::Another(Box::new(path))]);
        assert_eq!(cures(other, wanted("/a", given_layer())), [Cure::CloneLayer { id: "root".to_owned() }]);
    }

    fn given_layer() -> &'static str {
        r#"{"disks":[{"id":"root","layer":"fd:9"}]}"#
    }

    /// A child whose process says nothing.
    fn silent_child() -> (Child, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        let forked = Forked { pid: 0, api_socket: "/a".into(), id: String::new() };
        (Child { process: None, socket: Some(ForkSocket(near)), forked, serial: None }, far)
    }

    #[test]
    fn fork_is_cancelled_while_a_child_says_nothing() {
        let ((mut child, far), progress) = (silent_child(), Progress::default());
        let waited = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| child.wait_until_ready(&progress));
            // It waits by then.
            std::thread::sleep(2 * LOOK);
            progress.cancel();
            waiting.join().unwrap()
        });
        assert!(matches!(waited, Err(Failure::Vmm(Error::Cancelled))), "{waited:?}");
        let progress = Progress::default();
        ForkSocket(far).send(&ChildMessage::Ready).unwrap();
        child.wait_until_ready(&progress).unwrap();
        // The other side has gone.
        assert!(matches!(child.wait_until_ready(&progress), Err(Failure::Child { .. })));
    }

    #[test]
    fn output_is_appended_to_an_existing_file() {
        let dir = Dir::new();
        let path = dir.path("out");
        assert!(open_output(&path).unwrap().1);
        std::fs::write(&path, "before\n").unwrap();
        let (mut file, created) = open_output(&path).unwrap();
        io::Write::write_all(&mut file, b"after\n").unwrap();
        assert!(!created);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "before\nafter\n");
        assert!(open_output(&dir.path("no/such")).is_err());
    }
}
