//! Read leases on files that guest memory maps (fcntl(2), `F_SETLEASE`; fs/locks.c). A program that opens
//! such a file for writing, or truncates it, waits until the VMs that map it have been told and have ended.
//!
//! ```text
//!   hold ──> a thread takes the lease, and looks whether the file is still what was opened
//!                │                              └── it is not ──────────────┐
//!                └── waits ── the kernel says that someone wants to write ──┴──> all are told ──> the lease is given up
//! ```
//!
//! A lease and its listener belong to an open file description. Every [`Lease`] opens the file anew, so
//! neither another VM of this process nor a child with a copy of the descriptor can give the lease up.
//!
//! Some files cannot be leased: another user's, one on a network file system, one that is open for writing.
//! This is logged, and the file is trusted. A file under fs-verity cannot change and needs no lease.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, SealFlags, StatxAttributes, StatxFlags, statx};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::sealing::own_description;
use crate::error::{Error, Result, report};
use crate::paths;
use crate::sandbox::ThreadKind;
use crate::sync::lock;
use crate::threads;

/// `F_SETSIG` and `F_SETOWN_EX`, with its structure (include/uapi/asm-generic/fcntl.h).
const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;

#[repr(C)]
struct Owner {
    kind: libc::c_int,
    pid: libc::pid_t,
}

/// The signal for a lease that breaks. It is sent to the lease's thread alone, which blocks it.
fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 1
}

/// The message about the first truncated file.
static FILE: OnceLock<String> = OnceLock::new();

/// The likely cause of SIGBUS: a truncated file of guest memory. Names the first of several.
/// Async-signal-safe.
#[must_use]
pub fn truncated_memory() -> Option<&'static str> {
    FILE.get().map(String::as_str)
}

/// Size and times of a file when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    len: u64,
    modified: (i64, i64),
}

impl Content {
    fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self { len: metadata.len(), modified: (metadata.mtime(), metadata.mtime_nsec()) })
    }
}

/// Leases on a snapshot's files, taken once a VM maps them.
#[derive(Debug, Default)]
pub struct Leases {
    files: Vec<(Arc<File>, Content)>,
    held: OnceLock<Vec<Arc<Lease>>>,
}

impl Leases {
    /// Whether `file` is among them.
    #[must_use]
    pub fn cover(&self, file: &Arc<File>) -> bool {
        self.files.iter().any(|(held, _)| Arc::ptr_eq(held, file))
    }

    /// Leases for `files`, which were just opened.
    ///
    /// # Errors
    /// The host cannot tell the state of one.
    pub fn of<'f>(files: impl IntoIterator<Item = &'f Arc<File>>) -> io::Result<Self> {
        let files = files.into_iter().map(|file| Ok((Arc::clone(file), Content::of(file)?)));
        Ok(Self { files: files.collect::<io::Result<_>>()?, held: OnceLock::new() })
    }

    /// Path of the first file whose size or time of change is not what it was when it was opened.
    ///
    /// # Errors
    /// The host cannot tell the state of one.
    pub fn changed(&self) -> io::Result<Option<PathBuf>> {
        for (file, opened) in &self.files {
            if Content::of(file)? != *opened {
                return Ok(Some(name_of(file)));
            }
        }
        Ok(None)
    }

    /// Subscribes to changes by taking the leases. Calls `act` with the reason, on another thread or at once,
    /// if a file is about to change or has changed. When `act` returns, no VM may depend on the file.
    pub fn subscribe(&self, act: impl Fn(&str) + Clone + Send + 'static) -> Vec<LeaseListener> {
        if let Some((file, _)) = self.files.iter().find(|(file, _)| !is_sealed(file)) {
            FILE.get_or_init(|| format!("{} is gone or too short", name_of(file).display()));
        }
        let held = self.held.get_or_init(|| {
            let hold = |(file, opened): &(Arc<File>, Content)| {
                let failed = |error: &Error| {
                    log::warn!("cannot hold {} under a lease: {}", name_of(file).display(), report(error));
                };
                Lease::hold(file, *opened).inspect_err(failed).ok().map(Arc::new)
            };
            self.files.iter().filter(|(file, _)| !is_sealed(file)).filter_map(hold).collect()
        });
        held.iter().map(|lease| lease.subscribe(act.clone())).collect()
    }
}

