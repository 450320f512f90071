//! The parent's side of a fork.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};

use serde::{Deserialize, Serialize};
use volt_vmm::config::{Devices, Overrides};
use volt_vmm::internal::random_hex;
use volt_vmm::internal::sharing;
use volt_vmm::{Error, FileRef, Handover, Invalid, Vm, VmShape};

use super::children;
use super::{Answer, Link, Order, Word};
use crate::failure::Failure;
use crate::process::fork::child_arguments;
use crate::process::start;

/// A child that is wanted.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Where it serves its API.
    pub(crate) api_socket: PathBuf,
    /// The file its guest's serial output is added to, unless it is discarded.
    pub(crate) serial: Option<PathBuf>,
    pub(crate) overrides: Overrides,
}

/// A child that runs.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Forked {
    pub(crate) pid: u32,
    pub(crate) api_socket: PathBuf,
    pub(crate) id: String,
}

/// Makes children of a VM, which goes on; in a process of its own each, from the same instant.
///
/// # Errors
/// One of them cannot be: the error names it and says why. Then there is none of them, and no file of theirs.
pub(crate) fn fork(vm: &Vm, wanted: Vec<Wanted>, paused: bool) -> Result<Vec<Forked>, Failure> {
    let config = vm.config();
    check(&config.devices, &wanted)?;
    // There is a socket for each, until it runs.
    start::allow_descriptors();
    // They come up while the VM is captured.
    let children = wanted.into_iter().map(|wanted| Child::spawn(wanted, VmShape::of(&config), paused));
    let mut children = children.collect::<Result<Vec<_>, _>>()?;
    let handover = vm.snapshot_in_memory()?.handover()?;
    for child in &mut children {
        child.hand_over(&handover)?;
    }
    drop(handover);
    for child in &mut children {
        child.hear_ready()?;
    }
    for child in &mut children {
        child.say(&Word::Go)?;
    }
    for child in &mut children {
        child.hear_ready()?;
    }
    Ok(children.into_iter().map(Child::let_go).collect())
}

/// What can be told without a child.
fn check(devices: &Devices, wanted: &[Wanted]) -> Result<(), Failure> {
    let config = |field, problem| Err(Error::Config { field, problem }.into());
    if wanted.is_empty() {
        return config("children", "none given; a fork makes one at least".into());
    }
    for (number, child) in wanted.iter().enumerate() {
        if wanted[..number].iter().any(|other| other.api_socket == child.api_socket) {
            return config("api_socket", format!("{} is there twice", child.api_socket.display()).into());
        }
        let Some((id, fd)) = descriptor(devices, &child.overrides) else { continue };
        return config("disks", Invalid::OwnDescriptor { disk: id, fd, child: number + 1 });
    }
    let overrides: Vec<_> = wanted.iter().map(|child| child.overrides.clone()).collect();
    Ok(sharing::check(devices, &overrides)?)
}

/// A descriptor that a child would need.
fn descriptor(devices: &Devices, overrides: &Overrides) -> Option<(String, i32)> {
    let own = overrides
        .disks
        .iter()
        .flat_map(|disk| [disk.path.as_ref(), disk.layer.as_ref()].map(|file| (disk.id.clone(), file)));
    let replaced = |id: &str| overrides.disks.iter().any(|disk| disk.id == id && disk.path.is_some());
    let kept = devices.disks.iter().filter(|disk| !replaced(&disk.id));
    let kept = kept.map(|disk| (disk.id.clone(), Some(&disk.path)));
    own.chain(kept).find_map(|(id, file)| match file {
        Some(FileRef::Fd(fd) | FileRef::Untrusted(fd)) => Some((id, *fd)),
        _ => None,
    })
}

/// A child on its way. Dropped before it was let go, it ends, and its files go.
struct Child {
    /// Until it is let go.
    process: Option<process::Child>,
    link: Option<Link>,
    forked: Forked,
    /// Made for it.
    serial: Option<PathBuf>,
}

impl Child {
    fn spawn(wanted: Wanted, shape: VmShape, paused: bool) -> Result<Self, Failure> {
        let Wanted { api_socket, serial, overrides } = wanted;
        let failed = |act: &str, source: io::Error| {
            Failure::child(&api_socket, volt_vmm::report(&Failure::system(act, source)))
        };
        let id = random_hex()?;
        let (near, far) = UnixStream::pair().map_err(|source| failed("make a socket for it", source))?;
        let output = match &serial {
            Some(path) => Some(
                open_output(path).map_err(|source| failed(&format!("open {}", path.display()), source))?,
            ),
            None => None,
        };
        let made = output.as_ref().is_some_and(|(_, made)| *made);
        let mut command = Command::new(start::PROGRAM);
        command.arg0("volt-vmm").args(child_arguments(&api_socket, &id));
        command.stdin(OwnedFd::from(far));
        command.stdout(output.map_or_else(Stdio::null, |(file, _)| file.into()));
        let process = command.spawn();
        let forked = |pid| Forked { pid, api_socket: api_socket.clone(), id };
        let serial = serial.filter(|_| made);
        let process = process.map_err(|source| {
            serial.iter().for_each(|path| drop(fs::remove_file(path)));
            failed("start its process", source)
        })?;
        let (forked, link) = (forked(process.id()), Some(Link(near)));
        let mut child = Self { process: Some(process), link, forked, serial };
        child.say(&Order { shape, overrides, paused })?;
        Ok(child)
    }

