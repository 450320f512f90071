//! A pager and its VMs in one process.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::client::Pager;
use super::message::{PagerRequest, PagerResponse, VERSION};
use super::options::PagerOptions;
use super::place::PagerPlace;
use super::server::serve;
use crate::error::{Error, Result, report};
use crate::memory::backing::Backing;
use crate::memory::files::sealing::can_change;
use crate::memory::lazy::faults::FaultHandler;
use crate::memory::lazy::source::{Chunk, ChunkReader, PageSource};
use crate::memory::lazy::userfault::Userfault;
use crate::memory::ram::GuestRam;
use crate::memory::testing;
use crate::memory::testing::Hangs;
use crate::packets::{receive_until, send};
use crate::progress::Progress;
use crate::sync::lock;
use crate::testing::{ScratchDir, limited, wait_until};

mod limits_tests;

const CHUNK: u64 = 64 << 10;
const LEN: u64 = 1 << 20;

/// Odd chunks are zero; each byte of an even chunk is the chunk's number. Reads return at once unless they
/// hang.
#[derive(Debug, Default)]
struct PackSource {
    hangs: Hangs,
}

#[derive(Debug)]
struct Shared(Arc<PackSource>);

impl PageSource for Shared {
    fn memory_len(&self) -> u64 {
        LEN
    }

    fn chunk_len(&self) -> u64 {
        CHUNK
    }

    fn reader(&self) -> Box<dyn ChunkReader + '_> {
        Box::new(TestPackReader(&self.0))
    }
}

struct TestPackReader<'s>(&'s PackSource);

impl ChunkReader for TestPackReader<'_> {
    fn read(&mut self, chunk: u64, into: &mut [u8]) -> Result<Chunk> {
        self.0.hangs.pass();
        into.fill(chunk as u8);
        Ok(if chunk.is_multiple_of(2) { Chunk::Bytes } else { Chunk::Zero })
    }
}

/// A directory for pagers, and a pack, which only determines the place.
struct Here {
    _scratch: ScratchDir,
    directory: PathBuf,
    source: Arc<PackSource>,
    patience: Duration,
}

impl Here {
    fn new() -> Self {
        let scratch = ScratchDir::new();
        let directory = scratch.join("pagers");
        Self { _scratch: scratch, directory, source: Arc::default(), patience: Duration::from_secs(60) }
    }

    fn pack(&self) -> File {
        File::open("/proc/self/exe").unwrap()
    }

    fn place(&self) -> PagerPlace {
        PagerPlace::of(&self.pack(), &self.directory, None).unwrap()
    }

    /// Starts a pager, which ends with its last VM.
    fn begin_pager(&self) -> thread::JoinHandle<Result<()>> {
        let (place, source) = (self.place(), Arc::clone(&self.source));
        let (told, listens) = mpsc::channel();
        let pager = thread::spawn(move || {
            let of = || Box::new(Shared(Arc::clone(&source))) as Box<dyn PageSource>;
            serve(&place, &of, Duration::from_millis(500), || told.send(()).unwrap())
        });
        limited("the pager listens", || listens.recv()).unwrap();
        pager
    }

    fn connect(&self) -> Result<Pager> {
        let options = PagerOptions {
            directory: self.directory.clone(),
            group: None,
            program: PathBuf::from("/bin/false"),
            patience: self.patience,
        };
        Pager::connect(&options, self.pack(), PathBuf::from("pack"), LEN)
    }

    fn vm(&self) -> GuestRam {
        let ram = GuestRam::reserve(LEN).unwrap();
        let handler = Arc::new(self.connect().unwrap()) as Arc<dyn FaultHandler>;
        Backing::Lazy { handler, pages: None }.map(&ram).unwrap();
        ram
    }
}

/// Reads a byte of guest memory as the kernel, or `None` if it is unavailable.
fn kernel_reads(ram: &GuestRam, at: u64) -> Option<u8> {
    testing::kernel_reads(ram, at).ok().map(|word| word as u8)
}

