//! Lower bound for a userfaultfd round trip: serves faults like
//! [`crate::memory::lazy::fault_service::Service`], with the same messages, copies and wake-ups, from chunks
//! that lie unpacked in memory. One thread serves each VM. Only measurements use it.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::slice;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::error::{Error, Result};
use crate::memory::backing::Backing;
use crate::memory::files::data::data_ranges;
use crate::memory::files::memfd::fresh;
use crate::memory::files::sealing::read_only;
use crate::memory::lazy::faults::{FaultHandler, Faults, Fetched};
use crate::memory::lazy::filler::Window;
use crate::memory::lazy::prefetch::PageRanges;
use crate::memory::lazy::served_vm::{ServedVm, zero};
use crate::memory::prefault::map_in;
use crate::memory::ram::GuestRam;
use crate::memory::range::AddressRange;
use crate::progress::Progress;
use crate::sandbox::ThreadKind;
use crate::sync::{lock, signal};
use crate::threads;

/// A pager that serves faults from unpacked memory.
#[derive(Debug)]
pub struct FloorPager {
    shared: Arc<FloorMemory>,
    base: Arc<File>,
    threads: Mutex<HashMap<u64, FaultThread>>,
}

#[derive(Debug)]
struct FloorMemory {
    /// The content.
    image: GuestRam,
    /// The destination of the copies.
    window: Window,
    chunk_len: u64,
    /// Whether a chunk has data, for each chunk.
    has_data: Box<[bool]>,
}

#[derive(Debug)]
struct FaultThread {
    stop: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

impl FloorPager {
    /// Makes a pager for the content of `image`, in chunks of `chunk_len` bytes. Reads the data of `image`
    /// into memory first.
    ///
    /// # Errors
    /// Returns an error if the host refuses memory.
    pub fn over(image: Arc<File>, chunk_len: u64) -> Result<Self> {
        let failed = |source| Error::host("find the data of a memory file", source);
        let len = image.metadata().map_err(failed)?.len();
        let data = data_ranges(&image, len).map_err(failed)?;
        let mut has_data = vec![false; len.div_ceil(chunk_len) as usize].into_boxed_slice();
        for range in &data {
            let chunks = range.start / chunk_len..range.end.div_ceil(chunk_len);
            has_data[chunks.start as usize..chunks.end as usize].fill(true);
        }
        let ram = GuestRam::reserve(len)?;
        Backing::Private { base: image, pages: None }.map(&ram)?;
        data.into_iter().try_for_each(|range| map_in(&ram, range))?;
        let memfd = fresh(len)?;
        let window = Window::over(&memfd, len)?;
        let base = Arc::new(read_only(&memfd).map_err(failed)?);
        let shared = Arc::new(FloorMemory { image: ram, window, chunk_len, has_data });
        Ok(Self { shared, base, threads: Mutex::default() })
    }
}

impl FaultHandler for FloorPager {
    fn base(&self) -> Arc<File> {
        Arc::clone(&self.base)
    }

    fn begin(&self, faults: &Arc<Faults>) -> Result<u64> {
        let stop =
            eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| Error::host("make an eventfd", errno))?;
        let stop = Arc::new(stop);
        let (shared, served, until) = (Arc::clone(&self.shared), ServedVm::of(faults), Arc::clone(&stop));
        let thread =
            threads::spawn(ThreadKind::Worker, "floor", move || shared.serve_faults(&served, &until))?;
        let number = faults.start();
        lock(&self.threads).insert(number, FaultThread { stop, thread });
        Ok(number)
    }

    fn end(&self, number: u64, _: AddressRange) {
        let thread = lock(&self.threads).remove(&number);
        if let Some(FaultThread { stop, thread }) = thread {
            signal(&*stop, 1);
            // This may be that thread, which drops the memory after it reported a failure.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }

    fn complete(&self, _: &Progress) -> Result<()> {
        (0..self.shared.has_data.len() as u64).try_for_each(|chunk| self.shared.fill(chunk))
    }

    /// Does nothing: a prefetch would hide the faults to measure.
    fn prefetch(&self, _: &PageRanges) -> Result<()> {
        Ok(())
    }

    fn fetched(&self, _: Option<&PageRanges>) -> Option<Fetched> {
        None
    }
}

impl FloorMemory {
    fn serve_faults(&self, served: &ServedVm, stop: &OwnedFd) {
        loop {
            let mut fds = [PollFd::new(&*served.userfault, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
            let _ = poll(&mut fds, None);
            if fds[1].revents().contains(PollFlags::IN) {
                return;
            }
            let read = served
                .userfault
                .read(|address| self.serve_chunk(served, (address - served.start) / self.chunk_len));
            if let Err(errno) = read {
                log::error!("cannot read page faults: {errno}");
                return;
            }
        }
    }

    fn serve_chunk(&self, served: &ServedVm, chunk: u64) {
        let start = chunk * self.chunk_len;
        let range = start..(start + self.chunk_len).min(self.image.len());
        let done = if self.has_data[chunk as usize] {
            self.fill(chunk)
        } else {
            zero(served, &range).map_err(|errno| Error::host("map pages of zeros", errno))
        };
        match done {
            Ok(()) => drop(served.userfault.wake(served.start + range.start, range.end - range.start)),
            Err(error) => (served.unreadable)(range, &error),
        }
    }

    fn fill(&self, chunk: u64) -> Result<()> {
        let start = chunk * self.chunk_len;
        let len = self.chunk_len.min(self.image.len() - start);
        // SAFETY: the bytes lie in the image, which stays mapped as long as this object lives and is never
        // written.
        let bytes = unsafe { slice::from_raw_parts(self.image.host_address_of(start), len as usize) };
        self.window.put(start, bytes).map_err(|errno| Error::host("copy a chunk of guest memory", errno))
    }
}
