//! Memory that page faults fill, with real page faults.
#![allow(unsafe_code)]

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use vm_memory::{Bytes, GuestAddress};

use super::faults::Faults;
use super::filler::FillReason;
use super::source::{Chunk, ChunkReader, PageSource, TestSource};
use super::userfault::Userfault;
use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::backing::{Backing, map};
use crate::memory::base::OverlayPages;
use crate::memory::dirty::freeze::freeze;
use crate::memory::dirty::populated::private_pages;
use crate::memory::files::data::data_ranges;
use crate::memory::files::memfd::fresh;
use crate::memory::lazy::fault_service::{MOST_THREADS, Service};
use crate::memory::lazy::faults::FaultHandler;
use crate::memory::page_set::PageSet;
use crate::memory::ram::GuestRam;
use crate::memory::reclaim::give_back;
use crate::memory::testing::{Hangs, kernel_reads};
use crate::progress::Progress;
use crate::sync::lock;
use crate::testing::{limited, wait_until};

mod ahead_tests;
mod device_tests;
mod ending_tests;
mod hostile_tests;
mod sealed_tests;
mod starved_tests;

const CHUNK: u64 = 64 << 10;
const LEN: u64 = 4 << 20;
/// Number of a damaged chunk.
const DAMAGED: u64 = 17;

/// Every third chunk is zero. Each word of another is its own address with some bits flipped.
#[derive(Debug, Default)]
struct Source {
    len: u64,
    reads: AtomicU64,
    /// Numbers of the chunks read, in order.
    order: Mutex<Vec<u64>>,
    /// Makes reads hang.
    hangs: Hangs,
}

fn is_zero(at: u64) -> bool {
    (at / CHUNK).is_multiple_of(3)
}

fn word(at: u64) -> u64 {
    if is_zero(at) { 0 } else { at ^ 0x5555_0000_0000_0000 }
}

#[derive(Debug)]
struct SharedSource(Arc<Source>);

impl PageSource for SharedSource {
    fn memory_len(&self) -> u64 {
        self.0.len
    }

    fn chunk_len(&self) -> u64 {
        CHUNK
    }

    fn reader(&self) -> Box<dyn ChunkReader + '_> {
        Box::new(Reader(&self.0))
    }
}

struct Reader<'s>(&'s Source);

impl ChunkReader for Reader<'_> {
    fn read(&mut self, chunk: u64, into: &mut [u8]) -> Result<Chunk> {
        self.0.hangs.pass();
        self.0.reads.fetch_add(1, Ordering::SeqCst);
        lock(&self.0.order).push(chunk);
        if is_zero(chunk * CHUNK) {
            return Ok(Chunk::Zero);
        }
        for (at, bytes) in (chunk * CHUNK..).step_by(8).zip(into.chunks_mut(8)) {
            bytes.copy_from_slice(&word(at).to_le_bytes());
        }
        if chunk == DAMAGED {
            return Err(Error::snapshot("/the/pack", format!("is damaged in chunk {chunk}")));
        }
        Ok(Chunk::Bytes)
    }
}

fn service(len: u64) -> (Arc<Source>, Arc<Service>) {
    let source = Arc::new(Source { len, ..Source::default() });
    let service = Service::new(Box::new(SharedSource(Arc::clone(&source)))).unwrap();
    (source, Arc::new(service))
}

fn vm(service: &Arc<Service>, pages: Option<OverlayPages>) -> GuestRam {
    let ram = GuestRam::reserve(service.filler().len()).unwrap();
    Backing::Lazy { handler: Arc::clone(service) as Arc<dyn FaultHandler>, pages }.map(&ram).unwrap();
    ram
}

fn read(ram: &GuestRam, at: u64) -> u64 {
    ram.guest().read_obj(GuestAddress(at)).unwrap()
}

fn write(ram: &GuestRam, at: u64, value: u64) {
    ram.guest().write_obj(value, GuestAddress(at)).unwrap();
}

fn pages(ranges: &[std::ops::Range<u64>]) -> PageSet {
    let mut set = PageSet::none(LEN);
    ranges.iter().for_each(|range| set.add(range.start * PAGE..range.end * PAGE));
    set
}

/// All pages outside the damaged chunk.
fn sound() -> impl DoubleEndedIterator<Item = u64> {
    (0..LEN / PAGE).map(|page| page * PAGE).filter(|at| at / CHUNK != DAMAGED)
}

