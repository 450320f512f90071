//! Copies pages of a running guest: the first pass to the destination, later passes to memory until the guest
//! runs on.
//!
//! ```text
//!   first pass        ──> destination   the guest runs; a slow disk delays the capture, never the guest
//!   later passes      ──> memfd         no file system, so no writeback and no throttling of this thread
//!   pause, few pages  ──> log           allocated before: one system call, and no page is allocated
//!   after the pause   log ──> memfd ──> destination
//! ```
//!
//! The memfd holds each page written after the first pass began once: at worst all of guest memory. The
//! kernel charges it to the memory cgroup of this process.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;

use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::files::memfd::fresh;
use crate::memory::page_set::PageSet;
use crate::memory::ram::GuestRam;
use crate::progress::Progress;

/// Bytes moved from memory to the destination at once.
const STEP: u64 = 1 << 20;
/// Bytes of the first pass that are copied at once. Cancelling takes effect after them.
const FIRST_STEP: u64 = 16 << 20;
/// Pages copied between two reads of the clock.
const LOOK: u64 = 256;
/// Pages that fit into the log.
const LOG: u64 = 256;
/// The act, for errors of a copy in memory.
const KEEP: &str = "keep a copy of guest memory";

/// The destination of a capture.
pub(crate) struct CopyTarget<'a> {
    /// An empty file with room for all of the VM's memory.
    pub file: File,
    /// Makes the error of a failed write to the file.
    pub failed: &'a dyn Fn(io::Error) -> Error,
    /// The file's file system, unless the file is a memfd.
    pub disk: Option<&'a dyn SpaceOnDisk>,
}

/// A file system with reserved space.
pub(crate) trait SpaceOnDisk {
    /// Reserves space for the whole capture, before the first copy.
    ///
    /// # Errors
    /// The file system lacks the space.
    fn reserve(&self, ram: &GuestRam, unneeded: &PageSet, pages: &PageSet) -> Result<()>;

    /// Releases `bytes` of the reservation. The caller writes them next.
    fn about_to_write(&self, bytes: u64);
}

/// Copies of a VM's pages, at their places in [`CopyTarget`] and in memory.
pub(crate) struct PageCopies<'a> {
    ram: &'a GuestRam,
    to: CopyTarget<'a>,
    /// Copies in memory, and their pages. Absent if the destination is a memfd itself.
    memory: Option<(File, PageSet)>,
    log: Option<PauseLog>,
}

/// The pages of a pause, one after another in the order of their offsets.
struct PauseLog {
    file: File,
    /// Pages in the log that the memfd has only in older copies.
    pages: PageSet,
}

impl PauseLog {
    /// Makes a log with space for [`LOG`] pages.
    ///
    /// # Errors
    /// The host has no memory or descriptor left.
    fn new(ram: &GuestRam) -> Result<Self> {
        let file = fresh(LOG * PAGE)?;
        let reserve = || rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, LOG * PAGE);
        rustix::io::retry_on_intr(reserve)
            .map_err(|errno| Error::host("reserve memory for copies of guest memory", errno))?;
        Ok(Self { file, pages: PageSet::none(ram.len()) })
    }
}

impl<'a> PageCopies<'a> {
    pub(crate) fn new(ram: &'a GuestRam, to: CopyTarget<'a>) -> Result<Self> {
        let memory = to.disk.map(|_| Ok::<_, Error>((fresh(ram.len())?, PageSet::none(ram.len()))));
        Ok(Self { ram, to, memory: memory.transpose()?, log: None })
    }

    /// Reserves space for the capture, if the destination is on a disk.
    ///
    /// # Errors
    /// The file system lacks the space.
    pub(crate) fn reserve(&self, pages: &PageSet, unneeded: &PageSet) -> Result<()> {
        self.to.disk.map_or(Ok(()), |disk| disk.reserve(self.ram, unneeded, pages))
    }