/// Starts a thread that waits for a page whose chunk is being read.
fn waiting(here: &Here, ram: &GuestRam, at: u64) -> thread::JoinHandle<Option<u8>> {
    here.source.hangs.begin();
    let ram = ram.clone();
    let waiting = thread::spawn(move || kernel_reads(&ram, at));
    wait_until("the reader hangs", || here.source.hangs.seen());
    waiting
}

fn is_mapped(start: u64) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (from, to) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        (number(from)..number(to)).contains(&start)
    })
}

/// A pager whose answers the test chooses.
struct Puppet {
    _claim: super::place::Claim,
    listener: OwnedFd,
}

impl Puppet {
    fn new(here: &Here) -> Self {
        let claim = here.place().claim().unwrap().unwrap();
        let address = SocketAddrUnix::new(claim.socket().unwrap()).unwrap();
        let flags = SocketFlags::CLOEXEC;
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 8).unwrap();
        Self { _claim: claim, listener }
    }

    fn accept(&self) -> OwnedFd {
        rustix::net::accept(&self.listener).unwrap()
    }

    /// Gives a VM an empty base and promises to serve it. Returns the connection and the userfaultfd.
    fn serve(&self) -> (OwnedFd, OwnedFd) {
        let socket = self.accept();
        let base = crate::memory::files::memfd::fresh(LEN).unwrap();
        assert!(matches!(hear(&socket), Some((PagerRequest::Base { .. }, None))));
        send(&socket, &PagerResponse::Done, Some(base.as_fd()), SendFlags::empty()).unwrap();
        let Some((PagerRequest::Serve { .. }, Some(userfault))) = hear(&socket) else {
            panic!("it asks for something else")
        };
        send(&socket, &PagerResponse::Done, None, SendFlags::empty()).unwrap();
        (socket, userfault)
    }
}

fn hear(socket: &OwnedFd) -> Option<(PagerRequest, Option<OwnedFd>)> {
    receive_until(socket, Instant::now() + Duration::from_secs(60)).unwrap()
}

#[test]
fn addresses_of_an_ended_vm_are_kept_until_its_pager_ends_the_connection() {
    let here = Here::new();
    let puppet = Puppet::new(&here);
    let (ram, (socket, userfault)) = thread::scope(|scope| {
        let served = scope.spawn(|| puppet.serve());
        (here.vm(), limited("the VM is served", || served.join()).unwrap())
    });
    let start = ram.host_address_of(0) as u64;
    let userfault = Userfault::of_other(userfault);
    userfault.zero(start, 4096).unwrap();
    drop(ram);
    assert!(is_mapped(start), "another VM may have these addresses now");
    let late = userfault.zero(start + CHUNK, 4096);
    assert!(late.is_err(), "{late:?}");
    assert!(hear(&socket).is_none(), "the VM says no more");
    assert!(is_mapped(start));
    drop(socket);
    wait_until("the addresses are given back", || !is_mapped(start));
}