#[test]
fn pages_equal_the_source_and_are_fetched_once() {
    let (source, service) = service(LEN);
    let vms = [vm(&service, None), vm(&service, None), vm(&service, None)];
    thread::scope(|scope| {
        for ram in &vms {
            scope.spawn(move || {
                sound().rev().for_each(|at| assert_eq!(read(ram, at + 8), word(at + 8), "{at:#x}"))
            });
            scope.spawn(move || sound().for_each(|at| assert_eq!(read(ram, at), word(at), "{at:#x}")));
        }
    });
    let stored = (0..LEN / CHUNK).filter(|chunk| !is_zero(chunk * CHUNK) && *chunk != DAMAGED).count() as u64;
    assert_eq!(service.filler().decoded(), stored);
    assert!(source.reads.load(Ordering::SeqCst) >= stored);
    let blocks = service.base().metadata().unwrap().blocks() * 512;
    assert_eq!(blocks, stored * CHUNK, "zeros take no memory");
    // A VM's writes stay its own.
    for at in [0, CHUNK] {
        write(&vms[0], at, 7);
        assert_eq!([0, 1, 2].map(|vm| read(&vms[vm], at)), [7, word(at), word(at)]);
    }
    assert_eq!(read(&vm(&service, None), CHUNK), word(CHUNK));
}

#[test]
fn first_access_to_a_page_may_be_a_write() {
    let (_, service) = service(LEN);
    let ram = vm(&service, None);
    for at in sound() {
        write(&ram, at + 16, 9);
        assert_eq!((read(&ram, at), read(&ram, at + 16)), (word(at), 9));
    }
    let other = vm(&service, None);
    sound().for_each(|at| assert_eq!(read(&other, at + 16), word(at + 16)));
}

#[test]
fn memory_above_3_gib_is_at_its_offset() {
    let (_, service) = service(5 << 30);
    let ram = vm(&service, None);
    for (gpa, offset) in
        [(0, 0), ((3 << 30) - 8, (3 << 30) - 8), (4 << 30, 3 << 30), ((6 << 30) - 8, (5 << 30) - 8)]
    {
        assert_eq!(read(&ram, gpa), word(offset), "{gpa:#x}");
    }
}

#[test]
fn returned_page_shows_the_source_again() {
    let (_, service) = service(LEN);
    let ram = vm(&service, None);
    for at in [0, CHUNK, 4 * CHUNK] {
        if at < 4 * CHUNK {
            write(&ram, at, 1);
        }
        give_back(&ram, at, CHUNK).unwrap();
        assert_eq!([0, PAGE].map(|page| read(&ram, at + page)), [word(at), word(at + PAGE)], "{at:#x}");
    }
    // Several threads return all pages while others read.
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20 {
                give_back(&ram, 0, LEN).unwrap();
            }
        });
        for _ in 0..10 {
            sound().for_each(|at| assert_eq!(read(&ram, at), word(at), "{at:#x}"));
        }
    });
}

#[test]
fn overlay_pages_are_present_and_their_chunks_are_not_fetched() {
    let (source, service) = service(LEN);
    let copied = pages(&[3..5, 15..17, 100..101]);
    let mapped = pages(&[40..70, 120..200]);
    let all = copied.clone().and(&mapped);
    let file = fresh(LEN).unwrap();
    for at in all.page_ranges().flat_map(|run| run.step_by(8)) {
        rustix::io::pwrite(&file, &(!at).to_le_bytes(), at).unwrap();
    }
    let ram = vm(&service, Some(OverlayPages { pages: Arc::new(all.clone()), file: Arc::new(file) }));
    for at in all.page_ranges().flat_map(|run| run.step_by(PAGE as usize)) {
        assert_eq!(read(&ram, at), !at, "{at:#x}");
    }
    assert_eq!(source.reads.load(Ordering::SeqCst), 0);
    for at in sound().filter(|at| !all.has(*at)) {
        assert_eq!(read(&ram, at), word(at), "{at:#x}");
    }
    let clean = vm(&service, None);
    sound().for_each(|at| assert_eq!(read(&clean, at), word(at), "{at:#x}"));
    assert_eq!(private_pages(&ram).unwrap(), all);
}

/// Completes the base without the damaged chunk.
fn whole(service: &Service) -> Result<()> {
    (0..LEN / CHUNK).filter(|chunk| *chunk != DAMAGED).try_for_each(|chunk| {
        service.filler().fill(chunk, &mut service.filler().tools(FillReason::All)).map(drop)
    })
}