/// A lease on one file. Dropping it gives the lease up.
#[derive(Debug)]
struct Lease {
    shared: Arc<LeaseState>,
    stop: EventFd,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct LeaseState {
    subscribers: Mutex<Subscribers>,
}

/// A subscriber's act.
type Act = Box<dyn Fn(&str) + Send>;

#[derive(Default)]
struct Subscribers {
    broken_by: Option<String>,
    next_id: u64,
    callbacks: BTreeMap<u64, Act>,
}

impl std::fmt::Debug for Subscribers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscribers")
            .field("broken_by", &self.broken_by)
            .field("callbacks", &self.callbacks.len())
            .finish()
    }
}

/// A subscription. Dropping it ends it.
#[derive(Debug)]
pub struct LeaseListener {
    lease: Arc<Lease>,
    number: u64,
}

impl Lease {
    /// Takes a lease on a file that had the state `opened`, on another thread.
    ///
    /// # Errors
    /// The host has no thread or descriptor left.
    fn hold(file: &Arc<File>, opened: Content) -> Result<Self> {
        let failed = |source| Error::host("make an eventfd", source);
        let stop = EventFd::new(EFD_NONBLOCK).map_err(failed)?;
        let shared = Arc::new(LeaseState::default());
        let (file, watched, until) =
            (Arc::clone(file), Arc::clone(&shared), stop.try_clone().map_err(failed)?);
        let body = move || {
            if let Err(error) = watched.watch(&file, opened, &until) {
                let name = name_of(&file);
                log::debug!(
                    "cannot hold {} under a lease, which would report writers: {error}",
                    name.display()
                );
            }
        };
        let thread = threads::spawn(ThreadKind::Worker, "lease", body)?;
        Ok(Self { shared, stop, thread: Some(thread) })
    }

    /// As [`Leases::subscribe`].
    fn subscribe(self: &Arc<Self>, act: impl Fn(&str) + Send + 'static) -> LeaseListener {
        let mut subscribers = lock(&self.shared.subscribers);
        if let Some(why) = &subscribers.broken_by {
            act(why);
        }
        let number = subscribers.next_id;
        subscribers.next_id += 1;
        subscribers.callbacks.insert(number, Box::new(act));
        LeaseListener { lease: Arc::clone(self), number }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = self.stop.write(1); // an eventfd that was never written takes a 1
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it does not panic, and if it did the file would be let go
        }
    }
}

impl Drop for LeaseListener {
    fn drop(&mut self) {
        lock(&self.lease.shared.subscribers).callbacks.remove(&self.number);
    }
}

impl LeaseState {
    /// Holds the lease until `stop`, or until a program opens the file for writing.
    fn watch(&self, file: &File, opened: Content, stop: &EventFd) -> io::Result<()> {
        if has_verity(file) {
            return Ok(());
        }
        let signals = block_signal()?;
        let own = own_description(file)?;
        let held = set_lease(&own, libc::F_RDLCK);
        if Content::of(file)? != opened {
            self.tell_all(file, "has been changed by another program since it was opened");
            return held;
        }
        held?;
        if wait(&signals, stop)? {
            self.tell_all(file, "is about to be changed by another program");
        }
        Ok(()) // closed, it is let go
    }

    fn tell_all(&self, file: &File, what: &str) {
        let why = format!("{}, the file behind guest memory, {what}", name_of(file).display());
        let mut subscribers = lock(&self.subscribers);
        subscribers.callbacks.values().for_each(|act| act(&why));
        subscribers.broken_by = Some(why);
    }
}