#[test]
fn addresses_of_an_ended_vm_are_kept_until_every_pager_ends_its_connection() {
    let here = Here::new();
    let puppet = Puppet::new(&here);
    // The first pager does not answer whether it serves the VM. It may.
    let (ram, first, second) = thread::scope(|scope| {
        let served = scope.spawn(|| {
            let socket = puppet.accept();
            let base = crate::memory::files::memfd::fresh(LEN).unwrap();
            hear(&socket).unwrap();
            send(&socket, &PagerResponse::Done, Some(base.as_fd()), SendFlags::empty()).unwrap();
            let Some((PagerRequest::Serve { .. }, Some(userfault))) = hear(&socket) else {
                panic!("it wants more")
            };
            send(&socket, &PagerResponse::Alive, None, SendFlags::empty()).unwrap();
            let second = puppet.accept();
            let Some((PagerRequest::Base { .. }, Some(brought))) = hear(&second) else {
                panic!("it brings its base")
            };
            send(&second, &PagerResponse::Done, Some(brought.as_fd()), SendFlags::empty()).unwrap();
            assert!(matches!(hear(&second), Some((PagerRequest::Serve { .. }, Some(_)))));
            send(&second, &PagerResponse::Done, None, SendFlags::empty()).unwrap();
            ((socket, userfault), second)
        });
        let ram = here.vm();
        let (first, second) = limited("the VM is served", || served.join()).unwrap();
        (ram, first, second)
    });
    let start = ram.host_address_of(0) as u64;
    drop(ram);
    assert!(hear(&second).is_none(), "the VM says no more");
    drop(second);
    let (socket, userfault) = first;
    assert!(hear(&socket).is_none(), "nor to the first one");
    assert!(is_mapped(start), "another VM may have these addresses now");
    let late = Userfault::of_other(userfault).zero(start, 4096);
    assert!(late.is_err(), "{late:?}");
    drop(socket);
    wait_until("the addresses are given back", || !is_mapped(start));
}

#[test]
fn pager_ends_the_connection_of_a_vm_that_ended_during_a_fault() {
    let here = Here::new();
    let pager = here.begin_pager();
    let ram = here.vm();
    let start = ram.host_address_of(0) as u64;
    assert_eq!(kernel_reads(&ram, 2 * CHUNK), Some(2));
    let fault = waiting(&here, &ram, 3 * CHUNK);
    wait_until("the fault is let go", || {
        ram.faults().unwrap().let_go("it ended");
        fault.is_finished()
    });
    assert_eq!(limited("the fault ends", || fault.join()).unwrap(), None);
    drop(ram);
    wait_until("the addresses are given back", || !is_mapped(start));
    here.source.hangs.end();
    limited("the pager ends", || pager.join()).unwrap().unwrap();
}

#[test]
fn silent_pager_fails_the_connection_after_the_patience() {
    let mut here = Here::new();
    here.patience = Duration::from_millis(200);
    let _puppet = Puppet::new(&here); // it takes no connection
    let why = report(&here.connect().unwrap_err());
    assert!(why.contains("reach the pager at") && why.contains("it has not answered for 0.2 s"), "{why}");
}

#[test]
fn pager_that_never_serves_fails_the_restore_after_the_patience() {
    let mut here = Here::new();
    here.patience = Duration::from_millis(300);
    let puppet = Puppet::new(&here);
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            let socket = puppet.accept();
            let base = crate::memory::files::memfd::fresh(LEN).unwrap();
            hear(&socket).unwrap();
            send(&socket, &PagerResponse::Done, Some(base.as_fd()), SendFlags::empty()).unwrap();
            socket
        });
        let ram = GuestRam::reserve(LEN).unwrap();
        let handler = Arc::new(here.connect().unwrap()) as Arc<dyn FaultHandler>;
        let why = report(&Backing::Lazy { handler, pages: None }.map(&ram).unwrap_err());
        assert!(why.contains("it has not answered for 0.3 s"), "{why}");
        drop(limited("the first client ends", || first.join()).unwrap());
    });
}

#[test]
fn unanswered_faults_of_a_silent_pager_end_the_vm() {
    let mut here = Here::new();
    here.patience = Duration::from_millis(300);
    let puppet = Puppet::new(&here);
    let (ram, (_socket, userfault)) = thread::scope(|scope| {
        let served = scope.spawn(|| puppet.serve());
        (here.vm(), limited("the VM is served", || served.join()).unwrap())
    });
    let (told, reasons) = mpsc::channel();
    ram.faults().unwrap().when_unreadable(move |why| told.send(why).unwrap());
    let fault = {
        let ram = ram.clone();
        thread::spawn(move || kernel_reads(&ram, CHUNK))
    };
    // A pager that was stopped after it had read the fault.
    let userfault = Userfault::of_other(userfault);
    wait_until("the fault is there", || userfault.read(|_| ()).unwrap() > 0);
    let why = reasons.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(why.contains("the pager is unavailable: it has not answered for 0.3 s"), "{why}");
    assert_eq!(limited("the fault ends", || fault.join()).unwrap(), None);
}