#[test]
fn base_is_complete_after_a_freeze() {
    // The memory ends before the damaged chunk.
    let len = DAMAGED * CHUNK;
    let (source, service) = service(len);
    let ram = vm(&service, None);
    assert_eq!(read(&ram, CHUNK), word(CHUNK));
    write(&ram, 0, 5);
    write(&ram, 2 * CHUNK, 6);
    read(&ram, 3 * CHUNK + 5 * PAGE); // zeros
    freeze(&ram, &Progress::default()).unwrap();
    let base = ram.base().file;
    for at in (0..len).step_by(8) {
        let mut bytes = [0; 8];
        rustix::io::pread(&base, &mut bytes, at).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), word(at), "{at:#x}");
    }
    let holes_are_zero =
        data_ranges(&base, len).unwrap().iter().all(|data| data.clone().all(|at| !is_zero(at)));
    assert!(holes_are_zero);
    assert_eq!(
        private_pages(&ram).unwrap().page_ranges().collect::<Vec<_>>(),
        [0..PAGE, 2 * CHUNK..2 * CHUNK + PAGE]
    );
    // A second freeze fetches nothing, and the base refuses writers.
    let reads = source.reads.load(Ordering::SeqCst);
    service.complete(&Progress::default()).unwrap();
    assert!(
        source.reads.load(Ordering::SeqCst) <= reads + len / CHUNK / 3 + 1,
        "zeros alone are asked for again"
    );
    assert!(rustix::io::pwrite(&base, b"x", 0).is_err());
    assert_eq!(rustix::io::pwrite(service.filler().memfd(), b"x", 0), Err(Errno::PERM));
    // A mapping without the service has all pages.
    let child = GuestRam::reserve(len).unwrap();
    Backing::Private { base, pages: None }.map(&child).unwrap();
    drop((ram, service));
    (0..len).step_by(PAGE as usize).for_each(|at| assert_eq!(read(&child, at), word(at), "{at:#x}"));
}

#[test]
fn freeze_over_a_damaged_chunk_fails_and_the_vm_continues() {
    let (_, service) = service(LEN);
    let ram = vm(&service, None);
    let error = crate::error::report(&freeze(&ram, &Progress::default()).unwrap_err());
    assert!(error.contains("/the/pack: is damaged in chunk 17"), "{error}");
    sound().for_each(|at| assert_eq!(read(&ram, at), word(at)));
    assert!(!ram.faults().unwrap().has_failed());
    whole(&service).unwrap();
}

#[test]
fn completion_counts_missing_chunks_and_is_cancelled_midway() {
    let len = 16 * CHUNK;
    let (source, service) = service(len);
    let cancelled = Progress::cancelling_at(1);
    assert!(matches!(service.complete(&cancelled), Err(Error::Cancelled)));
    let cores = std::thread::available_parallelism().unwrap().get() as u64;
    assert!(source.reads.load(Ordering::SeqCst) <= cores.min(16));
    let progress = Progress::default();
    service.complete(&progress).unwrap();
    assert_eq!((progress.done(), cancelled.total()), (progress.total(), len));
    assert!((1..=len).contains(&progress.total()), "{progress:?}");
}

#[test]
fn unreadable_chunk_is_reported_and_never_seen() {
    let (_, service) = service(LEN);
    let (ram, other) = (vm(&service, None), vm(&service, None));
    let (told, reasons) = mpsc::channel();
    ram.faults().unwrap().when_unreadable(move |why| told.send(why).unwrap());
    let waiting = (0..4).map(|page| {
        let ram = ram.clone();
        thread::spawn(move || kernel_reads(&ram, DAMAGED * CHUNK + page * PAGE))
    });
    for read in waiting.collect::<Vec<_>>() {
        let read = limited("the read ends", || read.join()).unwrap();
        assert!(matches!(read, Err(Errno::FAULT)), "{read:?}");
    }
    let why = limited("the VM is told", || reasons.recv()).unwrap();
    assert!(why.contains("/the/pack: is damaged in chunk 17"), "{why}");
    assert!(super::faults::unreadable_memory().is_some());
    // Again, and through other calls. All other pages are available.
    assert!(kernel_reads(&ram, DAMAGED * CHUNK).is_err() && kernel_reads(&other, DAMAGED * CHUNK).is_err());
    sound().for_each(|at| assert_eq!(read(&ram, at), word(at)));
    let (told, late) = mpsc::channel();
    ram.faults().unwrap().when_unreadable(move |why| told.send(why).unwrap());
    assert!(
        limited("who asks late is told", || late.recv()).unwrap().contains("chunk 17"),
        "who asks late is told at once"
    );
}

