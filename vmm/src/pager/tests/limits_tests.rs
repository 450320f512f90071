//! Pagers and VMs at a limit: a full socket, no descriptor left, a slow disk.
#![allow(unsafe_code)]

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::sync::mpsc::Receiver;

use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage};

use super::*;

/// Limit for each wait.
const LIMIT: Duration = Duration::from_secs(30);

/// More descriptors than a message has room for.
const MANY: usize = 16;

/// A VM whose messages the test chooses.
struct Client(OwnedFd);

impl Client {
    fn new(here: &Here) -> Self {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(here.place().socket()).unwrap()).unwrap();
        Self(socket)
    }

    fn hear(&self) -> Option<PagerResponse> {
        let heard = receive_until(&self.0, Instant::now() + LIMIT).expect("an answer in time");
        heard.map(|(answer, _)| answer)
    }

    fn ask(&self, ask: &PagerRequest, fd: Option<BorrowedFd<'_>>) -> Option<PagerResponse> {
        send(&self.0, ask, fd, SendFlags::empty()).unwrap();
        self.hear()
    }
}

/// Sends a message with more descriptors than the receiver takes. The receiver sees the same as if it had no
/// descriptor left.
fn send_truncated(socket: &OwnedFd, message: &impl serde::Serialize) {
    let text = serde_json::to_vec(message).unwrap();
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MANY))];
    let mut beside = SendAncillaryBuffer::new(&mut room);
    let fds = [socket.as_fd(); MANY];
    assert!(beside.push(SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(socket, &[IoSlice::new(&text)], &mut beside, SendFlags::NOSIGNAL).unwrap();
}

/// Memory over a base, with a userfaultfd, without a VM.
struct RegisteredMemory {
    base: File,
    start: u64,
    userfault: Userfault,
}

impl RegisteredMemory {
    fn new() -> Self {
        let base = crate::memory::files::memfd::fresh(LEN).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let (none, len) = (std::ptr::null_mut(), LEN as usize);
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing one. It is never
        // unmapped.
        let start =
            unsafe { rustix::mm::mmap(none, len, access, MapFlags::PRIVATE, &base, 0) }.unwrap() as u64;
        let userfault = Userfault::new().unwrap();
        userfault.register(start, LEN).unwrap();
        Self { base, start, userfault }
    }

    fn serve(&self, client: &Client) {
        let ask = PagerRequest::Base { version: VERSION, memory_len: LEN };
        assert_eq!(client.ask(&ask, Some(self.base.as_fd())), Some(PagerResponse::Done));
        let ask = PagerRequest::Serve { start: self.start, len: LEN };
        assert_eq!(client.ask(&ask, Some(self.userfault.as_fd())), Some(PagerResponse::Done));
    }

    /// Starts a thread in whose name the kernel reads a byte.
    fn touch(&self, at: u64) -> thread::JoinHandle<isize> {
        let address = self.start + at;
        thread::spawn(move || {
            let file = crate::memory::files::memfd::fresh(4096).unwrap();
            let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
            // SAFETY: the kernel reads from memory that stays mapped.
            unsafe { libc::pwrite(fd, address as *const _, 1, 0) }
        })
    }
}

/// A VM, and the test pager's ends of its connection and its userfaultfd.
fn served(here: &Here, puppet: &Puppet) -> (Arc<Pager>, GuestRam, (OwnedFd, OwnedFd)) {
    thread::scope(|scope| {
        let served = scope.spawn(|| puppet.serve());
        let pager = Arc::new(here.connect().unwrap());
        let ram = GuestRam::reserve(LEN).unwrap();
        let handler = Arc::clone(&pager) as Arc<dyn FaultHandler>;
        Backing::Lazy { handler, pages: None }.map(&ram).unwrap();
        (pager, ram, limited("the VM is served", || served.join()).unwrap())
    })
}

/// Fetches all of a VM's memory on a thread.
fn complete(ram: &GuestRam) -> Receiver<std::result::Result<(), String>> {
    complete_until_cancelled(ram, &Progress::default())
}

fn complete_until_cancelled(
    ram: &GuestRam,
    progress: &Progress,
) -> Receiver<std::result::Result<(), String>> {
    let (told, outcome) = mpsc::channel();
    let (ram, progress) = (ram.clone(), progress.clone());
    thread::spawn(move || {
        let done = ram.faults().unwrap().complete(&progress);
        told.send(done.map_err(|error| report(&error)))
    });
    outcome
}

/// Fills the socket of a stopped pager.
fn fill_socket(pager: &Pager) {
    let socket = lock(&pager.0.connection).socket.clone().unwrap();
    while send(&*socket, &PagerRequest::Fetched, None, SendFlags::DONTWAIT).is_ok() {}
}

#[test]
fn stopped_pager_whose_socket_is_full_fails_a_snapshot_within_the_patience() {
    let mut here = Here::new();
    here.patience = Duration::from_millis(300);
    let puppet = Puppet::new(&here);
    let (pager, ram, _ends) = served(&here, &puppet);
    fill_socket(&pager);
    let outcome = complete(&ram).recv_timeout(LIMIT).expect("it ends");
    assert!(outcome.unwrap_err().contains("it has not answered for 0.3 s"));
}

#[test]
fn pager_whose_socket_was_full_is_asked_to_complete_once_there_is_room() {
    let here = Here::new();
    let puppet = Puppet::new(&here);
    let (pager, ram, (socket, _userfault)) = served(&here, &puppet);
    fill_socket(&pager);
    let outcome = complete(&ram);
    wait_until("it has tried to ask", || lock(&pager.0.connection).completes);
    let heard = || while !matches!(hear(&socket).expect("it is connected").0, PagerRequest::Complete) {};
    limited("the VM asks for all of its memory", heard);
    send(&socket, &PagerResponse::Done, None, SendFlags::empty()).unwrap();
    assert_eq!(outcome.recv_timeout(LIMIT).expect("it ends"), Ok(()));
}

#[test]
fn waiting_for_a_pager_to_complete_can_be_cancelled() {
    let here = Here::new();
    let puppet = Puppet::new(&here);
    let (_pager, ram, (socket, _userfault)) = served(&here, &puppet);
    let progress = Progress::default();
    let outcome = complete_until_cancelled(&ram, &progress);
    let heard = || while !matches!(hear(&socket).expect("it is connected").0, PagerRequest::Complete) {};
    limited("the VM asks for all of its memory", heard);
    progress.cancel();
    let error = outcome.recv_timeout(LIMIT).expect("it ends").unwrap_err();
    assert_eq!(error, report(&Error::Cancelled));
}

#[test]
fn pager_that_ends_with_a_slow_read_in_hand_answers_others() {
    let here = Here::new();
    let pager = here.begin_pager();
    let (client, other) = (Client::new(&here), Client::new(&here));
    assert_eq!(other.ask(&PagerRequest::Ping, None), Some(PagerResponse::Alive));
    let memory = RegisteredMemory::new();
    memory.serve(&client);
    here.source.hangs.begin();
    let toucher = memory.touch(2 * CHUNK);
    wait_until("the chunk is being read", || here.source.hangs.seen());
    drop(client);
    // The pager may hear of the end before or after the first of these.
    let answers: Vec<_> = (0..50)
        .map(|_| {
            thread::sleep(Duration::from_millis(1));
            send(&other.0, &PagerRequest::Ping, None, SendFlags::empty()).unwrap();
            receive_until::<PagerResponse>(&other.0, Instant::now() + LIMIT).map(|heard| heard.unwrap().0)
        })
        .take_while(|answer| answer.is_ok())
        .collect();
    here.source.hangs.end();
    // No pager answers this fault. Without its userfaultfd the page would be zeros.
    drop(memory);
    let touched = limited("the touch ends", || toucher.join()).unwrap();
    assert_eq!((answers.len(), touched), (50, 1));
    drop(other);
    limited("the pager ends", || pager.join()).unwrap().unwrap();
}

#[test]
fn vm_lets_go_of_a_pager_that_refuses_to_serve_it() {
    let mut here = Here::new();
    here.patience = Duration::from_secs(2);
    let puppet = Puppet::new(&here);
    let (_pager, _ram, first) = served(&here, &puppet);
    drop(first);
    let client = Client(puppet.accept());
    let Some((PagerRequest::Base { .. }, Some(base))) = hear(&client.0) else { panic!("it has a base") };
    send(&client.0, &PagerResponse::Done, Some(base.as_fd()), SendFlags::empty()).unwrap();
    assert!(matches!(hear(&client.0), Some((PagerRequest::Serve { .. }, Some(_)))));
    send(&client.0, &PagerResponse::Refused("for a test".to_owned()), None, SendFlags::empty()).unwrap();
    let end = receive_until::<PagerRequest>(&client.0, Instant::now() + LIMIT).expect("an end in time");
    assert!(end.is_none(), "{end:?}");
}

#[test]
fn vm_that_reads_no_answers_stays_served() {
    let here = Here::new();
    let pager = here.begin_pager();
    let client = Client::new(&here);
    let until = Instant::now() + LIMIT;
    for _ in 0..2000 {
        loop {
            match send(&client.0, &PagerRequest::Ping, None, SendFlags::DONTWAIT) {
                Ok(()) => break,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    assert!(Instant::now() < until, "the pager reads no more");
                    thread::yield_now();
                }
                Err(error) => panic!("it is thrown out: {error}"),
            }
        }
    }
    // The VM takes all answers before the pager sends the next one that has room.
    let mut last = None;
    while last != Some(PagerResponse::Done) {
        assert!(Instant::now() < until, "waited {LIMIT:?} in vain until the pager gives a base");
        let ask = PagerRequest::Base { version: VERSION, memory_len: LEN };
        send(&client.0, &ask, None, SendFlags::empty()).unwrap();
        last = client.hear();
        assert!(last.is_some(), "it is thrown out");
    }
    drop(client);
    limited("the pager ends", || pager.join()).unwrap().unwrap();
}

