//! A complete, sealed base. Its filler learns a chunk's kind from the file alone.

use super::*;

/// Reads guest memory as the kernel does, within a limit.
fn limited_read(ram: &GuestRam, at: u64) -> rustix::io::Result<u64> {
    let (told, found) = mpsc::channel();
    let ram = ram.clone();
    thread::spawn(move || told.send(kernel_reads(&ram, at)));
    found.recv_timeout(Duration::from_secs(30)).expect("the fault is answered")
}

fn fork_of(ram: &GuestRam) -> GuestRam {
    let child = GuestRam::reserve(ram.len()).unwrap();
    Backing::Private { base: ram.base().file, pages: None }.map(&child).unwrap();
    child
}

/// A plain mapping that reads a hole publishes a page of zeros in the base.
#[test]
fn fork_that_reads_a_hole_leaves_the_rest_of_the_chunk_to_its_parent() {
    let len = DAMAGED * CHUNK;
    let source = Arc::new(Source { len, ..Source::default() });
    let service = Service::over(fresh(len).unwrap(), Box::new(SharedSource(Arc::clone(&source)))).unwrap();
    let service = Arc::new(service);
    let ram = vm(&service, None);
    service.complete_and_seal().unwrap();
    let memfd = service.filler().memfd().try_clone().unwrap();
    let next = Arc::new(Service::over(memfd, Box::new(SharedSource(source))).unwrap());
    let adopter = vm(&next, None);
    let child = fork_of(&ram);
    for (chunk, reader) in [(3, &ram), (6, &adopter)] {
        let start = chunk * CHUNK;
        assert_eq!(read(&child, start), 0);
        assert_eq!(limited_read(reader, start + PAGE), Ok(0), "chunk {chunk}");
        assert_eq!(limited_read(reader, start), Ok(0), "chunk {chunk}");
    }
    for at in (0..len).step_by(PAGE as usize) {
        assert_eq!([&ram, &adopter].map(|ram| limited_read(ram, at)), [Ok(word(at)); 2], "{at:#x}");
    }
}
