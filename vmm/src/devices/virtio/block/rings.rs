//! The io_urings of disks. Each does nothing but the work of a disk, whoever uses it.
//!
//! A filter of system calls does not see what an io_uring does. One without restrictions could connect
//! sockets, for example. A confined thread therefore makes none: it takes one that was made before, and a
//! disk that is closed returns its own.

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Mutex;
use std::thread::JoinHandle;

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode};

use crate::sandbox;
use crate::sync::lock;
use crate::threads;

/// Requests of a disk in flight at once. A power of two, as io_uring wants it.
pub const ENTRIES: u16 = super::QUEUE;

/// Those that no disk uses.
static SPARE: Mutex<Vec<IoUring>> = Mutex::new(Vec::new());

/// The thread that makes them. Held while it is waited for.
static PREPARING: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);

/// An io_uring that reads, writes and flushes files.
pub struct Ring(Option<IoUring>);

impl Ring {
    /// Returns a spare one, or a new one.
    ///
    /// # Errors
    /// The host refuses one; or this thread is confined and there is no spare one.
    pub fn take() -> io::Result<Self> {
        let mut preparing = lock(&PREPARING);
        if let Some(thread) = preparing.take() {
            // After a panic there are fewer.
            let _ = thread.join();
        }
        drop(preparing);
        if let Some(spare) = lock(&SPARE).pop() {
            return Ok(Self(Some(spare)));
        }
        match sandbox::kind_of_this_thread() {
            None => make().map(|ring| Self(Some(ring))),
            Some(_) => Err(io::Error::other(
                "a confined process makes none while it runs, and those that it made at its start are in \
                 use; choose engine=sync",
            )),
        }
    }
}

/// Makes this many io_urings, for the disks with `engine=io_uring` that confined threads will open: a process
/// that was confined ([`crate::sandbox::confine`]) and makes its VM later calls this before. Stops where the
/// host refuses one, and such a disk is refused then. A thread makes them: eight take 0.3 ms, and only a disk
/// that needs one waits for it.
pub fn prepare_io_urings(count: usize) {
    let prepare = move || {
        let made = (0..count).map_while(|_| make().ok());
        lock(&SPARE).extend(made);
    };
    match threads::named("volt-rings").spawn(prepare) {
        Ok(thread) => *lock(&PREPARING) = Some(thread),
        Err(_) => prepare(),
    }
}

/// Makes one that takes these operations alone, without flags, and no other registration.
fn make() -> io::Result<IoUring> {
    let ring = IoUring::builder().setup_r_disabled().build(ENTRIES.into())?;
    let operations = [opcode::Readv::CODE, opcode::Writev::CODE, opcode::Fsync::CODE];
    ring.submitter().register_restrictions(&mut operations.map(Restriction::sqe_op))?;
    ring.submitter().register_enable_rings()?;
    Ok(ring)
}

impl Deref for Ring {
    type Target = IoUring;

    fn deref(&self) -> &IoUring {
        self.0.as_ref().expect("it is taken at the end")
    }
}

impl DerefMut for Ring {
    fn deref_mut(&mut self) -> &mut IoUring {
        self.0.as_mut().expect("it is taken at the end")
    }
}

impl Drop for Ring {
    /// Keeps it for the next disk of a confined process. Nothing is in flight.
    fn drop(&mut self) {
        if sandbox::is_confined() {
            lock(&SPARE).extend(self.0.take());
        }
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use io_uring::types::Fd;

    use super::*;
    use crate::testing::skip;

    #[test]
    fn ring_that_is_being_made_is_waited_for() {
        if let Err(error) = make() {
            return skip(&format!("this host refuses io_uring: {error}"));
        }
        for _ in 0..20 {
            prepare_io_urings(1);
            Ring::take().unwrap();
            assert!(lock(&PREPARING).is_none());
            assert_eq!(lock(&SPARE).len(), 0);
        }
    }

    #[test]
    fn ring_refuses_what_no_disk_does() {
        let mut ring = match make() {
            Ok(ring) => ring,
            Err(error) => return skip(&format!("this host refuses io_uring: {error}")),
        };
        let socket = opcode::Socket::new(libc::AF_UNIX, libc::SOCK_STREAM, 0).build();
        let open = opcode::OpenAt::new(Fd(libc::AT_FDCWD), c"/".as_ptr()).build();
        for entry in [socket, open] {
            // SAFETY: the path is constant.
            unsafe { ring.submission().push(&entry) }.unwrap();
            ring.submit_and_wait(1).unwrap();
            assert_eq!(ring.completion().next().unwrap().result(), -libc::EACCES);
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(ring.submitter().register_files(&[std::os::fd::AsRawFd::as_raw_fd(&file)]).is_err());
    }
}