#[test]
fn served_vm_whose_list_does_not_arrive_is_told_and_stays_served() {
    let here = Here::new();
    let pager = here.begin_pager();
    let client = Client::new(&here);
    let memory = RegisteredMemory::new();
    memory.serve(&client);
    send_truncated(&client.0, &PagerRequest::Prefetch);
    let said = client.hear();
    assert!(
        matches!(&said, Some(PagerResponse::NotPrefetched(why)) if why.contains("RLIMIT_NOFILE")),
        "{said:?}"
    );
    let toucher = memory.touch(2 * CHUNK);
    assert_eq!(limited("the touch ends", || toucher.join()).unwrap(), 1);
    assert_eq!(client.ask(&PagerRequest::Ping, None), Some(PagerResponse::Alive));
    drop(client);
    limited("the pager ends", || pager.join()).unwrap().unwrap();
}

#[test]
fn vm_that_cannot_take_a_descriptor_keeps_its_pager() {
    let here = Here::new();
    let puppet = Puppet::new(&here);
    let (_pager, ram, (socket, _userfault)) = served(&here, &puppet);
    send_truncated(&socket, &PagerResponse::Alive);
    let outcome = complete(&ram);
    let heard = hear(&socket);
    assert!(matches!(heard, Some((PagerRequest::Complete, None))), "{heard:?}");
    send(&socket, &PagerResponse::Done, None, SendFlags::empty()).unwrap();
    assert_eq!(outcome.recv_timeout(LIMIT).expect("it ends"), Ok(()));
}

#[test]
fn directory_too_long_for_a_socket_is_refused_at_once() {
    let directory = std::env::temp_dir().join("x".repeat(100));
    let why = report(
        &PagerPlace::of(&File::open("/proc/self/exe").unwrap(), &directory, Some("group")).unwrap_err(),
    );
    assert!(why.contains("107") && why.contains(directory.to_str().unwrap()), "{why}");
    assert!(!directory.exists());
}
