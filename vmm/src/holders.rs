//! Finds the process that holds a resource of the host, to name it in an error. It may be any process of the
//! host, and this one too, which can have several VMs.
//!
//! The search reads the descriptors of all processes in `/proc`, so an error alone is worth it. A process of
//! another user, and a confined one, is found by root only; a forwarded port is found by any user.

use std::ffi::CStr;
use std::fmt;
use std::fs::{self, DirEntry, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The name of the process that starts programs for a confined VM.
pub(crate) const STARTER: &CStr = c"volt-starter";
/// Most characters of a command line in a message.
const MOST_CHARACTERS: usize = 120;
/// The state of a listener in `/proc/net/tcp`.
const LISTENS: &str = "0A";

/// A process that holds a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holder {
    process: u32,
    /// Its command line, which names its VM; empty if it cannot be read.
    command: String,
}

impl Holder {
    /// A process. A passt stands for the VM that has started it.
    pub(crate) fn of(process: u32) -> Self {
        let mut holder = Self { process, command: command(process) };
        let program = |command: &str| command.split(' ').next().unwrap_or_default().to_owned();
        if let (true, Some(mut owner)) = (program(&holder.command).ends_with("passt"), parent(process)) {
            // A confined VM has it started by a process beside its own.
            if program(&command(owner)).as_bytes() == STARTER.to_bytes() {
                owner = parent(owner).unwrap_or(owner);
            }
            holder = Self { process: owner, command: command(owner) };
            // A process that starts programs for a VM is a fork of it.
            while let Some(parent) = parent(holder.process).filter(|&up| command(up) == holder.command) {
                holder.process = parent;
            }
        }
        holder
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process, command } = self;
        write!(f, "process {process}{}{command}", if command.is_empty() { "" } else { ": " })
    }
}

/// The process that has the lock of a file.
pub(crate) fn of_lock(file: &File) -> Option<Holder> {
    let wanted = file.metadata().ok()?;
    find(|process, descriptor| {
        let held = fs::metadata(descriptor.path());
        let is_same = held.is_ok_and(|held| (held.dev(), held.ino()) == (wanted.dev(), wanted.ino()));
        is_same && info(process, descriptor).lines().any(|line| line.starts_with("lock:"))
    })
}

/// The process that uses the tap of this name, in the network namespace of this process.
pub(crate) fn of_tap(name: &str) -> Option<Holder> {
    let namespace = fs::read_link("/proc/self/ns/net").ok()?;
    find(|process, descriptor| {
        fs::read_link(descriptor.path()).is_ok_and(|path| path.as_os_str() == "/dev/net/tun")
            && fs::read_link(process.join("ns/net")).is_ok_and(|other| other == namespace)
            && info(process, descriptor).lines().any(|line| line.strip_prefix("iff:\t") == Some(name))
    })
}

/// The process that listens at a TCP port of this host. A passt hides its descriptors from other users, but
/// its command line has the port.
pub(crate) fn of_port(port: u16) -> Option<Holder> {
    let inodes: Vec<_> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .into_iter()
        .flat_map(|table| listeners(&fs::read_to_string(table).unwrap_or_default(), port))
        .map(|inode| PathBuf::from(format!("socket:[{inode}]")))
        .collect();
    let has_socket = |_: &Path, descriptor: &DirEntry| {
        fs::read_link(descriptor.path()).is_ok_and(|socket| inodes.contains(&socket))
    };
    let forwards = format!("--tcp-ports 127.0.0.1/{port}:");
    let by_command = || processes().find(|&process| whole_command(process).contains(&forwards));
    find(has_socket).or_else(|| by_command().map(Holder::of))
}

/// The inodes of the sockets that listen at a port, by a table of `/proc/net`.
fn listeners(table: &str, port: u16) -> Vec<String> {
    let end = format!(":{port:04X}");
    let listens = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (address, state) = (words.next()?, words.nth(1)?);
        let inode = words.nth(5)?;
        (address.ends_with(&end) && state == LISTENS).then(|| inode.to_owned())
    };
    table.lines().filter_map(listens).collect()
}

/// Adds the process to a message, if it was found.
pub(crate) fn named(holder: Option<Holder>) -> String {
    holder.map_or_else(String::new, |holder| format!(" ({holder})"))
}

fn info(process: &Path, descriptor: &DirEntry) -> String {
    fs::read_to_string(process.join("fdinfo").join(descriptor.file_name())).unwrap_or_default()
}

/// The first process with a descriptor that `is_it`.
fn find(is_it: impl Fn(&Path, &DirEntry) -> bool) -> Option<Holder> {
    let holds = |process: &u32| {
        let directory = PathBuf::from(format!("/proc/{process}"));
        let descriptors = fs::read_dir(directory.join("fd")).into_iter().flatten().flatten();
        descriptors.into_iter().any(|descriptor| is_it(&directory, &descriptor))
    };
    processes().find(holds).map(Holder::of)
}

fn processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The start of a process's command line, fit for a message, without the directory of the program.
fn command(process: u32) -> String {
    let whole = whole_command(process);
    let (program, options) = whole.split_once(' ').unwrap_or((&whole, ""));
    let program = program.rsplit('/').next().unwrap_or_default();
    let mut command = format!("{program} {options}").trim_end().to_owned();
    if let Some((end, _)) = command.char_indices().nth(MOST_CHARACTERS) {
        command.truncate(end);
        command.push('…');
    }
    command
}

fn whole_command(process: u32) -> String {
    let bytes = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).replace(char::is_control, " ");
    text.trim_end().to_owned()
}

fn parent(process: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:\t")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::testing::ScratchDir;

    #[test]
    fn holder_of_a_lock_is_found_and_an_unlocked_file_has_none() {
        let scratch = ScratchDir::new();
        let path = scratch.join("file");
        let [held, other] = [(); 2].map(|()| File::create(&path).unwrap());
        assert_eq!(of_lock(&other), None);
        rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        let holder = of_lock(&other).unwrap();
        assert_eq!(holder, Holder::of(std::process::id()));
        let program = std::env::args().next().unwrap();
        let program = program.rsplit('/').next().unwrap();
        let expected = format!(" (process {}: {program}", std::process::id());
        assert!(named(Some(holder.clone())).starts_with(&expected), "{holder}");
        drop(held);
        assert_eq!((of_lock(&other), named(None)), (None, String::new()));
    }

    #[test]
    fn holder_of_a_port_is_found() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(of_port(port), Some(Holder::of(std::process::id())));
        drop(listener);
        assert_eq!(of_port(port), None);
    }

    #[test]
    fn listeners_are_those_of_the_port_that_listen() {
        let line = |address, state, inode| {
            format!(
                "  0: {address} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1\n"
            )
        };
        let table = line("0100007F:1F90", "0A", 11)
            + &line("0100007F:1F90", "01", 12)
            + &line("00000000:1F91", "0A", 13)
            + &line("00000000:1F90", "0A", 14);
        assert_eq!(listeners(&table, 8080), ["11", "14"]);
        assert_eq!(listeners("garbled", 8080), Vec::<String>::new());
    }

    #[test]
    fn process_without_a_command_line_is_named_by_its_number() {
        assert_eq!(Holder { process: 7, command: String::new() }.to_string(), "process 7");
    }
}
