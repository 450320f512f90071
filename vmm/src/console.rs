//! Receivers of a guest's serial output.

use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};

/// The receiver of a guest's serial output.
pub struct Console {
    sink: Sink,
    /// Output that the sink has not taken yet.
    pending: Vec<u8>,
    /// Says whether so many bytes may be written now; without one, all may.
    admits: Option<Box<dyn FnMut(u64) -> bool + Send>>,
    /// The act for the end of the guest's next line.
    at_line: AtLine,
}

/// An act that runs once, when the guest has written a whole line.
#[derive(Default)]
pub(crate) struct AtLine(Option<Box<dyn FnOnce() + Send>>);

impl AtLine {
    /// Sets the act.
    pub(crate) fn set(&mut self, act: impl FnOnce() + Send + 'static) {
        self.0 = Some(Box::new(act));
    }

    /// Runs the act if these bytes of the guest end a line.
    pub(crate) fn written(&mut self, bytes: &[u8]) {
        if self.0.is_some()
            && bytes.contains(&b'\n')
            && let Some(act) = self.0.take()
        {
            act();
        }
    }
}

impl std::fmt::Debug for AtLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AtLine").field(&self.0.is_some()).finish()
    }
}

enum Sink {
    Nowhere,
    /// A descriptor that may stall, such as a pipe without a reader or a stopped terminal. A stalled write
    /// can be interrupted, so that the VM can pause. Never closed, because the whole process shares standard
    /// output.
    Stdout(ManuallyDrop<File>),
    Writer(Box<dyn Write + Send>),
}

/// Milliseconds between two checks for an interruption while a descriptor stalls.
const POLL_MS: i32 = 20;

impl Console {
    /// Standard output, unbuffered.
    #[must_use]
    #[allow(unsafe_code)]
    pub fn stdout() -> Self {
        // SAFETY: never dropped, so the descriptor is only borrowed, from a process that keeps it open as
        // Rust's own standard library expects.
        let stdout = unsafe { File::from_raw_fd(io::stdout().as_raw_fd()) };
        Self::new(Sink::Stdout(ManuallyDrop::new(stdout)))
    }

    /// Sends the output to `writer`. Each write carries the bytes since the last one, mostly a single byte.
    /// The writer should not block, because the vCPU waits for it. In a confined process
    /// ([`crate::sandbox::confine`]) it may only take locks, use memory and write to an open descriptor.
    #[must_use]
    pub fn to(writer: impl Write + Send + 'static) -> Self {
        Self::new(Sink::Writer(Box::new(writer)))
    }

    /// Discards the output.
    #[must_use]
    pub fn discard() -> Self {
        Self::new(Sink::Nowhere)
    }

    fn new(sink: Sink) -> Self {
        Self { sink, pending: Vec::new(), admits: None, at_line: AtLine::default() }
    }

    /// Drops output for which `admits` returns false. It gets a number of bytes.
    pub(crate) fn admitting(self, admits: impl FnMut(u64) -> bool + Send + 'static) -> Self {
        Self { admits: Some(Box::new(admits)), ..self }
    }

    /// The slot for an act at the end of a line.
    pub(crate) fn at_line(&mut self) -> &mut AtLine {
        &mut self.at_line
    }

    /// Writes output. While the sink stalls, this waits until `give_way` interrupts it; the rest then goes
    /// out before the next output. Output over the limit or for a sink that failed for good is lost, so that
    /// the guest does not suffer for it. Returns false if the limit dropped it.
    pub(crate) fn write(&mut self, bytes: &[u8], give_way: impl Fn() -> bool) -> bool {
        self.at_line.written(bytes);
        if self.admits.as_mut().is_some_and(|admits| !bytes.is_empty() && !admits(bytes.len() as u64)) {
            return false;
        }
        self.pending.extend_from_slice(bytes);
        let sent = match &mut self.sink {
            Sink::Nowhere => self.pending.len(),
            Sink::Writer(writer) => {
                let _ = writer.write_all(&self.pending).and_then(|()| writer.flush());
                self.pending.len()
            }
            Sink::Stdout(file) => write_some(file, &self.pending, give_way),
        };
        self.pending.drain(..sent);
        true
    }
}

/// Writes as much as the descriptor takes before `give_way` says to stop.
fn write_some(file: &mut File, bytes: &[u8], give_way: impl Fn() -> bool) -> usize {
    let mut sent = 0;
    while sent < bytes.len() {
        if !writable(file) {
            if give_way() {
                break;
            }
            continue;
        }
        // A pipe that is writable takes at least a page without blocking, and the rest is rarely longer than
        // a byte.
        match file.write(&bytes[sent..]) {
            Ok(written) => sent += written,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => return bytes.len(),
        }
    }
    sent
}

#[allow(unsafe_code)]
fn writable(file: &File) -> bool {
    let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one initialised entry, which the kernel fills in. An error counts as writable, because the
    // write reports it.
    unsafe { libc::poll(&raw mut poll, 1, POLL_MS) != 0 }
}

impl std::fmt::Debug for Console {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sink = match self.sink {
            Sink::Nowhere => "nowhere",
            Sink::Stdout(_) => "stdout",
            Sink::Writer(_) => "writer",
        };
        f.debug_struct("Console").field("sink", &sink).field("pending", &self.pending.len()).finish()
    }
}
