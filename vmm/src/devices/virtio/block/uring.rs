//! The io_uring engine, with as many requests in flight as the queue holds. The engine ends all of them
//! before anything else may happen to guest memory.
//!
//! ```text
//!   BlockRequest ──prepare──> UringRequest ──enqueue──> slot, entry ──submit──> kernel
//!       │                                                                          │
//!       └── None: executed at once       respond <── CompletedRequest <──completion┘
//! ```
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::{opcode, squeue, types};
use rustix::event::epoll::EventFlags;
use vm_memory::{Bytes, GuestAddress};

use super::host_file;
use super::host_file::{Direction, HostFile, MAX_PIECES};
use super::operations::TakenRequest;
use super::request::{BlockRequest, RequestStatus, Responder};
use super::rings::{ENTRIES, Ring};
use super::storage::{FileOffset, PendingFlush, Storage};
use crate::devices::virtio::DeviceFailed;
use crate::devices::virtio::watch::Watch;
use crate::error::{Error, Result};
use crate::memory::own_writes::GuestMemory;
use crate::memory::ram::GuestRam;

/// Number of the io_uring's descriptor in the watch.
pub const COMPLETION: u64 = 0;
/// Time until the next submission after the kernel had no memory for one.
pub const RETRY: Duration = Duration::from_millis(1);

/// The engine of one disk.
pub struct UringEngine {
    io_uring: Ring,
    files: Vec<HostFile>,
    /// Requests in flight, by the number in their entries.
    slots: Vec<Option<InFlight>>,
    free: Vec<u16>,
    /// Keeps the guest memory that requests point into.
    ram: Option<GuestRam>,
    #[cfg(test)]
    fault: uring_faults::CompletionFault,
}

/// A request in flight, in its slot.
#[derive(Debug)]
struct InFlight {
    responder: DeferredResponder,
    taken: TakenRequest,
    request: UringRequest,
}

/// A request that the storage has begun. Its pointers lead into guest memory, which [`UringEngine::ram`]
/// keeps.
#[derive(Debug)]
pub struct UringRequest {
    operation: Operation,
    /// Offset on the disk.
    at: u64,
    location: FileOffset,
    len: usize,
    /// The kernel reads the pieces until the request is completed.
    pieces: Vec<libc::iovec>,
}

/// Work of the kernel for a request.
#[derive(Debug)]
enum Operation {
    Transfer(Direction),
    Flush(PendingFlush),
}

/// A [`Responder`] that holds no reference to guest memory.
#[derive(Debug)]
struct DeferredResponder {
    head: u16,
    status: GuestAddress,
    data: usize,
}

// SAFETY: the pointers of the requests lead into guest memory, which any thread may access.
unsafe impl Send for UringEngine {}

/// A completed request, which needs a response.
#[derive(Debug)]
pub struct CompletedRequest {
    pub name: &'static str,
    /// Bytes of data that the driver got.
    pub done: io::Result<usize>,
    pub taken: TakenRequest,
    responder: DeferredResponder,
}

/// Duplicates of the files of a storage.
fn duplicates(storage: &dyn Storage) -> io::Result<Vec<HostFile>> {
    storage.files().into_iter().map(HostFile::duplicate).collect()
}

impl UringEngine {
    /// Makes the engine on the files of `storage`.
    ///
    /// # Errors
    /// As [`Ring::take`].
    pub fn new(id: &str, storage: &dyn Storage) -> Result<Self> {
        let failed = |source: io::Error| Error::host(format!("make an io_uring for disk {id}"), source);
        let io_uring = Ring::take().map_err(failed)?;
        Ok(Self {
            io_uring,
            files: duplicates(storage).map_err(failed)?,
            slots: (0..ENTRIES).map(|_| None).collect(),
            free: (0..ENTRIES).collect(),
            ram: None,
            #[cfg(test)]
            fault: uring_faults::CompletionFault::of_new_engine(),
        })
    }

