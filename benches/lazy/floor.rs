//! The least that a fault of this kind can cost: the same messages, the same copy into the same kind of mapping, the same wake-up, with
//! every chunk lying in memory ready to be copied. One thread answers, as there.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use volt_benches::{OrSay, Result};
use volt_vmm::lazy::Userfault;

/// A mapping of a memfd.
#[derive(Clone, Copy)]
pub struct Mapping {
    pub start: u64,
    len: usize,
}

impl Mapping {
    pub fn of(file: &File, len: usize, sharing: libc::c_int, access: libc::c_int) -> Result<Self> {
        use std::os::fd::AsRawFd;
        let flags = sharing | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error()).or_say("map memory");
        }
        Ok(Self { start: start as u64, len })
    }

    /// Nobody uses it any more.
    pub fn unmap(self) {
        // SAFETY: the caller's promise; the range is a mapping's.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.len) };
    }
}

/// Memory that is filled from `image`.
pub struct Floor {
    pub memory: Mapping,
    window: Mapping,
    userfault: Arc<Userfault>,
    stop: Arc<AtomicBool>,
    answers: Option<JoinHandle<()>>,
}

impl Floor {
    pub fn over(memfd: &File, image: &'static [u8], chunk_len: usize) -> Result<Self> {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let window = Mapping::of(memfd, image.len(), libc::MAP_SHARED, both)?;
        let memory = Mapping::of(memfd, image.len(), libc::MAP_PRIVATE, both)?;
        let (own, userfault) = (Userfault::new(), Userfault::new());
        let (own, userfault) =
            (own.or_say("have a userfaultfd")?, Arc::new(userfault.or_say("have another")?));
        own.register(window.start, image.len() as u64).or_say("register the window")?;
        userfault.register(memory.start, image.len() as u64).or_say("register the memory")?;
        let (reads, stop) = (Arc::clone(&userfault), Arc::new(AtomicBool::new(false)));
        let ends = Arc::clone(&stop);
        let answer = move || {
            let chunk_of = |address: u64| (address - memory.start) as usize / chunk_len * chunk_len;
            while !ends.load(Ordering::Relaxed) {
                wait(&reads);
                let _ = reads.read(|address| {
                    let start = chunk_of(address);
                    let end = (start + chunk_len).min(image.len());
                    let _ = own.copy(window.start + start as u64, &image[start..end]);
                    let _ = reads.wake(memory.start + start as u64, (end - start) as u64);
                });
            }
        };
        let answers = thread::Builder::new().spawn(answer).or_say("start a thread")?;
        Ok(Self { memory, window, userfault, stop, answers: Some(answers) })
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.answers.take().map(JoinHandle::join);
        self.memory.unmap();
        self.window.unmap();
        let _ = &self.userfault;
    }
}

/// Until a fault comes, or a while has passed.
fn wait(userfault: &Userfault) {
    use std::os::fd::AsRawFd;
    let fd = userfault.as_fd().as_raw_fd();
    let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    // SAFETY: the array is as long as is said.
    unsafe { libc::poll(fds.as_mut_ptr(), 1, 100) };
}
