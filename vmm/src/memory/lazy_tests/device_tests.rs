//! Memory that a device touches.

use super::super::presence::Unavailable;
use super::super::writes::presence;
use super::*;

#[test]
fn a_device_fetches_what_it_touches_itself() {
    let (source, service) = service(LEN);
    let ram = vm(&service, None);
    let there = presence(ram.guest()).unwrap();
    // Bytes, zeros and bytes; nothing of what follows.
    there.ensure(2 * CHUNK + 5, 2 * CHUNK).unwrap();
    let reads = source.reads.load(Ordering::SeqCst);
    assert_eq!((reads, service.filler().touched()), (3, 2));
    // Whoever would answer a fault hangs.
    *lock(&source.hangs.0) = true;
    for at in [2 * CHUNK, 3 * CHUNK, 3 * CHUNK + 7 * PAGE, 4 * CHUNK] {
        assert_eq!(read(&ram, at), word(at), "{at:#x}");
    }
    there.ensure(2 * CHUNK, 3 * CHUNK).unwrap_or_else(|_| panic!("it was there"));
    assert_eq!(source.reads.load(Ordering::SeqCst), reads, "what is there is not asked for again");
    *lock(&source.hangs.0) = false;
    source.hangs.1.notify_all();
    // Given back it is missing again, where it was zeros.
    give_back(&ram, 3 * CHUNK, CHUNK).unwrap();
    there.ensure(3 * CHUNK, CHUNK).unwrap();
    *lock(&source.hangs.0) = true;
    assert_eq!(read(&ram, 3 * CHUNK), 0);
    *lock(&source.hangs.0) = false;
}

#[test]
fn a_damaged_chunk_that_a_device_touches_ends_its_vm_alone_without_a_signal() {
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
fn pages_over_the_base_are_there_and_memory_that_is_whole_is_not_asked_about() {
    let (source, service) = service(LEN);
    let over = pages(&[DAMAGED * 16..DAMAGED * 16 + 9, DAMAGED * 16 + 9..DAMAGED * 16 + 16]);
    let file = Arc::new(fresh(LEN).unwrap());
    let ram = vm(&service, Some(OtherPages { pages: Arc::new(over), file }));
    presence(ram.guest()).unwrap().ensure(DAMAGED * CHUNK, CHUNK).unwrap();
    assert_eq!(source.reads.load(Ordering::SeqCst), 0);
    let whole = GuestRam::reserve(LEN).unwrap();
    Backing::Fresh.map(&whole).unwrap();
    assert!(presence(whole.guest()).is_none());
}
