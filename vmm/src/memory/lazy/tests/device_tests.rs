//! Devices that touch memory which page faults fill.

use std::sync::OnceLock;

use super::super::presence::Unavailable;
use super::*;
use crate::memory::dirty::reset::reset;
use crate::memory::own_writes::presence;

type OnRead = Box<dyn Fn(u64) + Send + Sync>;

/// Memory of zeros. Calls the hook with each chunk that is read.
fn zeros(hook: &Arc<OnceLock<OnRead>>) -> Box<dyn PageSource> {
    let hook = Arc::clone(hook);
    let read = move |chunk: u64, _: &mut [u8]| {
        hook.get().into_iter().for_each(|hook| hook(chunk));
        Ok(Chunk::Zero)
    };
    Box::new(TestSource { len: LEN, chunk_len: CHUNK, read })
}

#[test]
fn device_fetches_its_chunks_itself() {
    let (source, service) = service(LEN);
    let ram = vm(&service, None);
    let there = presence(ram.guest()).unwrap();
    // Chunks with bytes, with zeros and with bytes, and none after them.
    there.ensure(2 * CHUNK + 5, 2 * CHUNK).unwrap();
    let reads = source.reads.load(Ordering::SeqCst);
    assert_eq!((reads, service.filler().touched()), (3, 2));
    // The thread that answers faults hangs.
    source.hangs.begin();
    for at in [2 * CHUNK, 3 * CHUNK, 3 * CHUNK + 7 * PAGE, 4 * CHUNK] {
        assert_eq!(read(&ram, at), word(at), "{at:#x}");
    }
    there.ensure(2 * CHUNK, 3 * CHUNK).unwrap_or_else(|_| panic!("it was there"));
    assert_eq!(source.reads.load(Ordering::SeqCst), reads, "what is there is not asked for again");
    source.hangs.end();
    // A returned page of zeros is missing again.
    give_back(&ram, 3 * CHUNK, CHUNK).unwrap();
    there.ensure(3 * CHUNK, CHUNK).unwrap();
    source.hangs.begin();
    assert_eq!(read(&ram, 3 * CHUNK), 0);
    source.hangs.end_for_others();
}

#[test]
fn damaged_chunk_touched_by_a_device_ends_only_its_vm_and_without_a_signal() {
    let (_, service) = service(LEN);
    let (ram, other) = (vm(&service, None), vm(&service, None));
    let (told, reasons) = mpsc::channel();
    ram.faults().unwrap().when_unreadable(move |why| told.send(why).unwrap());
    let there = presence(ram.guest()).unwrap();
    assert_eq!(there.ensure(DAMAGED * CHUNK - 8, 16), Err(Unavailable));
    assert!(limited("the VM is told", || reasons.recv()).unwrap().contains("is damaged in chunk 17"));
    assert_eq!(there.ensure(20 * CHUNK, 16), Err(Unavailable), "the VM ends");
    assert!(!other.faults().unwrap().has_failed());
    presence(other.guest()).unwrap().ensure(20 * CHUNK, 16).unwrap();
}

#[test]
fn overlay_pages_and_complete_memory_need_no_fetch() {
    let (source, service) = service(LEN);
    let over = pages(&[DAMAGED * 16..DAMAGED * 16 + 9, DAMAGED * 16 + 9..DAMAGED * 16 + 16]);
    let file = Arc::new(fresh(LEN).unwrap());
    let ram = vm(&service, Some(OverlayPages { pages: Arc::new(over), file }));
    presence(ram.guest()).unwrap().ensure(DAMAGED * CHUNK, CHUNK).unwrap();
    assert_eq!(source.reads.load(Ordering::SeqCst), 0);
    let whole = GuestRam::reserve(LEN).unwrap();
    Backing::Fresh.map(&whole).unwrap();
    assert!(presence(whole.guest()).is_none());
}

#[test]
fn refused_chunk_keeps_its_pages_of_a_diff_for_devices() {
    let (_, service) = service(LEN);
    // A range that is mapped and one that is copied.
    let over = pages(&[DAMAGED * 16 - 12..DAMAGED * 16 + 4, DAMAGED * 16 + 6..DAMAGED * 16 + 7]);
    let file = fresh(LEN).unwrap();
    for at in over.page_ranges().flat_map(|run| run.step_by(PAGE as usize)) {
        rustix::io::pwrite(&file, &(!at).to_le_bytes(), at).unwrap();
    }
    let ram = vm(&service, Some(OverlayPages { pages: Arc::new(over.clone()), file: Arc::new(file) }));
    let there = presence(ram.guest()).unwrap();
    let chunk = (DAMAGED * CHUNK..(DAMAGED + 1) * CHUNK).step_by(PAGE as usize);
    let (of_diff, of_base): (Vec<_>, Vec<_>) = chunk.partition(|at| over.has(*at));
    of_diff.iter().for_each(|at| there.ensure(*at, 8).unwrap());
    // Reads as a vCPU does.
    of_base.iter().for_each(|at| assert!(kernel_reads(&ram, *at).is_err(), "{at:#x}"));
    for at in of_diff {
        assert_eq!(kernel_reads(&ram, at), Ok(!at), "{at:#x}");
        assert_eq!(there.ensure(at, 8), Err(Unavailable), "the VM ends");
    }
}