#[test]
fn fault_on_a_hanging_source_ends_after_its_limit() {
    let (source, service) = service(LEN);
    let ram = vm(&service, None);
    source.hangs.begin();
    let waiting: Vec<_> = [CHUNK, 2 * CHUNK, 2 * CHUNK + PAGE]
        .map(|at| {
            let ram = ram.clone();
            thread::spawn(move || kernel_reads(&ram, at))
        })
        .into();
    wait_until("the reader hangs", || source.hangs.seen());
    let faults = ram.faults().unwrap();
    drop(faults.let_go_after(Duration::from_secs(600), "too early").unwrap());
    assert!(!faults.has_failed());
    let let_go = faults.let_go_after(Duration::from_millis(1), "waited too long").unwrap();
    waiting.into_iter().for_each(|read| assert!(limited("the read ends", || read.join()).unwrap().is_err()));
    drop(let_go);
    assert!(faults.has_failed());
    source.hangs.end();
}

/// The second way to refuse a page, which a VM takes if the mapping cannot be split.
#[test]
fn poisoned_page_is_never_seen() {
    let (_, service) = service(LEN);
    let ram = vm(&service, None);
    let start = ram.host_address_of(0) as u64;
    match ram.faults().unwrap().userfault().poison(start + CHUNK, CHUNK) {
        Err(Errno::INVAL) => return crate::testing::skip("UFFDIO_POISON needs Linux 6.6"),
        poisoned => poisoned.unwrap(),
    }
    for at in [CHUNK, 2 * CHUNK - PAGE] {
        let read = kernel_reads(&ram, at);
        assert!(matches!(read, Err(Errno::FAULT | Errno::HWPOISON)), "{read:?}");
    }
    for at in [CHUNK - PAGE, 2 * CHUNK] {
        assert_eq!(read(&ram, at), word(at));
    }
}

#[test]
fn fault_message_that_was_read_and_forgotten_comes_again() {
    let (_, service) = service(LEN);
    // Registered with a userfaultfd that is not served.
    let ram = GuestRam::reserve(LEN).unwrap();
    map(&ram, 0..LEN, &service.base(), MapFlags::PRIVATE).unwrap();
    let userfault = Arc::new(Userfault::new().unwrap());
    userfault.register(ram.host_address_of(0) as u64, LEN).unwrap();
    thread::scope(|scope| {
        let reader = scope.spawn(|| read(&ram, CHUNK));
        while userfault.read(|_| ()).unwrap() == 0 {
            thread::yield_now();
        }
        // The pager that had read the message died. The next pager wakes all faults.
        let number = service
            .add(crate::memory::lazy::served_vm::ServedVm::new(
                Arc::clone(&userfault),
                ram.host_address_of(0) as u64,
                Box::new(|range, error| panic!("{range:?}: {error}")),
            ))
            .unwrap();
        userfault.wake(ram.host_address_of(0) as u64, LEN).unwrap();
        assert_eq!(limited("the reader ends", || reader.join()).unwrap(), word(CHUNK));
        service.remove(number);
    });
    drop(ram);
}

/// The design relies on this: the kernel answers with zeros once the last descriptor is closed, and not
/// before.
#[test]
fn closed_userfaultfd_gives_zeros_so_each_vm_keeps_its_own() {
    let memfd = fresh(LEN).unwrap();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let len = LEN as usize;
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing one.
    let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::PRIVATE, &memfd, 0) }
        .unwrap() as u64;
    let userfault = Userfault::new().unwrap();
    userfault.register(start, LEN).unwrap();
    let copy = rustix::io::dup(&userfault).unwrap();
    let (told, seen) = mpsc::channel();
    thread::spawn(move || {
        // SAFETY: the mapping is never removed.
        told.send(unsafe { (start as *const u64).read_volatile() }).unwrap();
    });
    wait_until("the fault is told", || userfault.read(|_| ()).unwrap() != 0);
    // The fault still waits after the pager's descriptor is closed.
    drop(copy);
    let waited = seen.recv_timeout(Duration::from_millis(100));
    assert!(waited.is_err(), "{waited:?}");
    drop(userfault);
    assert_eq!(
        limited("the fault ends", || seen.recv()).unwrap(),
        0,
        "zeros in place of data: this must never happen to a VM"
    );

    // A VM keeps its own descriptor as long as its memory is mapped.
    let (_, service) = service(LEN);
    let ram = vm(&service, None);
    let guest = ram.guest().clone();
    let userfault = Arc::downgrade(ram.faults().unwrap().userfault());
    drop(service);
    assert!(userfault.upgrade().is_some());
    drop(ram);
    assert!(userfault.upgrade().is_none());
    drop(guest);
}
