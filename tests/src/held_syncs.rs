//! Syncs of a child that wait for the test. A seccomp filter reports each sync to the test, and the child's
//! thread waits for the test's answer.
//!
//! ```text
//! HeldSyncs ──apply──> pre_exec: seccomp ──> listener ──SCM_RIGHTS──> the test's thread: lets each go on, unless held
//! ```
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::kvm_shim::{SYNCS, answer_to};
use crate::notified::{self, Answer};
use crate::patience::wait_until;

/// See the module. On drop all syncs go on.
#[derive(Debug)]
pub struct HeldSyncs {
    far: UnixStream,
    state: Arc<(Mutex<Holding>, Condvar)>,
}

#[derive(Debug, Default)]
struct Holding {
    is_holding: bool,
    held: u32,
}

impl HeldSyncs {
    /// Makes a holder that holds no sync yet.
    ///
    /// # Panics
    /// The host refuses a socket.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "starts a thread")]
    pub fn new() -> Self {
        let (near, far) = UnixStream::pair().expect("make a socket");
        let state = Arc::<(Mutex<Holding>, Condvar)>::default();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            if let Some(listener) = notified::receive(&near) {
                while pass_on(&listener, &shared).is_ok() {}
            }
        });
        Self { far, state }
    }

    /// Lets the test hold a command's syncs.
    ///
    /// # Panics
    /// The host refuses a descriptor.
    pub fn apply(&self, command: &mut Command) {
        let far = self.far.try_clone().expect("duplicate a socket");
        let program = answer_to(&SYNCS, libc::SECCOMP_RET_USER_NOTIF);
        // SAFETY: between fork and exec only system calls are made, on a program that exists already.
        unsafe {
            command.pre_exec(move || notified::send(far.as_fd(), notified::install(&program)?.as_fd()))
        };
    }

    /// Holds each sync that begins from now on.
    pub fn hold(&self) {
        self.lock().is_holding = true;
    }

    /// Waits until a sync is held.
    ///
    /// # Panics
    /// No sync is held in time.
    pub fn wait_held(&self) {
        wait_until("the VM syncs", || self.lock().held > 0);
    }

    /// Lets held and later syncs go on.
    pub fn release(&self) {
        self.lock().is_holding = false;
        self.state.1.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Holding> {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HeldSyncs {
    fn drop(&mut self) {
        self.release();
    }
}

/// Lets one call go on when the test allows it. Returns an error when the child is gone.
fn pass_on(listener: &OwnedFd, (state, changed): &(Mutex<Holding>, Condvar)) -> io::Result<()> {
    let Some(call) = notified::next(listener)? else { return Ok(()) };
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    state.held += u32::from(state.is_holding);
    while state.is_holding {
        state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    drop(state);
    notified::answer(listener, &call, Answer::Continue);
    Ok(())
}