    /// Goes on with the files of another storage. No request is in flight.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub fn replace_files(&mut self, id: &str, storage: &dyn Storage) -> Result<()> {
        let failed = |source| Error::host(format!("use another file for disk {id}"), source);
        self.files = duplicates(storage).map_err(failed)?;
        Ok(())
    }

    /// Starts to take requests on `ram`. The device is woken while there are completions. A request that
    /// completes while it is submitted, such as a read from the page cache, wakes nothing.
    pub fn begin(&mut self, ram: &GuestRam, watch: &Watch) -> std::result::Result<(), DeviceFailed> {
        self.ram = Some(ram.clone());
        // SAFETY: the descriptor is open for as long as the io_uring is borrowed.
        let ring = unsafe { BorrowedFd::borrow_raw(self.io_uring.as_raw_fd()) };
        watch
            .add(&ring, COMPLETION, EventFlags::IN)
            .map_err(|_| DeviceFailed("the host cannot watch the io_uring of a disk"))
    }

    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Begins a request on the storage. Returns `None` if the request has to be executed at once: io_uring
    /// does not suit it, or beginning it failed. Its kind, its number of pieces or its place in the files may
    /// not suit. The execution then meets that error again and reports it.
    pub fn prepare(&self, storage: &mut dyn Storage, request: &BlockRequest<'_>) -> Option<UringRequest> {
        let (at, len, pieces) = match request {
            BlockRequest::Read { at, into: data } | BlockRequest::Write { at, from: data } => {
                (*at, data.len(), data.iovecs())
            }
            BlockRequest::Flush => (0, 0, Vec::new()),
            _ => return None,
        };
        let is_flush = matches!(request, BlockRequest::Flush);
        let fits = is_flush || (1..=MAX_PIECES).contains(&pieces.len());
        if !fits || self.is_full() || self.ram.is_none() {
            return None;
        }
        let (operation, location) = match request {
            BlockRequest::Read { .. } => {
                let location = storage.locate(at, len as u64)?;
                if self.files[location.file].needs_bounce(Direction::Read) {
                    return None;
                }
                (Operation::Transfer(Direction::Read), location)
            }
            BlockRequest::Write { .. } => {
                let location = storage.begin_write(at, len as u64).ok()??;
                (Operation::Transfer(Direction::Write), location)
            }
            _ => {
                let flush = storage.begin_flush().ok()??;
                let location = FileOffset { file: flush.file, at: 0 };
                (Operation::Flush(flush), location)
            }
        };
        Some(UringRequest { operation, at, location, len, pieces })
    }

    /// Puts a prepared request into the submission queue.
    pub fn enqueue(&mut self, prepared: UringRequest, responder: Responder<'_>, taken: TakenRequest) {
        let ram = self.ram.as_ref().expect("a prepared request has memory");
        let responder = DeferredResponder::of(responder, ram);
        let slot = self.free.pop().expect("a prepared request has a slot");
        self.push(slot, InFlight { responder, taken, request: prepared });
    }

    /// Builds the submission entry of a request that has its slot.
    fn push(&mut self, slot: u16, in_flight: InFlight) {
        let request = &in_flight.request;
        let entry = request.entry(&self.files[request.location.file]).user_data(slot.into());
        // SAFETY: the slot keeps the pieces and `ram` keeps the memory that they point into, both until the
        // completion. There are no more slots than entries.
        unsafe { self.io_uring.submission().push(&entry) }.expect("an entry for each slot");
        self.slots[usize::from(slot)] = Some(in_flight);
    }

    /// Submits the enqueued requests. Returns false if the kernel has to be asked again later.
    pub fn submit(&mut self) -> bool {
        while !self.io_uring.submission().is_empty() {
            match self.io_uring.submit() {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Waits for a completion. At least one request must be in flight.
    pub fn wait(&mut self) {
        let waited = self.io_uring.submit_and_wait(1);
        if waited.is_err_and(|error| error.kind() != io::ErrorKind::Interrupted) {
            std::thread::sleep(RETRY);
        }
    }

    /// Returns the next completed request. A flush that needs another sync continues instead.
    pub fn next_completed(&mut self, storage: &mut dyn Storage) -> Option<CompletedRequest> {
        loop {
            let (slot, mut in_flight, result) = self.take_completion()?;
            let request = &mut in_flight.request;
            let file = &self.files[request.location.file];
            let ram = self.ram.as_ref().expect("nothing is under way without memory");
            let done = request.outcome(file, ram, result);
            let (name, done) = match &mut request.operation {
                Operation::Transfer(Direction::Read) => {
                    let is_only = self.files.len() == 1;
                    let named = |error| if is_only { error } else { file.named(&error) };
                    ("read", done.map(|()| request.len).map_err(named))
                }
                Operation::Transfer(Direction::Write) => {
                    ("write", storage.end_write(request.at, request.len as u64, done).map(|()| 0))
                }
                Operation::Flush(flush) => match storage.sync_done(flush, done) {
                    Ok(true) => {
                        self.push(slot, in_flight);
                        self.submit(); // a refused entry follows with the next submission, or after RETRY
                        continue;
                    }
                    done => ("flush", done.map(|_| 0)),
                },
            };
            self.free.push(slot);
            let InFlight { responder, taken, request: _ } = in_flight;
            return Some(CompletedRequest { name, done, taken, responder });
        }
    }

    fn take_completion(&mut self) -> Option<(u16, InFlight, i32)> {
        let completion = self.io_uring.completion().next()?;
        let slot = completion.user_data() as u16;
        let in_flight = self.slots[usize::from(slot)].take().expect("the kernel completes what it was given");
        let result = completion.result();
        #[cfg(test)]
        let result = self.fault.alter(result);
        Some((slot, in_flight, result))
    }

    /// Returns whether a write to a part of these bytes of the disk is in flight.
    pub fn is_writing(&self, at: u64, len: u64) -> bool {
        let mut writes = self.requests().filter(|request| request.is_write());
        writes.any(|request| request.at < at + len && at < request.at + request.len as u64)
    }

    /// Returns whether a flush is in flight.
    pub fn is_flushing(&self) -> bool {
        self.requests().any(|request| matches!(request.operation, Operation::Flush(_)))
    }

    /// The location and length of each write in flight.
    pub fn in_flight_writes(&self) -> impl Iterator<Item = (FileOffset, u64)> {
        let writes = self.requests().filter(|request| request.is_write());
        writes.map(|request| (request.location, request.len as u64))
    }

    fn requests(&self) -> impl Iterator<Item = &UringRequest> {
        self.slots.iter().flatten().map(|in_flight| &in_flight.request)
    }

    /// Waits for all requests in flight without responding to them. The storage has to drop what it began.
    /// The result of a sync is recorded, because the kernel reports a failure only once.
    pub fn abandon(&mut self) {
        while !self.is_idle() {
            self.wait();
            while let Some((slot, mut in_flight, result)) = self.take_completion() {
                let request = &mut in_flight.request;
                if let Some(ram) = &self.ram {
                    request.mark_pages_written(ram);
                }
                if let Operation::Flush(flush) = &mut request.operation {
                    let file = &self.files[request.location.file];
                    let done = if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) };
                    flush.sync.record(is_interrupted(result) || file.outcome_of_sync(done).is_ok());
                }
                self.free.push(slot);
            }
        }
        self.ram = None;
    }
}

