//! Where a guest's serial output goes.

use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};

/// The receiver of a guest's serial output.
pub struct Console {
    sink: Sink,
    /// Output that the guest has handed over and the sink has not taken yet.
    pending: Vec<u8>,
    /// What is done at the end of the next line.
    at_line: AtLine,
}

/// Something to be done when a guest has written a whole line, once.
#[derive(Default)]
pub(crate) struct AtLine(Option<Box<dyn FnOnce() + Send>>);

impl AtLine {
    /// Has this done.
    pub(crate) fn set(&mut self, act: impl FnOnce() + Send + 'static) {
        self.0 = Some(Box::new(act));
    }

    /// The guest has written this.
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
    /// A descriptor that may stall (a pipe nobody reads, a stopped terminal): waited for without losing the ability to
    /// pause the VM. Not closed, because standard output is everyone's.
    Stdout(ManuallyDrop<File>),
    Writer(Box<dyn Write + Send>),
}

/// How long one wait for a stalled descriptor takes before the vCPU looks up, in milliseconds.
const LOOK_UP_MS: i32 = 20;

impl Console {
    /// Standard output, unbuffered.
    #[must_use]
    #[allow(unsafe_code)]
    pub fn stdout() -> Self {
        // SAFETY: never dropped, so the descriptor is only borrowed, from a process that keeps it open as Rust's own
        // standard library expects.
        let stdout = unsafe { File::from_raw_fd(io::stdout().as_raw_fd()) };
        Self::new(Sink::Stdout(ManuallyDrop::new(stdout)))
    }

    /// Any writer. Each write carries what the guest sent since the last one, mostly a byte; the writer should not
    /// block, for the vCPU that sends waits for it.
    #[must_use]
    pub fn to(writer: impl Write + Send + 'static) -> Self {
        Self::new(Sink::Writer(Box::new(writer)))
    }

    /// Nowhere.
    #[must_use]
    pub fn discard() -> Self {
        Self::new(Sink::Nowhere)
    }

    fn new(sink: Sink) -> Self {
        Self { sink, pending: Vec::new(), at_line: AtLine::default() }
    }

    /// What is to be done at the end of a line.
    pub(crate) fn at_line(&mut self) -> &mut AtLine {
        &mut self.at_line
    }

    /// Hands over output. While the sink stalls this waits, until `give_way` says to come back: what is then left goes
    /// out before the next output. A sink that fails for good loses its output; the guest must not suffer for it.
    pub(crate) fn write(&mut self, bytes: &[u8], give_way: impl Fn() -> bool) {
        self.at_line.written(bytes);
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
        // A pipe with room takes at least a page without blocking, and the rest is rarely more than a byte.
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
    // SAFETY: one initialised entry, which the kernel fills in. An error counts as writable: the write will tell.
    unsafe { libc::poll(&raw mut poll, 1, LOOK_UP_MS) != 0 }
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
