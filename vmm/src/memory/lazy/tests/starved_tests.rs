//! A host without memory for a base, or for the page tables of a VM over it.

use super::super::prefetch::PageRanges;
use super::super::presence::Unavailable;
use super::*;
use crate::memory::lazy::faults::Fetched;
use crate::memory::own_writes::presence;
use crate::memory::range::AddressRange;
use crate::progress::Progress;
use crate::testing::{ScratchDir, apart, refuse_calls};

/// A file in a file system with room for `bytes`.
fn file_with_room(bytes: u64, len: u64) -> Option<std::fs::File> {
    use std::ffi::CString;
    let place = ScratchDir::new();
    let path = CString::new(place.to_str().unwrap()).unwrap();
    let options = CString::new(format!("size={bytes}")).unwrap();
    let tmpfs = c"tmpfs".as_ptr();
    // SAFETY: the strings end in zeros, and the mount is removed below.
    let mounted = unsafe { libc::mount(tmpfs, path.as_ptr(), tmpfs, 0, options.as_ptr().cast()) } == 0;
    mounted.then(|| {
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(place.join("memory"))
            .unwrap();
        file.set_len(len).unwrap();
        // SAFETY: the string ends in a zero. Open descriptors stay valid.
        assert_eq!(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) }, 0);
        file
    })
}

#[test]
fn lack_of_host_memory_is_reported_and_no_page_becomes_zero() {
    let Some(file) = file_with_room(4 * CHUNK, LEN) else {
        return crate::testing::skip("may not mount a file system");
    };
    let source = Arc::new(Source { len: LEN, ..Source::default() });
    let service = Arc::new(Service::over(file, Box::new(SharedSource(source))).unwrap());
    let ram = vm(&service, None);
    let (told, reasons) = mpsc::channel();
    ram.faults().unwrap().when_unreadable(move |why| told.send(why).unwrap());
    let read: Vec<_> =
        (0..LEN / CHUNK).map(|chunk| (chunk * CHUNK, kernel_reads(&ram, chunk * CHUNK))).collect();
    let wrong: Vec<_> = read.iter().filter(|(at, read)| read.is_ok_and(|read| read != word(*at))).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(read.iter().any(|(_, read)| read.is_err()));
    let why = limited("the VM is told", || reasons.recv()).unwrap();
    assert!(why.contains("cannot fill 65536 bytes of guest memory: "), "{why}");
    assert!(why.contains("memory (os error 12)"), "{why}");
    assert!(service.complete(&Progress::default()).is_err());
}

#[test]
fn fault_waits_while_the_host_briefly_lacks_memory() {
    let Some(file) = file_with_room(4 * CHUNK, LEN) else {
        return crate::testing::skip("may not mount a file system");
    };
    let source = Arc::new(Source { len: LEN, ..Source::default() });
    let service = Arc::new(Service::over(file, Box::new(SharedSource(source))).unwrap());
    let ram = vm(&service, None);
    // More chunks than there is room for. One of them waits for the memory that is returned here.
    let chunks = [1, 2, 4, 5, 7, 8].map(|chunk| chunk * CHUNK);
    let found = thread::scope(|scope| {
        let reader = scope.spawn(|| chunks.map(|at| kernel_reads(&ram, at)));
        thread::sleep(Duration::from_millis(100));
        assert!(!reader.is_finished());
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(service.filler().memfd(), hole, CHUNK, 3 * CHUNK).unwrap();
        limited("the reader ends", || reader.join()).unwrap()
    });
    assert_eq!(found, chunks.map(|at| Ok(word(at))));
    assert!(!ram.faults().unwrap().has_failed());
}