    /// Copies the first pass to the destination.
    ///
    /// # Errors
    /// The destination cannot be written, or [`Error::Cancelled`].
    pub(crate) fn take_first(&self, pages: &PageSet, progress: &Progress) -> Result<()> {
        for run in pages.page_ranges_up_to(FIRST_STEP) {
            progress.add(run.end - run.start)?;
            if let Some(disk) = self.to.disk {
                disk.about_to_write(run.end - run.start);
            }
            self.ram.copy_to(run, &self.to.file).map_err(self.to.failed)?;
        }
        Ok(())
    }

    /// Allocates the log before a pause uses it.
    ///
    /// # Errors
    /// The host has no memory for it.
    pub(crate) fn before_pause(&mut self) -> Result<()> {
        if self.memory.is_some() && self.log.is_none() {
            self.log = Some(PauseLog::new(self.ram)?);
        }
        Ok(())
    }

    /// Copies pages during a pause: to the log if they fit and it is empty, otherwise as
    /// [`PageCopies::take`].
    ///
    /// # Errors
    /// As [`PageCopies::take`].
    pub(crate) fn take_in_pause(
        &mut self,
        pages: &mut PageSet,
        goes_on: impl Fn(u64) -> bool,
    ) -> Result<bool> {
        match &mut self.log {
            Some(log) if log.pages.is_empty() && pages.len() <= LOG => {
                let copied = self.ram.append_to(pages.page_ranges(), &log.file);
                copied.map_err(|source| Error::host(KEEP, source))?;
                log.pages = std::mem::replace(pages, PageSet::none(self.ram.len()));
                Ok(true)
            }
            _ => self.take(pages, goes_on),
        }
    }

    /// Moves the copies in the log to the memfd. Done apart from a pass, which is timed.
    ///
    /// # Errors
    /// The host has no memory for them.
    pub(crate) fn settle_log(&mut self) -> Result<()> {
        let (Some(log), Some((memory, held))) = (&mut self.log, &mut self.memory) else { return Ok(()) };
        let mut at = 0;
        for run in log.pages.page_ranges() {
            let mut bytes = vec![0; (run.end - run.start) as usize];
            let moved = log.file.read_exact_at(&mut bytes, at);
            moved
                .and_then(|()| memory.write_all_at(&bytes, run.start))
                .map_err(|source| Error::host(KEEP, source))?;
            at += run.end - run.start;
        }
        held.add_all(&log.pages);
        log.pages = PageSet::none(self.ram.len());
        Ok(())
    }

    /// Copies `pages` to memory, and removes copied pages from the set. Stops when `goes_on` returns false
    /// for the number of pages left. Returns whether all were copied.
    ///
    /// # Errors
    /// The host has no memory for them.
    pub(crate) fn take(&mut self, pages: &mut PageSet, goes_on: impl Fn(u64) -> bool) -> Result<bool> {
        self.settle_log()?;
        let in_memory = |source| Error::host(KEEP, source);
        let (file, failed): (_, &dyn Fn(_) -> _) = match &self.memory {
            Some((file, _)) => (file, &in_memory),
            None => (&self.to.file, self.to.failed),
        };
        let mut left = pages.len();
        let mut stopped_at = None;
        for step in pages.page_ranges_up_to(LOOK * PAGE) {
            if !goes_on(left) {
                stopped_at = Some(step.start);
                break;
            }
            self.ram.copy_to(step.clone(), file).map_err(failed)?;
            left -= (step.end - step.start) / PAGE;
        }
        let done = match stopped_at {
            // Building a set of the copied pages would lengthen the pause.
            None => std::mem::replace(pages, PageSet::none(self.ram.len())),
            Some(end) => {
                let mut done = PageSet::none(self.ram.len());
                pages
                    .page_ranges_up_to(LOOK * PAGE)
                    .take_while(|step| step.start < end)
                    .for_each(|step| done.add(step));
                pages.remove_all(&done);
                done
            }
        };
        if let Some((_, held)) = &mut self.memory {
            held.add_all(&done);
        }
        Ok(stopped_at.is_none())
    }

    /// Number of pages whose copies are in memory.
    pub(crate) fn held(&self) -> u64 {
        let Some((_, held)) = &self.memory else { return 0 };
        self.log.as_ref().map_or(held.len(), |log| {
            let mut all = held.clone();
            all.add_all(&log.pages);
            all.len()
        })
    }