/// Waits for the signal or `stop`. Returns whether the signal came.
fn wait(signals: &OwnedFd, stop: &EventFd) -> io::Result<bool> {
    // SAFETY: `stop` is open as long as it is borrowed.
    let stop = unsafe { BorrowedFd::borrow_raw(stop.as_raw_fd()) };
    let mut polled = [PollFd::new(signals, PollFlags::IN), PollFd::new(&stop, PollFlags::IN)];
    loop {
        match poll(&mut polled, None) {
            Ok(_) => return Ok(polled[1].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Blocks the signal on this thread. Returns a descriptor that is readable while the signal is pending.
fn block_signal() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset; a thread may change its own mask; a new descriptor has
    // no other owner.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal());
        match libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) {
            0 => {}
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
        match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            descriptor => Ok(OwnedFd::from_raw_fd(descriptor)),
        }
    }
}

/// Takes the lease. Its signals go to this thread.
fn set_lease(file: &File, kind: libc::c_int) -> io::Result<()> {
    let owner = Owner { kind: F_OWNER_TID, pid: rustix::thread::gettid().as_raw_nonzero().get() };
    // SAFETY: the calls take numbers, and one of them reads `owner`, which outlives it.
    let done = unsafe {
        let descriptor = file.as_raw_fd();
        [
            libc::fcntl(descriptor, F_SETSIG, signal()),
            libc::fcntl(descriptor, F_SETOWN_EX, &raw const owner),
            libc::fcntl(descriptor, libc::F_SETLEASE, kind),
        ]
    };
    if done.contains(&-1) { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Path of an open file.
pub(crate) fn name_of(file: &File) -> PathBuf {
    paths::path_of(file).unwrap_or_else(|_| "a file".into())
}

/// Whether the file is a memfd sealed against writes.
fn is_sealed(file: &File) -> bool {
    rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::WRITE))
}

fn has_verity(file: &File) -> bool {
    let found = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE);
    found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::VERITY))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;
    use crate::testing::ScratchDir;

    struct Held {
        _scratch: ScratchDir,
        path: PathBuf,
        file: Arc<File>,
        opened: Content,
    }

    impl Held {
        fn new(name: &str) -> Self {
            let scratch = ScratchDir::new();
            let path = scratch.join(name);
            std::fs::write(&path, "memory").unwrap();
            let file = Arc::new(File::open(&path).unwrap());
            Self { opened: Content::of(&file).unwrap(), _scratch: scratch, path, file }
        }

        fn hold(&self) -> Arc<Lease> {
            Arc::new(Lease::hold(&self.file, self.opened).unwrap())
        }

        /// Waits until `times` leases are held. Threads take them.
        fn wait_until_held(&self, times: usize) {
            let inode = format!(":{} ", self.file.metadata().unwrap().ino());
            let is_ours = |line: &&str| line.contains("LEASE") && line.contains(&inode);
            while std::fs::read_to_string("/proc/locks").unwrap().lines().filter(is_ours).count() != times {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn listen(lease: &Arc<Lease>) -> (LeaseListener, Receiver<String>) {
        let (tell, told) = channel();
        (lease.subscribe(move |why| tell.send(why.to_owned()).unwrap()), told)
    }

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn subscriber_is_told_before_another_process_can_write() {
        let held = Held::new("told");
        let lease = held.hold();
        let (listener, told) = listen(&lease);
        let (gone, not_told) = listen(&lease);
        drop(gone);
        held.wait_until_held(1);
        // Opening for reading succeeds.
        assert_eq!(std::fs::read(&held.path).unwrap(), b"memory");
        // Opening for writing waits until all subscribers have been told.
        let truncated = File::create(&held.path);
        let why = told.try_recv().expect("told before");
        assert!(
            why.starts_with(held.path.to_str().unwrap()) && why.contains("is about to be changed"),
            "{why}"
        );
        assert!(not_told.try_recv().is_err());
        truncated.unwrap();
        drop(listener);
        let (_late, told) = listen(&lease);
        assert!(told.try_recv().unwrap().contains("is about to be changed"), "told late, but told");
    }

    #[test]
    fn change_before_the_lease_is_noticed() {
        let held = Held::new("changed");
        std::fs::write(&held.path, "longer than it was").unwrap();
        let lease = held.hold();
        let (_listener, told) = listen(&lease);
        assert!(told.recv_timeout(PATIENCE).unwrap().contains("has been changed"));
    }

    #[test]
    fn file_that_cannot_be_leased_is_used_without_a_lease() {
        let held = Held::new("written");
        let _writer = File::options().write(true).open(&held.path).unwrap();
        let lease = held.hold();
        let (_listener, told) = listen(&lease);
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
    }

    #[test]
    fn released_file_can_be_written() {
        let held = Held::new("let-go");
        let lease = held.hold();
        held.wait_until_held(1);
        drop(lease);
        std::fs::write(&held.path, "other").unwrap();
    }

    /// As for a VM and its fork, which share a descriptor.
    #[test]
    fn release_keeps_the_lease_of_another_holder() {
        let held = Held::new("two");
        let leases = [held.hold(), held.hold()];
        held.wait_until_held(2);
        let [stays, goes] = leases;
        let (_listener, told) = listen(&stays);
        drop(goes);
        held.wait_until_held(1);
        let _truncated = File::create(&held.path).unwrap();
        assert!(told.try_recv().expect("told before").contains("is about to be changed"));
    }
}
