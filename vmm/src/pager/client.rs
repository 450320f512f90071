//! A VM's connection to its pager: finds or starts a pager, and another one when it dies.
//!
//! ```text
//!   Connected ── the socket ends ──> Searching ── found ──> Connected      (faults wait meanwhile)
//!                                        └── not in time ──> the VM ends
//! ```

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{SendFlags, Shutdown};

use super::connection::{NotServed, Target};
use super::list::list;
use super::message::{PagerRequest, PagerResponse};
use super::options::PagerOptions;
use super::place::PagerPlace;
use crate::error::{Error, Result, report};
use crate::memory::lazy::faults::{FaultHandler, Faults, Fetched};
use crate::memory::lazy::prefetch::PageRanges;
use crate::memory::range::AddressRange;
use crate::packets::send;
use crate::paths::opener;
use crate::progress::Progress;
use crate::sandbox::ThreadKind;
use crate::sync::lock;
use crate::threads;

/// Time between two attempts to send to a pager whose socket is full.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// Time between two checks of whether waiting for the pager was cancelled.
const LOOK: Duration = Duration::from_millis(100);
/// Longest wait for the pager's statistics, which are not essential.
const TO_SAY: Duration = Duration::from_secs(1);

/// The pager of one VM. See the module.
#[derive(Debug)]
pub struct Pager(pub(super) Arc<ClientState>);

#[derive(Debug)]
pub(super) struct ClientState {
    pub(super) target: Target,
    /// End of the wait for a pager before the VM runs.
    deadline: Instant,
    /// The list of pages to fetch ahead, if there is one.
    ahead: OnceLock<File>,
    pub(super) connection: Mutex<PagerConnection>,
    pub(super) changed: Condvar,
}

/// The connection, and the answers that threads wait for.
#[derive(Debug, Default)]
pub(super) struct PagerConnection {
    /// `None` between two connections.
    pub(super) socket: Option<Arc<OwnedFd>>,
    pub(super) over: bool,
    /// The VM's memory, set when its service is to end.
    pub(super) range: Option<AddressRange>,
    /// Connections over which a pager was asked to serve and which it has not ended. It may act on the
    /// memory.
    pub(super) served_by: Vec<Arc<OwnedFd>>,
    /// The pager's answer to [`PagerRequest::Complete`].
    pub(super) completed: Option<PagerResponse>,
    /// Whether a thread waits for the answer to [`PagerRequest::Complete`].
    pub(super) completes: bool,
    /// The pager's answer to [`PagerRequest::Fetched`].
    pub(super) fetched: Option<Fetched>,
    /// Number of connections so far. An answer expected from one does not come from the next.
    pub(super) count: u64,
}

impl Pager {
    /// Connects to the pager of the pack in `pack`, which errors call `name`, and gets the base of
    /// `memory_len` bytes.
    ///
    /// # Errors
    /// No pager runs, and none can be started.
    pub fn connect(options: &PagerOptions, pack: File, name: PathBuf, memory_len: u64) -> Result<Self> {
        let place = PagerPlace::of(&pack, &options.directory, options.group.as_deref())?;
        let (options, base) = (options.clone(), OnceLock::new());
        let target = Target { options, place, pack, name, memory_len, base, started: Mutex::default() };
        // A pager that another process started may have to be replaced while the guest runs.
        target.program().allow();
        opener::allow_pager(&target.place.socket());
        let deadline = target.deadline();
        let socket = Arc::new(target.reach(deadline)?);
        let connection =
            Mutex::new(PagerConnection { socket: Some(socket), count: 1, ..PagerConnection::default() });
        let (ahead, changed) = (OnceLock::new(), Condvar::new());
        Ok(Self(Arc::new(ClientState { target, deadline, ahead, connection, changed })))
    }
}

impl FaultHandler for Pager {
    fn base(&self) -> Arc<File> {
        Arc::clone(self.0.target.base.get().expect("it was had when the pager was connected"))
    }

    fn begin(&self, faults: &Arc<Faults>) -> Result<u64> {
        let (inner, weak) = (Arc::clone(&self.0), Arc::downgrade(faults));
        let socket = lock(&inner.connection).socket.clone().expect("it is connected until someone watches");
        // The pager may have been about to end when it was reached, so another is tried.
        if let Err(error) = inner.serve(&socket, faults, inner.deadline) {
            log::debug!("the pager ended: {}", report(&error));
            let socket = Arc::new(inner.target.reach(inner.deadline)?);
            inner.serve(&socket, faults, inner.deadline)?;
            lock(&inner.connection).socket = Some(socket);
        }
        threads::spawn(ThreadKind::Worker, "pager-watch", move || inner.watch(&weak))?;
        Ok(0)
    }