    fn hand_over(&mut self, handover: &Handover) -> Result<(), Failure> {
        let sent = self.link.as_ref().is_some_and(|link| handover.send(&link.0).is_ok());
        if sent { Ok(()) } else { Err(self.why_not()) }
    }

    fn say(&mut self, what: &impl Serialize) -> Result<(), Failure> {
        let said = self.link.as_mut().is_some_and(|link| link.say(what).is_ok());
        if said { Ok(()) } else { Err(self.why_not()) }
    }

    /// Of one that does not listen any more, which will have said why.
    fn why_not(&mut self) -> Failure {
        self.hear_ready().err().unwrap_or_else(|| self.lost())
    }

    fn hear_ready(&mut self) -> Result<(), Failure> {
        match self.link.as_mut().map(Link::hear) {
            Some(Ok(Answer::Ready)) => Ok(()),
            Some(Ok(Answer::Failed(why))) => Err(Failure::child(&self.forked.api_socket, why)),
            Some(Err(_)) | None => Err(self.lost()),
        }
    }

    /// The error of a child that does not say why it is gone.
    fn lost(&mut self) -> Failure {
        self.link = None;
        let status = self.process.as_mut().and_then(|process| process.wait().ok());
        let how = status.map_or_else(String::new, |status| format!(" ({status})"));
        Failure::child(&self.forked.api_socket, format!("its process ended before it ran{how}"))
    }

    /// It runs. One that has gone meanwhile did run.
    fn let_go(mut self) -> Forked {
        let _ = self.say(&Word::Stay);
        self.process.take().into_iter().for_each(children::let_go);
        let Forked { pid, api_socket, id } = &mut self.forked;
        Forked { pid: *pid, api_socket: std::mem::take(api_socket), id: std::mem::take(id) }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            self.link = None;
            let _ = process.wait(); // it ends by itself, and removes what it made
            self.serial.iter().for_each(|path| drop(fs::remove_file(path)));
        }
    }
}

/// A file to add output to, and whether it is new.
fn open_output(path: &Path) -> io::Result<(File, bool)> {
    let mut options = File::options();
    options.append(true).mode(0o600);
    match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            // A pipe that nobody reads is not waited for, and a terminal does not become ours.
            let file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
            rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::APPEND)?;
            Ok((file, false))
        }
        made => Ok((made?, true)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::testing::Dir;

    fn wanted(socket: &str, overrides: &str) -> Wanted {
        let overrides = serde_json::from_str(overrides).unwrap();
        Wanted { api_socket: socket.into(), serial: None, overrides }
    }

    fn refused(devices: &str, wanted: &[Wanted]) -> String {
        check(&serde_json::from_str(devices).unwrap(), wanted).unwrap_err().to_string()
    }

    #[test]
    fn what_makes_no_sense_is_refused_before_anybody_is_started() {
        assert!(refused("{}", &[]).starts_with("children: none given"));
        let twice = [wanted("/a", "{}"), wanted("/b", "{}"), wanted("/a", "{}")];
        assert_eq!(refused("{}", &twice), "api_socket: /a is there twice");
        let given = r#"{"disks":[{"id":"root","path":"fd:7","read_only":true}]}"#;
        let error = refused(given, &[wanted("/a", "{}")]);
        assert!(error.starts_with("disks: root: fd:7 is a descriptor of this process alone"), "{error}");
        let other = r#"{"disks":[{"id":"root","path":"/image"}]}"#;
        check(&serde_json::from_str(given).unwrap(), &[wanted("/a", other)]).unwrap();
        let error = refused(r#"{"disks":[{"id":"root","path":"/image"}]}"#, &[wanted("/a", given_layer())]);
        assert!(error.contains("fd:9"), "{error}");
    }

    fn given_layer() -> &'static str {
        r#"{"disks":[{"id":"root","layer":"fd:9"}]}"#
    }

    #[test]
    fn output_is_added_to_a_file_that_is_there() {
        let dir = Dir::new();
        let path = dir.path("out");
        assert!(open_output(&path).unwrap().1);
        fs::write(&path, "before\n").unwrap();
        let (mut file, made) = open_output(&path).unwrap();
        io::Write::write_all(&mut file, b"after\n").unwrap();
        assert!(!made);
        assert_eq!(fs::read_to_string(&path).unwrap(), "before\nafter\n");
        assert!(open_output(&dir.path("no/such")).is_err());
    }
}
