//! Places of connections: so many are open at once, and more wait.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Places {
    taken: Mutex<usize>,
    freed: Condvar,
}

/// A place, until this is dropped.
#[derive(Debug)]
pub(super) struct Place(Arc<Places>);

impl Places {
    /// Takes a place, once fewer than `most` are taken.
    pub(super) fn take(self: &Arc<Self>, most: usize) -> Place {
        let wait = self.freed.wait_while(self.lock(), |taken| *taken >= most);
        *wait.unwrap_or_else(PoisonError::into_inner) += 1;
        Place(Arc::clone(self))
    }

    /// Waits until all places are free, or for this time.
    pub(super) fn await_free(&self, patience: Duration) {
        drop(self.freed.wait_timeout_while(self.lock(), patience, |taken| *taken > 0));
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        // A number has no broken state.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Self(places) = self;
        *places.lock() -= 1;
        places.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn taker_waits_until_a_place_is_free() {
        let places = Arc::new(Places::default());
        let (first, _second) = (places.take(2), places.take(2));
        let is_freed = Arc::new(AtomicBool::new(false));
        let taker = thread::spawn({
            let (places, is_freed) = (Arc::clone(&places), Arc::clone(&is_freed));
            move || {
                let _third = places.take(2);
                assert!(is_freed.load(Ordering::SeqCst));
            }
        });
        is_freed.store(true, Ordering::SeqCst);
        drop(first);
        taker.join().unwrap();
        places.await_free(Duration::ZERO);
        assert_eq!(*places.lock(), 1);
    }
}