    /// Does not wait for the pager, which may be stopped. The watching thread waits.
    fn end(&self, _: u64, range: AddressRange) {
        if let Err(errno) = range.vacate() {
            log::debug!("cannot free a VM's memory before its pager ends: {errno}");
        }
        let mut connection = lock(&self.0.connection);
        connection.over = true;
        connection.range = Some(range);
        if let Some(socket) = connection.socket.take() {
            // The pager then ends the service, and after that the connection.
            let _ = rustix::net::shutdown(&*socket, Shutdown::Write);
        }
        self.0.changed.notify_all();
    }

    /// If the pager dies meanwhile, the next one is asked again.
    fn complete(&self, progress: &Progress) -> Result<()> {
        let done = self.0.complete(progress);
        lock(&self.0.connection).completes = false;
        done
    }

    /// A later pager is asked, too.
    fn prefetch(&self, runs: &PageRanges) -> Result<()> {
        let failed = |source| Error::host("list pages for the pager", source);
        let list = list(runs).map_err(failed)?;
        let inner = &*self.0;
        if inner.ahead.set(list).is_ok()
            && let Some(socket) = lock(&inner.connection).socket.clone()
        {
            inner.ask_ahead(&socket);
        }
        Ok(())
    }

    /// Returns nothing for a stopped pager. The pager knows the list that this VM has named.
    fn fetched(&self, _: Option<&PageRanges>) -> Option<Fetched> {
        let inner = &*self.0;
        let mut connection = lock(&inner.connection);
        let socket = connection.socket.clone()?;
        connection.fetched = None;
        send(&*socket, &PagerRequest::Fetched, None, SendFlags::DONTWAIT).ok()?;
        let waits = |connection: &mut PagerConnection| connection.fetched.is_none() && !connection.over;
        let waited = inner.changed.wait_timeout_while(connection, TO_SAY, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.fetched.take()
    }
}

impl ClientState {
    /// As [`Target::serve`]. Records the connection first: a pager may start to serve even if its answer is
    /// lost. A pager that refuses has not started.
    pub(super) fn serve(&self, socket: &Arc<OwnedFd>, faults: &Faults, deadline: Instant) -> Result<()> {
        lock(&self.connection).served_by.push(Arc::clone(socket));
        self.target.serve(socket, faults, deadline).map_err(|not_served| match not_served {
            NotServed::Refused(error) => {
                lock(&self.connection).served_by.retain(|served| !Arc::ptr_eq(served, socket));
                error
            }
            NotServed::Unknown(error) => error,
        })
    }

    /// Asks the pager to fetch the list ahead, if there is one. Does not wait for a pager that is gone or
    /// does not read: the list is advice.
    pub(super) fn ask_ahead(&self, socket: &OwnedFd) {
        if let Some(list) = self.ahead.get() {
            let _ = send(socket, &PagerRequest::Prefetch, Some(list.as_fd()), SendFlags::DONTWAIT);
        }
    }

    fn complete(&self, progress: &Progress) -> Result<()> {
        let failed = |why: &str| Error::host("fetch all of a VM's memory", io::Error::other(why));
        let mut connection = lock(&self.connection);
        let wait = |mut connection, waits: &dyn Fn(&mut PagerConnection) -> bool| loop {
            progress.check()?;
            let waited = self.changed.wait_timeout_while(connection, LOOK, waits);
            let (now, limit) = waited.unwrap_or_else(PoisonError::into_inner);
            if !limit.timed_out() {
                return Ok::<_, Error>(now);
            }
            connection = now;
        };
        loop {
            // Without a connection, the watching thread looks for a pager or ends the VM.
            connection = wait(connection, &|connection| connection.socket.is_none() && !connection.over)?;
            let Some(socket) = connection.socket.clone().filter(|_| !connection.over) else {
                return Err(failed("no pager is connected"));
            };
            let count = connection.count;
            (connection.completed, connection.completes) = (None, true);
            let is_asked = send(&*socket, &PagerRequest::Complete, None, SendFlags::DONTWAIT).is_ok();
            // The socket of a stopped pager fills up. The watching thread decides when that lasts too long.
            let waits = |connection: &mut PagerConnection| {
                connection.completed.is_none() && connection.count == count && !connection.over
            };
            connection = if is_asked {
                wait(connection, &waits)?
            } else {
                let waited = self.changed.wait_timeout_while(connection, ASK_AGAIN, waits);
                waited.unwrap_or_else(PoisonError::into_inner).0
            };
            match connection.completed.take() {
                Some(PagerResponse::Done) => return Ok(()),
                Some(PagerResponse::Refused(why)) => return Err(failed(&why)),
                _ => {}
            }
        }
    }
}
