//! Reading ahead, beside real page faults.

use super::*;
use crate::memory::dirty::populated::mapped_pages;
use crate::memory::lazy::prefetch::{PageRanges, PrefetchProgress, Reading};
use crate::memory::prefault::populate;

fn wait_over(now: impl Fn() -> Reading) -> Reading {
    wait_until("memory is read ahead", || now().is_over);
    now()
}

fn of_service(service: &Service, runs: &PageRanges) -> Reading {
    wait_over(|| service.fetched(Some(runs)).unwrap().prefetch.unwrap())
}

fn of(progress: &PrefetchProgress) -> Reading {
    wait_over(|| progress.now())
}

/// Numbers of the chunks fetched ahead, and the number of chunks fetched by a touch. Each chunk counts once.
fn fetched(service: &Service) -> (Vec<u64>, u64) {
    let fetched = service.fetched(None).unwrap();
    assert_eq!(fetched.ahead.len() as u64 + fetched.touched, service.filler().decoded());
    (fetched.ahead.iter().map(|range| range.start / CHUNK).collect(), fetched.touched)
}

#[test]
fn pages_read_ahead_are_present_before_the_first_touch() {
    let (source, service) = service(LEN);
    let ram = vm(&service, None);
    // Chunks 40 (a part), 41, 42 (zero), and 4, 5.
    let runs = PageRanges::from([40 * CHUNK + 3 * PAGE..43 * CHUNK, 5 * CHUNK - PAGE..6 * CHUNK]);
    service.prefetch(&runs).unwrap();
    service.prefetch(&runs).unwrap();
    assert_eq!(of_service(&service, &runs), Reading { pages: 62, read: 62, is_over: true });
    assert_eq!(fetched(&service), (vec![4, 5, 40, 41], 0));
    assert_eq!(mapped_pages(&ram).unwrap().len(), 0, "in the base, and in no page table");
    let reads = source.reads.load(Ordering::SeqCst);
    for at in [40 * CHUNK, 41 * CHUNK, 4 * CHUNK, 6 * CHUNK - PAGE] {
        assert_eq!(read(&ram, at), word(at), "{at:#x}");
    }
    assert_eq!(source.reads.load(Ordering::SeqCst), reads);
    assert_eq!(read(&ram, CHUNK), word(CHUNK));
    assert_eq!(fetched(&service), (vec![4, 5, 40, 41], 1));
    let mapped = mapped_pages(&ram).unwrap();
    assert!(mapped.has(40 * CHUNK) && mapped.has(CHUNK) && !mapped.has(2 * CHUNK));
    // A damaged chunk ends reading ahead. The first touch reports the damage.
    let damaged = PageRanges::from([DAMAGED * CHUNK..(DAMAGED + 1) * CHUNK, 50 * CHUNK..51 * CHUNK]);
    service.prefetch(&damaged).unwrap();
    assert_eq!(of_service(&service, &damaged).read, 0);
    assert_eq!((fetched(&service).1, read(&ram, 50 * CHUNK)), (1, word(50 * CHUNK)));
}

/// A guest first needs the pages that it touched first.
#[test]
fn pages_are_read_ahead_in_the_order_of_their_list() {
    let (source, service) = service(LEN);
    let runs = PageRanges::from([
        40 * CHUNK..42 * CHUNK,
        4 * CHUNK..6 * CHUNK,
        61 * CHUNK..62 * CHUNK,
        CHUNK..2 * CHUNK,
    ]);
    service.prefetch(&runs).unwrap();
    of_service(&service, &runs);
    assert_eq!(*lock(&source.order), [40, 41, 4, 5, 61, 1]);
}

#[test]
fn chunk_fetched_by_two_threads_is_counted_once() {
    for _ in 0..20 {
        let (_, service) = service(DAMAGED * CHUNK);
        let vms = [vm(&service, None), vm(&service, None)];
        let runs: Vec<_> = (0..DAMAGED).rev().map(|chunk| chunk * CHUNK..(chunk + 1) * CHUNK).collect();
        let runs = PageRanges::from(runs);
        service.prefetch(&runs).unwrap();
        thread::scope(|scope| {
            for ram in &vms {
                scope.spawn(move || {
                    for at in sound().filter(|at| *at < DAMAGED * CHUNK).rev() {
                        assert_eq!(read(ram, at), word(at), "{at:#x}");
                    }
                });
            }
        });
        of_service(&service, &runs);
        let stored = (0..DAMAGED).filter(|chunk| !is_zero(chunk * CHUNK)).count() as u64;
        let (ahead, touched) = fetched(&service);
        assert_eq!(ahead.len() as u64 + touched, stored);
    }
}

#[test]
fn fault_does_not_wait_for_reading_ahead() {
    let (source, service) = service(LEN);
    let ram = vm(&service, None);
    assert_eq!(read(&ram, CHUNK), word(CHUNK));
    // Reading ahead hangs in the source. Present and zero chunks need no read.
    source.hangs.begin();
    let runs = PageRanges::from([5 * CHUNK..6 * CHUNK, 4 * CHUNK..5 * CHUNK]);
    service.prefetch(&runs).unwrap();
    wait_until("the reader hangs", || source.hangs.seen());
    source.hangs.end_for_others();
    assert_eq!(read(&ram, 8 * CHUNK), word(8 * CHUNK));
    assert_eq!(read(&vm(&service, None), CHUNK + PAGE), word(CHUNK + PAGE));
    source.hangs.end();
    assert_eq!(of_service(&service, &runs).read, 32);
}

#[test]
fn raw_memory_is_populated_and_kept_until_that_ends() {
    let file = fresh(LEN).unwrap();
    for at in (0..LEN).step_by(PAGE as usize) {
        rustix::io::pwrite(&file, &word(at).to_le_bytes(), at).unwrap();
    }
    let ram = GuestRam::reserve(LEN).unwrap();
    Backing::Private { base: Arc::new(file), pages: None }.map(&ram).unwrap();
    let runs = PageRanges::from([LEN - PAGE..LEN, 16 * PAGE..200 * PAGE]);
    assert_eq!(of(&populate(&ram, &runs).unwrap()).read, 185);
    let mut missing = pages(&[16..200, LEN / PAGE - 1..LEN / PAGE]);
    let mapped = mapped_pages(&ram).unwrap();
    missing.remove_all(&mapped);
    // The kernel also maps some pages around each, but not all.
    assert!(missing.is_empty() && !mapped.has(LEN / 2));
    assert!(private_pages(&ram).unwrap().is_empty(), "nothing was copied");
    assert_eq!(read(&ram, 20 * PAGE), word(20 * PAGE));
    // The memory may be dropped by then.
    let progress = populate(&ram, &runs).unwrap();
    drop(ram);
    assert_eq!(of(&progress).read, 185);
}

#[test]
fn lists_of_two_diffs_over_one_base_are_both_read_to_their_ends() {
    let (source, service) = service(DAMAGED * CHUNK);
    let lists = [
        PageRanges::from([CHUNK..3 * CHUNK, 7 * CHUNK..9 * CHUNK]),
        PageRanges::from([4 * CHUNK..5 * CHUNK, 5 * CHUNK..6 * CHUNK]),
    ];
    source.hangs.begin();
    for runs in lists.iter().chain(&lists) {
        service.prefetch(runs).unwrap();
    }
    source.hangs.end();
    for (runs, pages) in lists.iter().zip([64, 32]) {
        assert_eq!(of_service(&service, runs), Reading { pages, read: pages, is_over: true });
    }
    assert_eq!(fetched(&service), (vec![1, 2, 4, 5, 7, 8], 0));
}
