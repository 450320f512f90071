//! Calls of the library for requests: each on a thread of its own, which may block.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Semaphore, oneshot};

use super::error::Fault;
use crate::process::vm_slot::Slot;
use crate::threads;

/// Most calls at once; others wait.
const MOST: usize = 4;

/// The calls of a server. Cloning shares them.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    room: Arc<Semaphore>,
    /// Their number, with those that wait.
    ongoing: Arc<AtomicUsize>,
}

impl Calls {
    pub(super) fn new() -> Self {
        Self { room: Arc::new(Semaphore::new(MOST)), ongoing: Arc::default() }
    }

    /// Whether there is none.
    pub(super) fn are_done(&self) -> bool {
        self.ongoing.load(Ordering::SeqCst) == 0
    }

    /// Runs a call, which continues to its end even if the client disconnects.
    ///
    /// tokio's own threads for this (`spawn_blocking`) panic where the host refuses one.
    ///
    /// # Errors
    /// As the call; or the host refuses a thread.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        slot: Arc<Slot>,
        act: impl FnOnce(&Slot) -> volt_vmm::Result<T> + Send + 'static,
    ) -> Result<T, Fault> {
        let (ongoing, room) = (Ongoing::new(&self.ongoing), Arc::clone(&self.room));
        let call = async move {
            // The semaphore is never closed.
            let room = room.acquire_owned().await;
            let (answer, answered) = oneshot::channel();
            let body = move || {
                let outcome = act(&slot);
                drop((ongoing, room));
                // The server may have ended.
                let _ = answer.send(outcome);
            };
            threads::spawn("api-call", "to answer a request", body)?;
            Ok(answered.await.map_err(|_| Fault::panicked())??)
        };
        // A task of its own: that of a client that disconnects ends.
        tokio::spawn(call).await.unwrap_or_else(|_| Err(Fault::panicked()))
    }
}

/// Counts a call until it is dropped.
struct Ongoing(Arc<AtomicUsize>);

impl Ongoing {
    fn new(calls: &Arc<AtomicUsize>) -> Self {
        calls.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(calls))
    }
}

impl Drop for Ongoing {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn no_more_calls_run_at_once_than_there_is_room_for() {
        let (calls, slot) = (Calls::new(), Arc::new(Slot::new()));
        let running = Arc::new(AtomicUsize::new(0));
        let one = || {
            let running = Arc::clone(&running);
            calls.run(Arc::clone(&slot), move |_| {
                let at_once = running.fetch_add(1, Ordering::SeqCst) + 1;
                std::thread::sleep(Duration::from_millis(20));
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(at_once)
            })
        };
        let most = runtime().block_on(async {
            let (a, b, c, d, e, f) = tokio::join!(one(), one(), one(), one(), one(), one());
            [a, b, c, d, e, f].map(Result::unwrap).into_iter().max()
        });
        assert!(most <= Some(MOST), "{most:?}");
        assert!(calls.are_done());
    }

    #[test]
    fn call_of_a_client_that_disconnects_runs_to_its_end() {
        let (calls, slot) = (Calls::new(), Arc::new(Slot::new()));
        let (go_on, wait) = mpsc::channel();
        let (say, said) = mpsc::channel();
        runtime().block_on(async {
            let call = calls.run(slot, move |_| {
                wait.recv().unwrap();
                say.send(()).unwrap();
                Ok(())
            });
            assert!(tokio::time::timeout(Duration::from_millis(1), call).await.is_err());
        });
        assert!(!calls.are_done());
        go_on.send(()).unwrap();
        said.recv().unwrap();
        while !calls.are_done() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn panic_of_a_call_is_answered() {
        let (calls, slot) = (Calls::new(), Arc::new(Slot::new()));
        let fault = runtime().block_on(calls.run::<()>(slot, |_| panic!("on purpose"))).unwrap_err();
        assert!(format!("{fault:?}").contains("has a bug"), "{fault:?}");
        while !calls.are_done() {
            std::thread::yield_now();
        }
    }
}
