//! VMs that have the memfd of a base that they share and do to it what they may.

use super::*;

fn punch(base: &std::fs::File, range: std::ops::Range<u64>) {
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(base, hole, range.start, range.end - range.start).unwrap();
}

/// A VM that reads a hole in a chunk that its filler takes for filled would fault for ever.
#[test]
fn hole_that_is_punched_in_the_base_is_filled_again() {
    let len = DAMAGED * CHUNK;
    let source = Arc::new(Source { len, ..Source::default() });
    // As a pager makes it: not sealed against writes.
    let service = Arc::new(Service::over(fresh(len).unwrap(), Box::new(Shared(source))).unwrap());
    let (ram, other) = (vm(&service, None), vm(&service, None));
    let chunk = |at: u64| at..at + CHUNK;
    for at in [CHUNK, 2 * CHUNK, 4 * CHUNK] {
        assert_eq!(read(&ram, at), word(at));
    }
    punch(service.filler().memfd(), chunk(CHUNK));
    punch(service.filler().memfd(), 2 * CHUNK + PAGE..2 * CHUNK + 2 * PAGE);
    for at in [CHUNK, CHUNK + PAGE, 2 * CHUNK + PAGE] {
        let found = [&ram, &other].map(|ram| limited("the fault is answered", || kernel_reads(ram, at)));
        assert_eq!(found, [Ok(word(at)); 2], "{at:#x}");
    }
    // Nor does a snapshot take a hole for zeros.
    punch(service.filler().memfd(), 4 * CHUNK + PAGE..5 * CHUNK);
    service.complete().unwrap();
    let base = service.base();
    for at in (0..len).step_by(8) {
        let mut bytes = [0; 8];
        rustix::io::pread(&base, &mut bytes, at).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), word(at), "{at:#x}");
    }
}
