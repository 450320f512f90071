//! One command.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use rustix::process::Pid;
use tokio::sync::{Notify, futures::Notified};

use super::end::End;
use super::group::Group;
use super::input::Input;
use super::ring::{Ring, Source};
use crate::connect::{Code, RpcError};
use crate::group_signal;
use crate::messages::process::{ProcessConfig, ProcessInfo};

/// Bytes that a client may lag behind before the command's output stops being read.
const LAG: u64 = 256 << 10;

/// A command that runs, or ended a short while ago.
pub struct Process {
    /// The process id, which is its group's too.
    pub pid: Pid,
    /// The command.
    pub config: ProcessConfig,
    /// The name that the client gave.
    pub tag: Option<String>,
    /// The standard input, or the terminal.
    pub input: Input,
    /// The control group of its own.
    group: Option<Group>,
    ring: RefCell<Ring>,
    /// Offsets of the attached clients.
    readers: RefCell<BTreeMap<u64, u64>>,
    last_reader: Cell<u64>,
    followed: Cell<bool>,
    changed: Notify,
    exited: Cell<bool>,
    end: RefCell<Option<End>>,
    timed_out: Cell<bool>,
}

impl Process {
    /// A command that has just started.
    pub fn new(pid: Pid, config: ProcessConfig, tag: Option<String>, input: Input) -> Rc<Self> {
        Self::in_group(pid, config, tag, input, None)
    }

    /// A command that has just started in a control group.
    pub fn in_group(
        pid: Pid,
        config: ProcessConfig,
        tag: Option<String>,
        input: Input,
        group: Option<Group>,
    ) -> Rc<Self> {
        Rc::new(Self {
            group,
            pid,
            config,
            tag,
            input,
            ring: RefCell::default(),
            readers: RefCell::default(),
            last_reader: Cell::default(),
            followed: Cell::default(),
            changed: Notify::new(),
            exited: Cell::default(),
            end: RefCell::default(),
            timed_out: Cell::default(),
        })
    }

    /// The process id as a number.
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Its entry in a list.
    pub fn info(&self) -> ProcessInfo {
        ProcessInfo { config: Some(self.config.clone()), pid: self.id(), tag: self.tag.clone() }
    }

    /// Adds output and wakes the clients.
    pub fn push(&self, source: Source, bytes: &[u8]) {
        self.ring.borrow_mut().push(source, bytes);
        self.changed.notify_waiters();
    }

    /// Tells whether each attached client has room for more output.
    pub fn has_room(&self) -> bool {
        let end = self.ring.borrow().end();
        self.readers.borrow().values().all(|&offset| offset + LAG > end)
    }

    /// Whether a client has ever been attached.
    pub fn has_been_followed(&self) -> bool {
        self.followed.get()
    }

    /// A future that completes at the next change after this call.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Its control group.
    pub fn group(&self) -> Option<&Group> {
        self.group.as_ref()
    }

    /// Sends a signal to its process group. A kill reaches all of its control group.
    pub fn signal(&self, signal: i32) -> Result<(), RpcError> {
        let gone = || RpcError::new(Code::NotFound, "the command has ended");
        if self.exited.get() {
            return Err(gone());
        }
        if let (libc::SIGKILL, Some(group)) = (signal, &self.group) {
            group.kill();
        }
        group_signal::send(self.pid, signal).map_err(|error| match error.raw_os_error() {
            Some(libc::ESRCH) => gone(),
            _ => RpcError::of_file("send the signal", &error),
        })
    }

    /// Ends its process group because its time is over.
    pub fn time_out(&self) {
        self.timed_out.set(true);
        // The process may have ended in this moment.
        let _ = self.signal(libc::SIGKILL);
    }

    /// True if its time was over before it ended.
    pub fn timed_out(&self) -> bool {
        self.timed_out.get()
    }

    /// True once the process is reaped. Its process id may then belong to another one.
    pub fn exited(&self) -> bool {
        self.exited.get()
    }

    /// Notes that the process is reaped.
    pub fn set_exited(&self) {
        self.exited.set(true);
        self.changed.notify_waiters();
    }

    /// Its last event, after all output.
    pub fn end(&self) -> Option<End> {
        self.end.borrow().clone()
    }

    /// Sets its last event.
    pub fn set_end(&self, end: End) {
        *self.end.borrow_mut() = Some(end);
        self.ring.borrow_mut().shrink();
        self.changed.notify_waiters();
    }

    /// Memory of its output.
    pub fn cost(&self) -> usize {
        self.ring.borrow().cost()
    }
}

/// An attached client's place in the output.
pub struct Reader {
    process: Rc<Process>,
    number: u64,
}

impl Reader {
    /// Attaches a client at an offset, else at the end. An offset beyond the end is one of an earlier agent:
    /// the client gets all that this agent has.
    pub fn new(process: Rc<Process>, offset: Option<u64>) -> Self {
        process.followed.set(true);
        Self::of_log(process, offset)
    }

    /// Attaches the host's log, which is no client.
    pub fn of_log(process: Rc<Process>, offset: Option<u64>) -> Self {
        let number = process.last_reader.get() + 1;
        process.last_reader.set(number);
        process.changed.notify_waiters();
        let offset = {
            let ring = process.ring.borrow();
            match offset {
                None => ring.end(),
                Some(offset) if offset > ring.end() => ring.start(),
                Some(offset) => offset.max(ring.start()),
            }
        };
        process.readers.borrow_mut().insert(number, offset);
        Self { process, number }
    }

    /// The command.
    pub fn process(&self) -> &Rc<Process> {
        &self.process
    }

    /// The offset of the next byte.
    pub fn offset(&self) -> u64 {
        self.process.readers.borrow().get(&self.number).copied().unwrap_or_default()
    }

    /// Takes the next output.
    pub fn take(&self) -> Option<(Source, Vec<u8>)> {
        let ring = self.process.ring.borrow();
        let offset = self.offset().max(ring.start());
        let (source, bytes) = ring.read(offset)?;
        self.process.readers.borrow_mut().insert(self.number, offset + bytes.len() as u64);
        self.process.changed.notify_waiters();
        Some((source, bytes.to_vec()))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.process.readers.borrow_mut().remove(&self.number);
        self.process.changed.notify_waiters();
    }
}
