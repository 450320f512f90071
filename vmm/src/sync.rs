//! Locks that outlive a panic. The VM of a thread that panicked ends, and ending it still takes the lock. And
//! events, which wake other threads.

use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, poisoned or not.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until `condition` no longer holds.
pub(crate) fn wait_while<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    condition: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    changed.wait_while(guard, condition).unwrap_or_else(PoisonError::into_inner)
}

/// Threads wait until it is opened. It stays open.
#[derive(Debug, Default)]
pub(crate) struct Latch {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Latch {
    pub fn open(&self) {
        *lock(&self.is_open) = true;
        self.opened.notify_all();
    }

    pub fn wait(&self) {
        drop(wait_while(&self.opened, lock(&self.is_open), |is_open| !*is_open));
    }
}

/// Adds `count` to an event (eventfd(2)), which wakes those that wait for it. Tries twice: a thread that
/// nobody wakes would wait for ever. An event that is full wakes them anyway.
pub(crate) fn signal(event: impl AsFd, count: u64) {
    let write = || rustix::io::write(&event, &count.to_ne_bytes());
    let _ = write().or_else(|_| write());
}
