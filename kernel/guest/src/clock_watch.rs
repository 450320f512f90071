//! `watch-clock`: a thread for each processor, which finds out if the monotonic clock goes back, on one
//! processor or between two of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::console;
use crate::outcome::Outcome;
use crate::sleepers;
use crate::system;

const INTERVAL: Duration = Duration::from_millis(20);

/// The latest time that a processor has read, in nanoseconds.
static LATEST: AtomicU64 = AtomicU64::new(0);

/// `watch-clock`: prints `clock went back from A to B on processor P, which read C before`, in nanoseconds,
/// each time it does.
pub(crate) fn watch_clock() -> Outcome {
    (0..system::online_processors()).try_for_each(|processor| {
        sleepers::in_background(move || {
            system::run_on(processor);
            let mut own = 0;
            loop {
                let latest = LATEST.load(Ordering::SeqCst);
                let now = sleepers::monotonic().as_nanos() as u64; // a u64 holds 500 years
                LATEST.fetch_max(now, Ordering::SeqCst);
                if now < latest {
                    console::line(&format!(
                        "clock went back from {latest} to {now} on processor {processor}, \
                         which read {own} before"
                    ));
                }
                own = now;
                std::thread::sleep(INTERVAL);
            }
        })
    })
}
