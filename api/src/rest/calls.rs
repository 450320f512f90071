//! Calls of the library for requests: each on a thread of its own meanwhile, which may block.
//!
//! A thread that has answered a call waits for another one for some time: to start a thread takes a fifth of
//! a load's time.

use std::pin::pin;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;
use volt_vmm::{Error, Progress};

use super::error::Fault;
use crate::failure::Failure;
use crate::process::vm_slot::Slot;
use crate::threads;

/// Which calls a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// Most calls.
    Usual,
    /// Snapshots, forks and rewinds, which a VM makes one at a time. They take long, so other calls do not
    /// wait for them.
    Captures,
    /// Scrapes of metrics.
    Scrapes,
    /// Calls that wait for none.
    Ahead,
}

impl Queue {
    /// Most calls at once; others wait.
    const fn most(self) -> usize {
        match self {
            Self::Usual => 4,
            Self::Captures => 1,
            Self::Scrapes => 2,
            Self::Ahead => Semaphore::MAX_PERMITS,
        }
    }
}

/// Longest time for which a thread waits for another call. Scrapes of metrics are often 15 s apart.
const IDLE: Duration = Duration::from_secs(20);

/// The calls of a server. Cloning shares them.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    /// By the number of the queue.
    room: [Arc<Semaphore>; 4],
    /// Their number, with those that wait.
    ongoing: Arc<AtomicUsize>,
    threads: Arc<Threads>,
}

impl Calls {
    pub(super) fn new() -> Self {
        let queues = [Queue::Usual, Queue::Captures, Queue::Scrapes, Queue::Ahead];
        let room = queues.map(|queue| Arc::new(Semaphore::new(queue.most())));
        Self { room, ongoing: Arc::default(), threads: Arc::default() }
    }

    /// Starts a thread for the first call, which then need not wait for it.
    pub(super) fn expect_one(&self) {
        // Where the host refuses the thread now, the call tells it.
        let _ = self.threads.run(Box::new(|| {}));
    }

    /// Whether there is none.
    pub(super) fn are_done(&self) -> bool {
        self.ongoing.load(Ordering::SeqCst) == 0
    }

    /// As [`Calls::run`], in the queue of snapshots. `progress` can cancel it while it waits, too.
    ///
    /// # Errors
    /// As [`Calls::run`]; or [`Error::Cancelled`].
    pub(super) async fn capture<T: Send + 'static>(
        &self,
        slot: Arc<Slot>,
        progress: &Progress,
        act: impl FnOnce(&Slot) -> volt_vmm::Result<T> + Send + 'static,
    ) -> Result<T, Fault> {
        let turn = Arc::new(Turn::default());
        let begin = Arc::clone(&turn);
        let act = move |slot: &Slot| match begin.change_to(Turn::BEGUN) {
            true => act(slot),
            false => Err(Error::Cancelled),
        };
        let mut call = pin!(self.run(slot, Queue::Captures, act));
        loop {
            match timeout(LOOK, &mut call).await {
                Ok(answer) => return answer,
                Err(_) if progress.check().is_err() && turn.change_to(Turn::GIVEN_UP) => {
                    return Err(Error::Cancelled.into());
                }
                Err(_) => {}
            }
        }
    }

    /// Runs a call. One that has begun continues to its end even if the client disconnects; one that waits in
    /// the queue is forgotten then.
    ///
    /// tokio's own threads for this (`spawn_blocking`) panic where the host refuses one.
    ///
    /// # Errors
    /// As the call; or the host refuses a thread.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        slot: Arc<Slot>,
        queue: Queue,
        act: impl FnOnce(&Slot) -> volt_vmm::Result<T> + Send + 'static,
    ) -> Result<T, Fault> {
        let (ongoing, threads) = (Ongoing::new(&self.ongoing), Arc::clone(&self.threads));
        // The semaphore is never closed.
        let room = Arc::clone(&self.room[queue as usize]).acquire_owned().await.ok();
        let call = async move {
            let (answer, answered) = oneshot::channel();
            let body = move || {
                let outcome = act(&slot);
                drop((ongoing, room));
                // The server may have ended.
                let _ = answer.send(outcome);
            };
            threads.run(Box::new(body))?;
            Ok(answered.await.map_err(|_| Fault::panicked())??)
        };
        // A task of its own: that of a client that disconnects ends.
        tokio::spawn(call).await.unwrap_or_else(|_| Err(Fault::panicked()))
    }
}

/// Time between two looks whether a call that waits was cancelled.
const LOOK: Duration = Duration::from_millis(100);

/// Whether a call has begun, or its client has stopped waiting.
#[derive(Debug, Default)]
struct Turn(AtomicU8);

impl Turn {
    const WAITING: u8 = 0;
    const BEGUN: u8 = 1;
    const GIVEN_UP: u8 = 2;