impl Drop for UringEngine {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl fmt::Debug for UringEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UringEngine")
            .field("files", &self.files)
            .field("slots", &self.slots)
            .finish_non_exhaustive()
    }
}

impl UringRequest {
    fn is_write(&self) -> bool {
        matches!(self.operation, Operation::Transfer(Direction::Write))
    }

    fn entry(&self, file: &HostFile) -> squeue::Entry {
        let fd = types::Fd(file.file().as_raw_fd());
        let (pieces, count) = (self.pieces.as_ptr(), self.pieces.len() as u32);
        match self.operation {
            Operation::Transfer(Direction::Read) => {
                opcode::Readv::new(fd, pieces, count).offset(self.location.at).build()
            }
            Operation::Transfer(Direction::Write) => {
                opcode::Writev::new(fd, pieces, count).offset(self.location.at).build()
            }
            Operation::Flush(_) => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        }
    }

    /// Finishes a request for which the kernel gave `result`, including the bytes that the kernel left out.
    fn outcome(&mut self, file: &HostFile, ram: &GuestRam, result: i32) -> io::Result<()> {
        self.mark_pages_written(ram);
        let interrupted = is_interrupted(result);
        match (result, &self.operation) {
            (..0, Operation::Transfer(direction)) if interrupted => {
                self.transfer_rest(file, ram, *direction, 0)
            }
            (..0, Operation::Flush(_)) if interrupted => file.outcome_of_sync(file.file().sync_data()),
            (..0, Operation::Flush(_)) => file.outcome_of_sync(Err(io::Error::from_raw_os_error(-result))),
            (..0, _) => Err(io::Error::from_raw_os_error(-result)),
            (0, Operation::Transfer(_)) => Err(host_file::file_shrunk()),
            (_, Operation::Transfer(direction)) => self.transfer_rest(file, ram, *direction, result as usize),
            (_, Operation::Flush(_)) => Ok(()),
        }
    }