#[test]
fn host_that_lacked_memory_once_is_waited_for_again_after_success_or_some_seconds() {
    let (_, service) = service(LEN);
    let filler = service.filler();
    let never = || Err(Errno::NOMEM);
    let in_a_moment = || {
        let mut tries = 0;
        move || {
            tries += 1;
            if tries < 3 { Err(Errno::NOMEM) } else { Ok(()) }
        }
    };
    assert_eq!(filler.patiently(FillReason::Touched, never), Err(Errno::NOMEM));
    filler.patiently(FillReason::Touched, || Ok(())).unwrap();
    assert_eq!(filler.patiently(FillReason::Touched, in_a_moment()), Ok(()));
    assert_eq!(filler.patiently(FillReason::Touched, never), Err(Errno::NOMEM));
    thread::sleep(Duration::from_secs(3));
    assert_eq!(filler.patiently(FillReason::Touched, in_a_moment()), Ok(()));
}

/// A base that another process fills, from a VM's view: no thread of the VM can fetch a chunk.
#[derive(Debug)]
struct Elsewhere(Arc<Service>);

impl FaultHandler for Elsewhere {
    fn base(&self) -> Arc<std::fs::File> {
        self.0.base()
    }

    fn begin(&self, faults: &Arc<Faults>) -> Result<u64> {
        self.0.begin(faults)
    }

    fn end(&self, number: u64, range: AddressRange) {
        self.0.end(number, range);
    }

    fn complete(&self, progress: &Progress) -> Result<()> {
        self.0.complete(progress)
    }

    fn prefetch(&self, runs: &PageRanges) -> Result<()> {
        self.0.prefetch(runs)
    }

    fn fetched(&self, ahead: Option<&PageRanges>) -> Option<Fetched> {
        self.0.fetched(ahead)
    }
}

fn vm_of_elsewhere() -> GuestRam {
    let (_, service) = service(LEN);
    let ram = GuestRam::reserve(LEN).unwrap();
    Backing::Lazy { handler: Arc::new(Elsewhere(service)), pages: None }.map(&ram).unwrap();
    ram
}

#[test]
fn device_over_a_pager_waits_for_memory_that_the_host_lacks_for_a_moment() {
    let ram = vm_of_elsewhere();
    let mut answers = [Errno::NOMEM, Errno::AGAIN, Errno::NOMEM].into_iter();
    let mut asked = Vec::new();
    let fetched = presence(ram.guest()).unwrap().fetch_with(CHUNK..CHUNK + PAGE, |start, len| {
        asked.push((start - ram.host_address_of(0) as u64, len));
        answers.next().map_or(Ok(()), Err)
    });
    assert_eq!((fetched, asked), (Ok(()), vec![(CHUNK, PAGE); 4]));
    assert!(!ram.faults().unwrap().has_failed());
}

#[test]
fn device_over_a_pager_ends_its_vm_if_the_host_lacks_memory_for_longer() {
    let ram = vm_of_elsewhere();
    let (told, reasons) = mpsc::channel();
    ram.faults().unwrap().when_unreadable(move |why| told.send(why).unwrap());
    let mut tries = 0;
    let fetched = presence(ram.guest()).unwrap().fetch_with(CHUNK..CHUNK + PAGE, |_, _| {
        tries += 1;
        Err(Errno::NOMEM)
    });
    assert_eq!(fetched, Err(Unavailable));
    assert!(tries > 5, "{tries} tries");
    let why = limited("the VM is told", || reasons.recv()).unwrap();
    assert!(why.starts_with("cannot fill 4 KiB of guest memory for a device: "), "{why}");
    assert!(why.contains("memory (os error 12)"), "{why}");
}

#[test]
fn kernel_without_memory_for_page_tables_ends_the_vm_of_a_device_over_a_pager() {
    apart(|| {
        let ram = vm_of_elsewhere();
        let there = presence(ram.guest()).unwrap();
        there.ensure(CHUNK, 8).unwrap();
        refuse_calls(&[libc::SYS_madvise], libc::ENOMEM);
        there.ensure(CHUNK, 8).expect("it was there");
        assert_eq!(there.ensure(2 * CHUNK, 8), Err(Unavailable));
        let why = ram.faults().unwrap().failure().unwrap();
        assert!(why.contains("guest memory for a device: ") && why.contains("(os error 12)"), "{why}");
    });
}
