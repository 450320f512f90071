//! A memory handler: a process of the user's own that fills the memory of a VM. It speaks as the page-fault
//! handlers of Firecracker do (its docs/snapshotting/handling-page-faults-on-snapshot-resume.md).
//!
//! ```text
//!   VM                                            handler, at a socket
//!    │ connect ──────────────────────────────────> │
//!    │ mappings in JSON; its userfaultfd ────────> │  reads them, or the restore fails
//!    │                                             │
//!    │ page faults, dropped ranges ──────────────> │  by the userfaultfd
//!    │ <────────── UFFDIO_COPY, UFFDIO_ZEROPAGE ── │  into the VM's own pages
//! ```
//!
//! The connection stays open both ways as long as the VM lives: handlers take its end for that of the VM.
//!
//! The VM maps an empty base and keeps a userfaultfd of its own: faults wait if the handler dies, and never
//! show zeros. A thread watches for faults that wait too long ([`watch`]), and ends the VM then.
//!
//! **Trust.** The handler decides the content of the VM's memory. It may hold the userfaultfd for good, and
//! a late answer of it changes any memory that is registered at its address. The addresses of an ended VM
//! are therefore not used again in this process.

mod mappings;
mod taken;
mod watch;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::SendFlags;

use super::options::deadline_after;
use crate::error::{Error, Result, report};
use crate::memory::base::PageSize;
use crate::memory::files::memfd::{fresh, fresh_huge};
use crate::memory::files::sealing::seal;
use crate::memory::lazy::faults::{FaultHandler, Faults, Fetched, FilledPages};
use crate::memory::lazy::patience::Patience;
use crate::memory::lazy::prefetch::PageRanges;
use crate::memory::lazy::presence::populate;
use crate::memory::range::AddressRange;
use crate::packets::send;
use crate::paths::{self, PagerSocket, opener};
use crate::progress::Progress;
use crate::sandbox::ThreadKind;
use crate::sync::lock;
use crate::threads;

/// Time between two attempts to connect to a handler with a full queue.
const PAUSE: Duration = Duration::from_millis(2);
/// Bytes fetched between two looks at whether a fetch of all memory is cancelled.
const STEP: u64 = 2 << 20;

/// A process of the user's own that fills the memory of VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryHandler {
    /// The socket at which it listens: a stream.
    pub socket: PathBuf,
    /// Longest wait for the handler: until it takes a VM's memory, and for a page that a thread waits for.
    /// After that the VM ends.
    pub patience: Duration,
}

impl MemoryHandler {
    /// The handler that listens at `socket`, with a patience of 10 s.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), patience: Duration::from_secs(10) }
    }

    /// Longest wait for the handler.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    fn failed(&self, act: &'static str, source: io::Error) -> Error {
        Error::file(act, self.socket.display(), source)
    }

    /// End of a wait that starts now.
    fn deadline(&self) -> Instant {
        deadline_after(self.patience)
    }

    /// Connects. Waits for room in the queue of a busy handler.
    fn connect(&self, deadline: Instant) -> Result<OwnedFd> {
        loop {
            // It holds for one attempt.
            opener::allow_pager(&self.socket);
            let error = match paths::connect_to_pager(&self.socket, PagerSocket::Stream) {
                Ok(socket) => return Ok(socket),
                Err(error) => error,
            };
            match error.kind() {
                io::ErrorKind::WouldBlock if Instant::now() < deadline => thread::sleep(PAUSE),
                _ => return Err(self.failed("connect to the memory handler at", self.explained(error))),
            }
        }
    }

    /// Gives an error of connect(2) its likely reason.
    fn explained(&self, error: io::Error) -> io::Error {
        use std::os::unix::fs::FileTypeExt;
        let is_socket = || paths::metadata(&self.socket).is_ok_and(|found| found.file_type().is_socket());
        let why = match error.kind() {
            io::ErrorKind::ConnectionRefused if !is_socket() => "it is not a socket",
            io::ErrorKind::ConnectionRefused => "no process listens there; start the handler first",
            io::ErrorKind::WouldBlock => "its queue of connections is full",
            // The opener knows no directory that is not there.
            io::ErrorKind::PermissionDenied => return paths::metadata(&self.socket).err().unwrap_or(error),
            _ => return error,
        };
        io::Error::new(error.kind(), why)
    }
}

/// The memory handler of one VM. See the module.
#[derive(Debug)]
pub(crate) struct HandlerClient {
    shared: Arc<ClientState>,
    base: Arc<File>,
    page_size: PageSize,
    deadline: Instant,
    faults: OnceLock<Weak<Faults>>,
    patience: Patience,
}