    /// Moves the copies in memory to the destination, and returns it.
    ///
    /// # Errors
    /// The destination cannot be written, or [`Error::Cancelled`].
    pub(crate) fn settle(mut self, progress: &Progress) -> Result<File> {
        self.settle_log()?;
        let Self { ram: _, to, memory, log: _ } = self;
        let Some((memory, held)) = memory else { return Ok(to.file) };
        progress.expect(held.len() * PAGE);
        let mut buffer = vec![0; STEP as usize];
        for step in held.page_ranges_up_to(STEP) {
            let bytes = &mut buffer[..(step.end - step.start) as usize];
            memory
                .read_exact_at(bytes, step.start)
                .map_err(|source| Error::host("read a copy of guest memory", source))?;
            if let Some(disk) = to.disk {
                disk.about_to_write(bytes.len() as u64);
            }
            to.file.write_all_at(bytes, step.start).map_err(to.failed)?;
            progress.add(bytes.len() as u64)?;
        }
        Ok(to.file)
    }
}

/// Measures how long an act takes.
pub(crate) fn timed<T>(act: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let done = act();
    (done, start.elapsed())
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::os::unix::fs::MetadataExt;

    use vm_memory::{Bytes, GuestAddress};

    use super::*;
    use crate::memory::backing::Backing;

    const LEN: u64 = 4 << 20;

    #[derive(Default)]
    struct Asked {
        reserved: Cell<u64>,
        announced: RefCell<Vec<u64>>,
    }

    impl SpaceOnDisk for Asked {
        fn reserve(&self, _: &GuestRam, _: &PageSet, pages: &PageSet) -> Result<()> {
            self.reserved.set(pages.len());
            Ok(())
        }

        fn about_to_write(&self, bytes: u64) {
            self.announced.borrow_mut().push(bytes);
        }
    }

    fn ram() -> GuestRam {
        let ram = GuestRam::reserve(LEN).unwrap();
        Backing::Fresh.map(&ram).unwrap();
        ram
    }

    fn pages(ranges: &[(u64, u64)]) -> PageSet {
        let mut pages = PageSet::none(LEN);
        ranges.iter().for_each(|(start, end)| pages.add(start * PAGE..end * PAGE));
        pages
    }

    fn write(ram: &GuestRam, page: u64, word: u64) {
        ram.guest().write_obj(word, GuestAddress(page * PAGE)).unwrap();
    }

    fn failed(source: io::Error) -> Error {
        Error::host("write the destination", source)
    }

    fn word(file: &File, page: u64) -> u64 {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, page * PAGE).unwrap();
        u64::from_le_bytes(bytes)
    }

    #[test]
    fn nothing_but_the_first_pass_reaches_the_destination_before_the_guest_runs_on() {
        let (ram, disk, none) = (ram(), Asked::default(), PageSet::none(LEN));
        let file = fresh(LEN).unwrap();
        let seen = file.try_clone().unwrap();
        let blocks = || seen.metadata().unwrap().blocks() * 512;
        let mut copies =
            PageCopies::new(&ram, CopyTarget { file, failed: &failed, disk: Some(&disk) }).unwrap();
        write(&ram, 1, 1);
        copies.reserve(&pages(&[(0, 2)]), &none).unwrap();
        copies.take_first(&pages(&[(0, 2)]), &Progress::default()).unwrap();
        assert_eq!((disk.reserved.get(), blocks(), word(&seen, 1)), (2, 2 * PAGE, 1));
        write(&ram, 1, 2);
        write(&ram, 700, 3);
        let mut written = pages(&[(1, 2), (400, 900)]);
        assert!(copies.take(&mut written, |_| true).unwrap());
        assert!(written.is_empty());
        write(&ram, 700, 4);
        assert!(copies.take(&mut pages(&[(700, 701)]), |_| true).unwrap());
        assert_eq!((blocks(), copies.held()), (2 * PAGE, 501));
        let file = copies.settle(&Progress::default()).unwrap();
        assert_eq!([0, 1, 700].map(|page| word(&file, page)), [0, 2, 4]);
        assert_eq!(blocks(), 502 * PAGE);
        assert_eq!(disk.announced.borrow().iter().sum::<u64>(), 503 * PAGE, "page 1 is written twice");
    }

    #[test]
    fn copies_that_were_stopped_go_on_where_they_were() {
        let (ram, disk) = (ram(), Asked::default());
        let file = fresh(LEN).unwrap();
        let mut copies =
            PageCopies::new(&ram, CopyTarget { file, failed: &failed, disk: Some(&disk) }).unwrap();
        let mut written = pages(&[(0, 1000)]);
        assert!(!copies.take(&mut written, |left| left > 500).unwrap());
        assert_eq!((written.len(), copies.held()), (488, 512));
        assert!(!written.has(511 * PAGE) && written.has(512 * PAGE));
        assert!(copies.take(&mut written, |_| true).unwrap());
        assert_eq!(copies.held(), 1000);
    }

    #[test]
    fn few_pages_of_a_pause_go_to_the_log_and_give_way_to_later_copies() {
        let (ram, disk) = (ram(), Asked::default());
        let file = fresh(LEN).unwrap();
        let mut copies =
            PageCopies::new(&ram, CopyTarget { file, failed: &failed, disk: Some(&disk) }).unwrap();
        [3, 4, 700].iter().for_each(|page| write(&ram, *page, 1));
        assert!(copies.take(&mut pages(&[(3, 5)]), |_| true).unwrap());
        copies.before_pause().unwrap();
        let memory = copies.memory.as_ref().unwrap().0.try_clone().unwrap();
        [3, 4, 700].iter().for_each(|page| write(&ram, *page, 2));
        let mut written = pages(&[(3, 5), (700, 701)]);
        assert!(copies.take_in_pause(&mut written, |_| true).unwrap());
        assert!(written.is_empty());
        assert_eq!([3, 4, 700].map(|page| word(&memory, page)), [1, 1, 0], "the log has them");
        assert_eq!(copies.held(), 3);
        // The capture gave that pause up: the guest ran on and wrote to one of the pages.
        write(&ram, 4, 3);
        let mut many = pages(&[(4, 5), (100, 100 + LOG)]);
        assert!(copies.take_in_pause(&mut many, |_| true).unwrap());
        assert_eq!(word(&memory, 4), 3, "the log has no room for so many");
        write(&ram, 700, 4);
        assert!(copies.take_in_pause(&mut pages(&[(700, 701)]), |_| true).unwrap());
        assert_eq!(copies.held(), 3 + LOG);
        let file = copies.settle(&Progress::default()).unwrap();
        assert_eq!([3, 4, 700].map(|page| word(&file, page)), [2, 3, 4]);
    }

    #[test]
    fn settled_copies_are_counted_and_cancelled_midway() {
        for (progress, is_cancelled) in [(Progress::default(), false), (Progress::cancelling_at(1), true)] {
            let (ram, disk) = (ram(), Asked::default());
            let file = fresh(LEN).unwrap();
            let mut copies =
                PageCopies::new(&ram, CopyTarget { file, failed: &failed, disk: Some(&disk) }).unwrap();
            assert!(copies.take(&mut pages(&[(0, 600)]), |_| true).unwrap());
            let settled = copies.settle(&progress);
            assert_eq!(matches!(settled, Err(Error::Cancelled)), is_cancelled);
            assert_eq!(progress.total(), 600 * PAGE);
            assert_eq!(progress.done(), if is_cancelled { STEP } else { 600 * PAGE });
        }
    }

    #[test]
    fn copies_into_memory_are_copied_once() {
        let ram = ram();
        write(&ram, 5, 5);
        let file = fresh(LEN).unwrap();
        let mut copies = PageCopies::new(&ram, CopyTarget { file, failed: &failed, disk: None }).unwrap();
        copies.take(&mut pages(&[(5, 6)]), |_| true).unwrap();
        assert_eq!(copies.held(), 0);
        assert_eq!(word(&copies.settle(&Progress::default()).unwrap(), 5), 5);
    }
}
