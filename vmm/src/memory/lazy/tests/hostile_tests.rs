//! VMs that misuse the memfd of a base that they share.

use super::*;

fn punch(base: &std::fs::File, range: std::ops::Range<u64>) {
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(base, hole, range.start, range.end - range.start).unwrap();
}

/// The file position after a search: `SEEK_HOLE` leaves it at the hole that it found.
fn position(service: &Service) -> u64 {
    rustix::fs::seek(service.filler().memfd(), rustix::fs::SeekFrom::Current(0)).unwrap()
}

/// A device's first touch of a page also asks for chunks that are filled.
#[test]
fn look_for_a_filled_chunk_ends_with_the_chunk() {
    let len = DAMAGED * CHUNK;
    let source = || Box::new(SharedSource(Arc::new(Source { len, ..Source::default() })));
    for shared in [false, true] {
        let service =
            if shared { Service::over(fresh(len).unwrap(), source()) } else { Service::new(source()) };
        let service = Arc::new(service.unwrap());
        let ram = vm(&service, None);
        for chunk in [1, 2, 4, 5] {
            assert_eq!(read(&ram, chunk * CHUNK), word(chunk * CHUNK));
        }
        let fill =
            |chunk| service.filler().fill(chunk, &mut service.filler().tools(FillReason::Touched)).unwrap();
        for chunk in [1, 4] {
            rustix::fs::seek(service.filler().memfd(), rustix::fs::SeekFrom::Start(0)).unwrap();
            assert_eq!(fill(chunk), Chunk::Bytes);
            let found = position(&service);
            let most = if shared { (chunk + 1) * CHUNK - PAGE } else { 0 };
            assert!(found <= most, "{found:#x} for chunk {chunk} of a base that is shared: {shared}");
        }
        if !shared {
            continue;
        }
        // The same in a complete base whose chunks the filler has not read.
        service.complete_and_seal().unwrap();
        let memfd = service.filler().memfd().try_clone().unwrap();
        let next = Service::over(memfd, source()).unwrap();
        let fill = |chunk| next.filler().fill(chunk, &mut next.filler().tools(FillReason::Touched)).unwrap();
        rustix::fs::seek(next.filler().memfd(), rustix::fs::SeekFrom::Start(0)).unwrap();
        assert_eq!(fill(1), Chunk::Bytes);
        let found = position(&next);
        assert!(found < 2 * CHUNK, "{found:#x} in a complete base");
        assert_eq!(fill(3), Chunk::Zero);
    }
}

/// Only this process has the base. No other can punch holes in it, so filled chunks need no search.
#[test]
fn hole_cannot_be_punched_in_a_base_of_one_process() {
    let (_, service) = service(LEN);
    let ram = vm(&service, None);
    assert_eq!(read(&ram, CHUNK), word(CHUNK));
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    let memfd = service.filler().memfd();
    assert_eq!(rustix::fs::fallocate(memfd, hole, CHUNK, PAGE), Err(Errno::PERM));
    assert!(memfd.set_len(0).is_err());
    assert_eq!(read(&ram, CHUNK), word(CHUNK));
}

/// A VM that reads a hole in a chunk that counts as filled would fault without end.
#[test]
fn hole_that_is_punched_in_the_base_is_filled_again() {
    let len = DAMAGED * CHUNK;
    let source = Arc::new(Source { len, ..Source::default() });
    // Made as a pager makes it: without a seal against writes.
    let service = Arc::new(Service::over(fresh(len).unwrap(), Box::new(SharedSource(source))).unwrap());
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
    // A snapshot does not take a hole for zeros either.
    punch(service.filler().memfd(), 4 * CHUNK + PAGE..5 * CHUNK);
    service.complete(&Progress::default()).unwrap();
    let base = service.base();
    for at in (0..len).step_by(8) {
        let mut bytes = [0; 8];
        rustix::io::pread(&base, &mut bytes, at).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), word(at), "{at:#x}");
    }
}