    /// Transfers what the kernel left out: the kernel may stop at any byte.
    fn transfer_rest(
        &mut self,
        file: &HostFile,
        ram: &GuestRam,
        direction: Direction,
        done: usize,
    ) -> io::Result<()> {
        if done == self.len {
            return Ok(());
        }
        let rest = host_file::advance(&mut self.pieces, done);
        // SAFETY: the pieces are guest memory, which the engine keeps until the request is completed.
        let result = unsafe { file.transfer(direction, self.location.at + done as u64, rest) };
        self.mark_pages_written(ram);
        result
    }

    /// Marks the pages that a read may have written.
    fn mark_pages_written(&self, ram: &GuestRam) {
        if matches!(self.operation, Operation::Transfer(Direction::Read)) {
            for piece in &self.pieces {
                let at = ram.guest_address(piece.iov_base as u64);
                at.into_iter().for_each(|at| ram.mark_written(at, piece.iov_len as u64));
            }
        }
    }
}

/// Returns whether the kernel did nothing and the request can be repeated.
fn is_interrupted(result: i32) -> bool {
    [libc::EINTR, libc::EAGAIN].contains(&-result)
}

impl DeferredResponder {
    fn of(responder: Responder<'_>, ram: &GuestRam) -> Self {
        let Responder { head, status, data } = responder;
        let byte = status.iovecs().first().expect("a status has one byte").iov_base;
        let status = ram.guest_address(byte as u64).expect("a chain lies in memory");
        Self { head, status: GuestAddress(status), data }
    }
}

impl CompletedRequest {
    /// Responds as [`Responder::respond`] does. Returns the chain's head, too.
    pub fn respond(self, memory: &GuestMemory, status: RequestStatus, filled: usize) -> (u16, usize) {
        let DeferredResponder { head, status: at, data } = self.responder;
        memory.write_obj(status as u8, at).expect("the status was in memory when the chain was parsed");
        (head, super::request::written(filled, data))
    }
}

#[cfg(test)]
#[path = "uring_faults.rs"]
mod uring_faults;

#[cfg(test)]
#[path = "uring_fault_tests.rs"]
mod fault_tests;

#[cfg(test)]
#[path = "uring_tests.rs"]
mod tests;