/// A guest may return a page that a device is using. The device's thread must not get a signal.
#[test]
fn page_of_a_diff_that_was_given_back_is_zero_if_its_chunk_is_damaged() {
    let (_, service) = service(LEN);
    let (at, beside) = (DAMAGED * CHUNK + 6 * PAGE, DAMAGED * CHUNK + 7 * PAGE);
    let mut over = PageSet::none(LEN);
    over.add(at..at + PAGE);
    let file = fresh(LEN).unwrap();
    rustix::io::pwrite(&file, &(!at).to_le_bytes(), at).unwrap();
    let ram = vm(&service, Some(OverlayPages { pages: Arc::new(over), file: Arc::new(file) }));
    let there = presence(ram.guest()).unwrap();
    there.ensure(at, PAGE).unwrap();
    give_back(&ram, at, PAGE).unwrap();
    assert_eq!(kernel_reads(&ram, at), Ok(0));
    assert_eq!(there.ensure(at, PAGE), Err(Unavailable), "the VM ends");
    assert!(kernel_reads(&ram, beside).is_err());
    // The guest returns it once more before it has ended.
    give_back(&ram, at, PAGE).unwrap();
    assert_eq!(kernel_reads(&ram, at), Ok(0));
}

/// A rewind restores the base's content. A damaged chunk has none, and a page of zeros would be wrong.
#[test]
fn page_of_a_damaged_chunk_that_a_rewind_put_back_is_refused() {
    let at = DAMAGED * CHUNK + 6 * PAGE;
    let mut changed = PageSet::none(LEN);
    changed.add(at..at + PAGE);
    for is_given_back in [false, true] {
        let (_, service) = service(LEN);
        let ram = vm(&service, None);
        if is_given_back {
            give_back(&ram, at, PAGE).unwrap();
        }
        reset(&ram, &changed, None).unwrap();
        assert!(kernel_reads(&ram, at).is_err(), "given back before: {is_given_back}");
        assert!(ram.faults().unwrap().has_failed());
    }
    // A guest that returns the page after a rewind loses no content.
    let (_, service) = service(LEN);
    let ram = vm(&service, None);
    reset(&ram, &changed, None).unwrap();
    give_back(&ram, at, PAGE).unwrap();
    assert_eq!(kernel_reads(&ram, at), Ok(0));
}

/// The kernel maps no zero pages for a range that lies in two mappings.
#[test]
fn pages_returned_on_both_sides_of_a_mapped_range_are_fetched() {
    let (_, service) = service(LEN);
    let first = DAMAGED * 16 + 4;
    let mut over = PageSet::none(LEN);
    over.add(first * PAGE..(first + 16) * PAGE);
    let file = fresh(LEN).unwrap();
    for at in over.page_ranges().flat_map(|run| run.step_by(PAGE as usize)) {
        rustix::io::pwrite(&file, &(!at).to_le_bytes(), at).unwrap();
    }
    let ram = vm(&service, Some(OverlayPages { pages: Arc::new(over), file: Arc::new(file) }));
    let at = (first - 1) * PAGE;
    give_back(&ram, at, 2 * PAGE).unwrap();
    assert_eq!(limited("the page of the base is had", || kernel_reads(&ram, at)), Ok(0));
    assert_eq!(kernel_reads(&ram, at + PAGE), Ok(!(at + PAGE)));
}

#[test]
fn page_returned_during_a_fetch_is_fetched_again() {
    let hook = Arc::new(OnceLock::new());
    let service = Arc::new(Service::new(zeros(&hook)).unwrap());
    let ram = vm(&service, None);
    let reads = Arc::new(AtomicU64::new(0));
    let (count, balloon) = (Arc::clone(&reads), Mutex::new(Some(ram.clone())));
    let on_read: OnRead = Box::new(move |chunk| {
        count.fetch_add(1, Ordering::SeqCst);
        if chunk == 1
            && let Some(ram) = lock(&balloon).take()
        {
            give_back(&ram, 0, CHUNK).unwrap();
        }
    });
    assert!(hook.set(on_read).is_ok());
    let there = presence(ram.guest()).unwrap();
    there.ensure(0, 2 * CHUNK).unwrap();
    let before = reads.load(Ordering::SeqCst);
    there.ensure(0, 8).unwrap();
    assert_eq!(kernel_reads(&ram, 0), Ok(0));
    assert_eq!(reads.load(Ordering::SeqCst), before, "the first chunk was missing when a device touched it");
}