#[test]
fn pager_that_answers_during_a_slow_read_does_not_end_the_vm() {
    let mut here = Here::new();
    here.patience = Duration::from_millis(200);
    let pager = here.begin_pager();
    let ram = here.vm();
    let fault = waiting(&here, &ram, 4 * CHUNK);
    thread::sleep(Duration::from_secs(1));
    assert_eq!(ram.faults().unwrap().failure(), None);
    here.source.hangs.end();
    assert_eq!(limited("the fault ends", || fault.join()).unwrap(), Some(4));
    drop(ram);
    limited("the pager ends", || pager.join()).unwrap().unwrap();
}

#[test]
fn pager_that_cannot_start_reports_the_reason() {
    let here = Here::new();
    let program = here.directory.with_extension("program");
    fs::write(&program, "#!/bin/sh\necho no such pack >&2\nexit 3\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let options = PagerOptions {
        directory: here.directory.clone(),
        group: None,
        program: program.clone(),
        patience: Duration::from_secs(60),
    };
    let why = report(&Pager::connect(&options, here.pack(), PathBuf::from("pack"), LEN).unwrap_err());
    assert!(why.contains("cannot start the pager") && why.contains("exit status: 3: no such pack"), "{why}");
}

#[test]
fn refused_userfaultfd_is_not_registered_and_the_pager_ends_with_its_last_vm() {
    let here = Here::new();
    let pager = here.begin_pager();
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(here.place().socket()).unwrap()).unwrap();
    let say = |ask: &PagerRequest, fd: Option<BorrowedFd<'_>>| {
        send(&socket, ask, fd, SendFlags::empty()).unwrap();
        receive_until::<PagerResponse>(&socket, Instant::now() + Duration::from_secs(60)).unwrap().unwrap().0
    };
    assert_eq!(say(&PagerRequest::Base { version: VERSION, memory_len: LEN }, None), PagerResponse::Done);
    // Without the API handshake, a userfaultfd can be polled, but neither read nor woken.
    let refused = [
        (Userfault::without_agreement().unwrap(), "cannot be woken"),
        (Userfault::reporting_unmapped_memory().unwrap(), "reports events other than page faults"),
    ];
    for (userfault, reason) in refused.iter().chain(&refused) {
        let said = say(&PagerRequest::Serve { start: 0, len: LEN }, Some(userfault.as_fd()));
        assert!(matches!(&said, PagerResponse::Refused(why) if why.contains(reason)), "{said:?}");
    }
    assert_eq!(say(&PagerRequest::Ping, None), PagerResponse::Alive);
    drop(socket);
    limited("the pager ends", || pager.join()).unwrap().unwrap();
}

#[test]
fn complete_base_is_sealed_and_the_next_pager_serves_it() {
    let here = Here::new();
    let pager = here.begin_pager();
    let first = here.vm();
    assert_eq!(kernel_reads(&first, 2 * CHUNK), Some(2));
    assert!(can_change(&first.base().file).unwrap());
    first.faults().unwrap().complete(&Progress::default()).unwrap();
    let base = first.base().file;
    assert!(!can_change(&base).unwrap());
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&*base));
    let again = File::options().write(true).open(path);
    assert!(again.and_then(|file| std::os::unix::fs::FileExt::write_at(&file, b"x", 0)).is_err());
    // The base now has the missing chunks. Zeros are still each VM's own.
    let second = here.vm();
    for ram in [&first, &second] {
        for chunk in 0..LEN / CHUNK {
            let expected = if chunk.is_multiple_of(2) { chunk as u8 } else { 0 };
            assert_eq!(kernel_reads(ram, chunk * CHUNK), Some(expected), "{chunk}");
        }
    }
    drop((first, second));
    limited("the pager ends", || pager.join()).unwrap().unwrap();
}
