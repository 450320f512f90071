//! The end of a VM while one of its faults is being answered.

use super::*;

/// Memory in which each byte is 0x11.
fn ones() -> Box<dyn PageSource> {
    let read = |_: u64, into: &mut [u8]| {
        into.fill(0x11);
        Ok(Chunk::Bytes)
    };
    Box::new(TestSource { len: LEN, chunk_len: CHUNK, read })
}

/// Ends the hang of a source when a test ends or fails.
struct EndHang<'s>(&'s Source);

impl Drop for EndHang<'_> {
    fn drop(&mut self) {
        self.0.hangs.end();
    }
}

/// Maps a base at addresses that were just unmapped, where the next VM's memory may lie.
fn map_at(start: u64, base: &std::fs::File) {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let (at, flags) = (start as *mut std::ffi::c_void, MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE);
    // SAFETY: the kernel refuses addresses that are in use.
    let mapped = unsafe { rustix::mm::mmap(at, LEN as usize, access, flags, base, 0) };
    assert_eq!(mapped.unwrap() as u64, start);
}

#[test]
fn late_zero_fill_does_not_reach_the_vm_that_took_the_addresses() {
    let (source, service) = service(LEN);
    // Made first, because it maps memory itself.
    let ones = Arc::new(Service::new(ones()).unwrap());
    let ram = vm(&service, None);
    let start = ram.host_address_of(0) as u64;
    // The read of a zero chunk hangs.
    source.hangs.begin();
    let waiting = {
        let ram = ram.clone();
        thread::spawn(move || kernel_reads(&ram, 3 * CHUNK))
    };
    wait_until("the reader hangs", || source.hangs.seen());
    drop(ram.faults().unwrap().let_go_after(Duration::ZERO, "it ended").unwrap());
    wait_until("the fault is let go", || {
        ram.faults().unwrap().let_go("it ended");
        waiting.is_finished()
    });
    limited("the waiting read ends", || waiting.join()).unwrap().unwrap_err();
    drop(ram);
    let _let_go = EndHang(&source);

    map_at(start, &ones.base());
    let handler = Arc::clone(&ones) as Arc<dyn FaultHandler>;
    let next = Faults::of(start as *mut u8, LEN, handler).unwrap();
    source.hangs.end();
    // After the answer to another VM, the thread has finished all earlier work.
    assert_eq!(read(&vm(&service, None), CHUNK), word(CHUNK));
    // SAFETY: the memory is mapped, and no thread writes to it.
    let found = unsafe { ((start + 3 * CHUNK) as *const u64).read_volatile() };
    assert_eq!(found, 0x1111_1111_1111_1111);
    drop(next);
}

#[test]
fn unreadable_userfaultfd_is_reported_once_and_other_vms_are_served() {
    let (_, service) = service(LEN);
    let (told, reasons) = mpsc::channel();
    let tell = move |range, error: &Error| told.send((range, crate::error::report(error))).unwrap();
    let userfault = Arc::new(Userfault::without_agreement().unwrap());
    let number =
        service.add(crate::memory::lazy::served_vm::ServedVm::new(userfault, 0, Box::new(tell))).unwrap();
    let (range, why) = reasons.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(range == (0..LEN) && why.contains("cannot read a VM's page faults"), "{why}");
    assert_eq!(read(&vm(&service, None), CHUNK), word(CHUNK));
    service.remove(number);
    assert!(reasons.try_recv().is_err());
}

#[test]
fn slow_chunk_does_not_delay_other_faults() {
    let (source, service) = service(LEN);
    let (ram, other) = (vm(&service, None), vm(&service, None));
    // After the first fault, more than one thread answers.
    assert_eq!(read(&ram, CHUNK), word(CHUNK));
    let _let_go = EndHang(&source);
    source.hangs.begin();
    let slow: Vec<_> = [&ram, &other]
        .map(|ram| {
            let ram = ram.clone();
            thread::spawn(move || kernel_reads(&ram, 2 * CHUNK))
        })
        .into();
    wait_until("the reader hangs", || source.hangs.seen());
    // Reads that start now do not hang.
    source.hangs.end_for_others();
    assert_eq!(kernel_reads(&ram, 4 * CHUNK), Ok(word(4 * CHUNK)));
    assert_eq!(kernel_reads(&other, 5 * CHUNK), Ok(word(5 * CHUNK)));
    assert_eq!(kernel_reads(&other, CHUNK), Ok(word(CHUNK)));
    assert!(slow.iter().all(|slow| !slow.is_finished()));
    source.hangs.end();
    slow.into_iter().for_each(|slow| {
        assert_eq!(limited("the slow read ends", || slow.join()).unwrap(), Ok(word(2 * CHUNK)))
    });
    // Four chunks, one of which two threads wanted at the same time.
    assert_eq!(source.reads.load(Ordering::SeqCst), 4);
}