/// The part of a client that its watching thread shares.
#[derive(Debug)]
struct ClientState {
    handler: MemoryHandler,
    socket: OwnedFd,
    /// Whether the VM has ended.
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl HandlerClient {
    /// Connects to the handler for a VM with `memory_len` bytes of memory in pages of this size.
    ///
    /// # Errors
    /// Nothing listens at the socket, or the host refuses.
    pub fn connect(handler: &MemoryHandler, memory_len: u64, page_size: PageSize) -> Result<Self> {
        let absolute = paths::absolute(&handler.socket);
        let socket = absolute.map_err(|source| handler.failed("find the memory handler at", source))?;
        let handler = MemoryHandler { socket, ..handler.clone() };
        let deadline = handler.deadline();
        let socket = handler.connect(deadline)?;
        let base = match page_size {
            PageSize::Small => fresh(memory_len)?,
            PageSize::Huge => fresh_huge(memory_len)?,
        };
        seal(&base).map_err(|source| Error::host("seal the base of guest memory", source))?;
        let (is_over, changed) = (Mutex::new(false), Condvar::new());
        let shared = Arc::new(ClientState { handler, socket, is_over, changed });
        let (faults, patience) = (OnceLock::new(), Patience::default());
        Ok(Self { shared, base: Arc::new(base), page_size, deadline, faults, patience })
    }
}

impl FaultHandler for HandlerClient {
    fn base(&self) -> Arc<File> {
        Arc::clone(&self.base)
    }

    fn patience(&self) -> Option<Duration> {
        Some(self.shared.handler.patience)
    }

    fn fills(&self) -> FilledPages {
        FilledPages::Vm
    }

    fn page_size(&self) -> PageSize {
        self.page_size
    }

    fn begin(&self, faults: &Arc<Faults>) -> Result<u64> {
        let ClientState { handler, socket, .. } = &*self.shared;
        let failed = |source| handler.failed("give guest memory to the memory handler at", source);
        let mappings = mappings::of(faults.start(), faults.len(), self.page_size.bytes());
        let beside = Some(faults.userfault().as_fd());
        send(socket, &mappings, beside, SendFlags::DONTWAIT)
            .map_err(|error| if is_end(&error) { taken::closed() } else { error })
            .map_err(failed)?;
        taken::wait_until_taken(socket, self.deadline).map_err(failed)?;
        let (shared, weak) = (Arc::clone(&self.shared), Arc::downgrade(faults));
        let _ = self.faults.set(Weak::clone(&weak));
        threads::spawn(ThreadKind::Worker, "handler-watch", move || shared.watch(&weak))?;
        Ok(0)
    }

    fn end(&self, _: u64, range: AddressRange) {
        // The addresses stay in use in any case: a late answer must not reach other memory.
        if let Err(errno) = range.vacate() {
            log::debug!("cannot unmap a VM's memory: {errno}");
        }
        std::mem::forget(range);
        *lock(&self.shared.is_over) = true;
        self.shared.changed.notify_all();
    }

    /// Fetches the VM's missing pages, except those that the guest returned to the host. The base stays
    /// empty: what is missing afterwards is a page of zeros.
    fn complete(&self, progress: &Progress) -> Result<()> {
        let Some(faults) = self.faults.get().and_then(Weak::upgrade) else { return Ok(()) };
        progress.expect(faults.len());
        for start in (0..faults.len()).step_by(STEP as usize) {
            let step = start..(start + STEP).min(faults.len());
            for run in faults.needed(step.clone()) {
                self.fetch_run(&faults, run)?;
            }
            progress.add(step.end - step.start)?;
        }
        Ok(())
    }

    /// The handler reads ahead by itself.
    fn prefetch(&self, _: &PageRanges) -> Result<()> {
        Err(Error::config("prefetch", "a memory handler knows no working set; it reads ahead by itself"))
    }

    fn fetched(&self, _: Option<&PageRanges>) -> Option<Fetched> {
        None
    }
}

impl HandlerClient {
    fn fetch_run(&self, faults: &Faults, Range { start, end }: Range<u64>) -> Result<()> {
        let populated = self.patience.retry(|| populate(faults.start() + start, end - start));
        populated.map_err(|errno| {
            let source = faults.failure().map_or_else(|| errno.into(), io::Error::other);
            Error::host("fetch all of a VM's memory", source)
        })
    }
}

impl ClientState {
    /// Ends the VM: releases all threads that wait for memory, as long as there are any.
    fn give_up(&self, faults: &Weak<Faults>) {
        let why = report(&self.silence());
        while let Some(alive) = faults.upgrade() {
            alive.let_go(&why);
            drop(alive);
            if self.wait_for_end(watch::LOOK) {
                return;
            }
        }
    }

    /// The error of a handler that does not answer.
    fn silence(&self) -> Error {
        let MemoryHandler { patience, .. } = &self.handler;
        let patience = patience.as_secs_f32();
        let why = if taken::has_ended(&self.socket) {
            format!("it closed its connection, and no page came for {patience} s")
        } else {
            format!("no page came for {patience} s: it is stopped, or too slow")
        };
        self.handler.failed("get guest memory from the memory handler at", io::Error::other(why))
    }

    /// Waits for the VM's end, `limit` at most. Returns whether it has ended.
    fn wait_for_end(&self, limit: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(lock(&self.is_over), limit, |is_over| !*is_over);
        *waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
    }
}

/// Whether the other end of a connection is closed.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
