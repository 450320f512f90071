//! The least that a page fault can cost which a process answers: the same messages, the same copy into the same kind of mapping, the
//! same wake-up as a [`crate::memory::lazy::fault_service::Service`] makes, with every chunk lying in memory ready to be copied. One thread a VM answers.
//!
//! Nothing but measurements use it.
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
use crate::memory::lazy::faults::Faults;
use crate::memory::lazy::faults::{Fetched, Paging};
use crate::memory::lazy::filler::Window;
use crate::memory::lazy::prefetch::Runs;
use crate::memory::lazy::served_vm::{ServedVm, zero};
use crate::memory::prefault::map_in;
use crate::memory::ram::GuestRam;
use crate::memory::range::AddressRange;
use crate::sync::lock;
use crate::threads;

/// See the module.
#[derive(Debug)]
pub struct Floor {
    shared: Arc<Shared>,
    base: Arc<File>,
    answering: Mutex<HashMap<u64, Answering>>,
}

#[derive(Debug)]
struct Shared {
    /// What is to be copied.
    image: GuestRam,
    /// Where to.
    window: Window,
    chunk_len: u64,
    /// Of each chunk, whether it holds anything.
    holds: Box<[bool]>,
}

#[derive(Debug)]
struct Answering {
    stop: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

impl Floor {
    /// Memory as long as `image`, with its content, in chunks of so many bytes. What is data in that is brought into memory first.
    ///
    /// # Errors
    /// The host refuses memory, or a userfaultfd.
    pub fn over(image: Arc<File>, chunk_len: u64) -> Result<Self> {
        let failed = |source| Error::host("look at the memory that is to be copied", source);
        let len = image.metadata().map_err(failed)?.len();
        let data = data_ranges(&image, len).map_err(failed)?;
        let mut holds = vec![false; len.div_ceil(chunk_len) as usize].into_boxed_slice();
        for range in &data {
            let chunks = range.start / chunk_len..range.end.div_ceil(chunk_len);
            holds[chunks.start as usize..chunks.end as usize].fill(true);
        }
        let ram = GuestRam::reserve(len)?;
        Backing::Private { base: image, pages: None }.map(&ram)?;
        data.into_iter().try_for_each(|range| map_in(&ram, range))?;
        let memfd = fresh(len)?;
        let window = Window::over(&memfd, len)?;
        let base = Arc::new(read_only(&memfd).map_err(failed)?);
        let shared = Arc::new(Shared { image: ram, window, chunk_len, holds });
        Ok(Self { shared, base, answering: Mutex::default() })
    }
}

impl Paging for Floor {
    fn base(&self) -> Arc<File> {
        Arc::clone(&self.base)
    }

    fn begin(&self, faults: &Arc<Faults>) -> Result<u64> {
        let stop =
            eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| Error::host("make an eventfd", errno))?;
        let stop = Arc::new(stop);
        let (shared, served, until) = (Arc::clone(&self.shared), ServedVm::of(faults), Arc::clone(&stop));
        let thread = threads::spawn("floor", move || shared.answer(&served, &until))?;
        let number = faults.start();
        lock(&self.answering).insert(number, Answering { stop, thread });
        Ok(number)
    }

    fn end(&self, number: u64, _: AddressRange) {
        let answering = lock(&self.answering).remove(&number);
        if let Some(Answering { stop, thread }) = answering {
            let _ = rustix::io::write(&*stop, &1_u64.to_ne_bytes());
            // The memory may have gone while that thread told it of its end.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }

    fn complete(&self) -> Result<()> {
        (0..self.shared.holds.len() as u64).try_for_each(|chunk| self.shared.fill(chunk))
    }

    /// What is read ahead costs nobody a fault.
    fn prefetch(&self, _: &Runs) -> Result<()> {
        Ok(())
    }

    fn fetched(&self, _: Option<&Runs>) -> Option<Fetched> {
        None
    }
}

impl Shared {
    fn answer(&self, served: &ServedVm, stop: &OwnedFd) {
        loop {
            let mut fds = [PollFd::new(&*served.userfault, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
            let _ = poll(&mut fds, None);
            if fds[1].revents().contains(PollFlags::IN) {
                return;
            }
            let read = served
                .userfault
                .read(|address| self.bring(served, (address - served.start) / self.chunk_len));
            if let Err(errno) = read {
                log::error!("cannot read page faults: {errno}");
                return;
            }
        }
    }

    fn bring(&self, served: &ServedVm, chunk: u64) {
        let start = chunk * self.chunk_len;
        let range = start..(start + self.chunk_len).min(self.image.len());
        let done = if self.holds[chunk as usize] {
            self.fill(chunk)
        } else {
            zero(served, &range).map_err(|errno| Error::host("put pages of zeros in place", errno))
        };
        match done {
            Ok(()) => drop(served.userfault.wake(served.start + range.start, range.end - range.start)),
            Err(error) => (served.unreadable)(range, &error),
        }
    }

    fn fill(&self, chunk: u64) -> Result<()> {
        let start = chunk * self.chunk_len;
        let len = self.chunk_len.min(self.image.len() - start);
        // SAFETY: these bytes lie in the image, which is mapped for as long as this object lives, and nobody writes to it.
        let bytes = unsafe { slice::from_raw_parts(self.image.host_address_of(start), len as usize) };
        self.window.put(start, bytes).map_err(|errno| Error::host("copy a chunk of guest memory", errno))
    }
}