    fn change_to(&self, state: u8) -> bool {
        self.0.compare_exchange(Self::WAITING, state, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// A call with its answer.
type Job = Box<dyn FnOnce() + Send>;

/// The threads of calls.
#[derive(Debug, Default)]
struct Threads {
    waiting: Mutex<Waiting>,
    called: Condvar,
}

#[derive(Default)]
struct Waiting {
    /// Threads that wait for a job.
    threads: usize,
    /// Jobs that these will take; never more than threads.
    jobs: Vec<Job>,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("threads", &self.threads).finish_non_exhaustive()
    }
}

impl Threads {
    /// Runs a job on a thread that waits for one, or on a new one.
    ///
    /// # Errors
    /// The host refuses a thread.
    fn run(self: &Arc<Self>, job: Job) -> Result<(), Failure> {
        let mut waiting = self.lock();
        if waiting.threads > waiting.jobs.len() {
            waiting.jobs.push(job);
            self.called.notify_one();
            return Ok(());
        }
        drop(waiting);
        let threads = Arc::clone(self);
        threads::spawn("api-call", "to answer a request", move || threads.work(job)).map(drop)
    }

    /// Does a job, and each one that comes before the thread has waited too long.
    fn work(&self, mut job: Job) {
        loop {
            job();
            let mut waiting = self.lock();
            waiting.threads += 1;
            let waited = self.called.wait_timeout_while(waiting, IDLE, |waiting| waiting.jobs.is_empty());
            let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
            waiting.threads -= 1;
            match waiting.jobs.pop() {
                Some(next) => job = next,
                None => return,
            }
        }
    }

    // No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
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
            calls.run(Arc::clone(&slot), Queue::Usual, move |_| {
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
        assert!(most <= Some(Queue::Usual.most()), "{most:?}");
        assert!(calls.are_done());
    }

    #[test]
    fn thread_that_waits_takes_the_next_call_and_others_get_threads_of_their_own() {
        let (calls, slot) = (Calls::new(), Arc::new(Slot::new()));
        calls.expect_one();
        while calls.threads.lock().threads == 0 {
            std::thread::yield_now();
        }
        let one = || calls.run(Arc::clone(&slot), Queue::Usual, |_| Ok(std::thread::current().id()));
        let runtime = runtime();
        let first = runtime.block_on(one()).unwrap();
        while calls.threads.lock().threads == 0 {
            std::thread::yield_now();
        }
        assert_eq!(runtime.block_on(one()).unwrap(), first);
        let meet = Arc::new(std::sync::Barrier::new(3));
        let together = || {
            let meet = Arc::clone(&meet);
            calls.run(Arc::clone(&slot), Queue::Usual, move |_| {
                meet.wait();
                Ok(std::thread::current().id())
            })
        };
        let (a, b, c) = runtime.block_on(async { tokio::join!(together(), together(), together()) });
        let ids = [a, b, c].map(Result::unwrap);
        assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "{ids:?}");
    }

    #[test]
    fn call_of_a_client_that_disconnects_runs_to_its_end() {
        let (calls, slot) = (Calls::new(), Arc::new(Slot::new()));
        let (go_on, wait) = mpsc::channel();
        let (say, said) = mpsc::channel();
        runtime().block_on(async {
            let call = calls.run(slot, Queue::Usual, move |_| {
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
    fn waiting_capture_delays_no_other_call_and_is_forgotten_with_its_client() {
        let (calls, slot) = (Calls::new(), Arc::new(Slot::new()));
        let (go_on, wait) = mpsc::channel::<()>();
        runtime().block_on(async {
            let first = calls.run(Arc::clone(&slot), Queue::Captures, move |_| {
                wait.recv().unwrap();
                Ok(())
            });
            let mut first = std::pin::pin!(first);
            let soon = Duration::from_millis(1);
            assert!(tokio::time::timeout(soon, first.as_mut()).await.is_err());
            for _ in 0..2 * Queue::Usual.most() {
                let other = calls.run(Arc::clone(&slot), Queue::Captures, |_| -> volt_vmm::Result<()> {
                    panic!("its client has gone")
                });
                assert!(tokio::time::timeout(soon, other).await.is_err());
            }
            calls.run(Arc::clone(&slot), Queue::Usual, |_| Ok(())).await.unwrap();
            go_on.send(()).unwrap();
            first.await.unwrap();
            calls.run(Arc::clone(&slot), Queue::Captures, |_| Ok(())).await.unwrap();
        });
    }

    #[test]
    fn panic_of_a_call_is_answered() {
        let (calls, slot) = (Calls::new(), Arc::new(Slot::new()));
        let fault =
            runtime().block_on(calls.run::<()>(slot, Queue::Usual, |_| panic!("on purpose"))).unwrap_err();
        assert!(format!("{fault:?}").contains("has a bug"), "{fault:?}");
        while !calls.are_done() {
            std::thread::yield_now();
        }
    }
}