/// Starts a thread that waits for a chunk whose source hangs.
fn slow_read(source: &Source, ram: &GuestRam, at: u64) -> thread::JoinHandle<rustix::io::Result<u64>> {
    source.hangs.begin();
    let ram = ram.clone();
    let waiting = thread::spawn(move || kernel_reads(&ram, at));
    wait_until(&format!("a thread reads the chunk at {at:#x}"), || source.hangs.seen());
    waiting
}

#[test]
fn thirty_slow_reads_do_not_delay_other_faults() {
    let (source, service) = service(LEN);
    let (ram, other) = (vm(&service, None), vm(&service, None));
    let _let_go = EndHang(&source);
    let slow: Vec<_> = (18..48)
        .map(|chunk| {
            let (ram, at) = (if chunk % 2 == 0 { &ram } else { &other }, chunk * CHUNK);
            (at, slow_read(&source, ram, at))
        })
        .collect();
    // The source answers new reads at once.
    source.hangs.end_for_others();
    assert_eq!(kernel_reads(&ram, 5 * CHUNK), Ok(word(5 * CHUNK)));
    assert!(slow.iter().all(|(_, slow)| !slow.is_finished()));
    source.hangs.end();
    slow.into_iter().for_each(|(at, slow)| {
        assert_eq!(limited("the slow read ends", || slow.join()).unwrap(), Ok(word(at)));
    });
}

#[test]
fn second_vcpus_fault_is_answered_during_the_first_ones_cold_read() {
    let (source, service) = service(LEN);
    let ram = vm(&service, None);
    ram.faults().unwrap().handler().expect_several();
    let _let_go = EndHang(&source);
    let first = slow_read(&source, &ram, CHUNK);
    source.hangs.end_for_others();
    let second = {
        let ram = ram.clone();
        thread::spawn(move || kernel_reads(&ram, 2 * CHUNK))
    };
    let found = limited("the second vCPU's read ends", || second.join()).unwrap();
    assert_eq!(found, Ok(word(2 * CHUNK)));
    assert!(!first.is_finished());
    source.hangs.end();
    assert_eq!(limited("the first vCPU's read ends", || first.join()).unwrap(), Ok(word(CHUNK)));
}

#[test]
fn vm_does_not_wait_for_the_cold_read_of_one_that_ended() {
    let (source, service) = service(LEN);
    let ended = vm(&service, None);
    let _let_go = EndHang(&source);
    // The first fault over the base, on the only thread.
    let cold = slow_read(&source, &ended, CHUNK);
    source.hangs.end_for_others();
    ended.faults().unwrap().let_go("it ended");
    wait_until("the fault is let go", || {
        ended.faults().unwrap().let_go("it ended");
        cold.is_finished()
    });
    limited("the cold read ends", || cold.join()).unwrap().unwrap_err();
    drop(ended);
    let next = vm(&service, None);
    let reading = thread::spawn(move || kernel_reads(&next, 2 * CHUNK));
    assert_eq!(limited("the next VM's read ends", || reading.join()).unwrap(), Ok(word(2 * CHUNK)));
    source.hangs.end();
}

/// Memory whose chunk 1 panics at its first `times` reads.
fn panics(times: usize) -> Box<dyn PageSource> {
    let reads = AtomicUsize::new(0);
    let read = move |chunk: u64, into: &mut [u8]| {
        let panics = chunk == 1 && reads.fetch_add(1, Ordering::SeqCst) < times;
        assert!(!panics, "the source panics, as the test wants");
        into.fill(0x11);
        Ok(Chunk::Bytes)
    };
    Box::new(TestSource { len: LEN, chunk_len: CHUNK, read })
}

#[test]
fn panics_end_their_vms_and_a_later_vm_gets_the_chunk() {
    let reads_chunk = |ram: &GuestRam| {
        let ram = ram.clone();
        let reading = thread::spawn(move || kernel_reads(&ram, CHUNK));
        limited("the read ends", || reading.join()).unwrap()
    };
    // More panics than the service may have threads.
    let service = Arc::new(Service::new(panics(MOST_THREADS + 1)).unwrap());
    for _ in 0..=MOST_THREADS {
        let (told, reasons) = mpsc::channel();
        let ram = vm(&service, None);
        ram.faults().unwrap().when_unreadable(move |why| told.send(why).unwrap());
        reads_chunk(&ram).unwrap_err();
        let why = limited("the VM is told", || reasons.recv()).unwrap();
        assert!(why.contains("has panicked"), "{why}");
    }
    assert_eq!(reads_chunk(&vm(&service, None)), Ok(0x1111_1111_1111_1111));
}
