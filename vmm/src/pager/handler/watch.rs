//! The thread that ends a VM whose memory handler does not answer.
//!
//! The handler says nothing over its socket, and may close it while it works. A thread that waits in a fault
//! shows in the userfaultfd, whether the handler has read the fault or not; so does an event that it has not
//! read. A busy VM may have another fault at each look, so pages that come meanwhile count as answers.
//!
//! ```text
//!   Idle ── a thread waits ──> Waiting ── for the whole patience, and no page came ──> the VM ends
//!    ^                           │ ^ │
//!    └──── no thread waits ──────┘ └─┴── a page came: the time starts anew
//! ```

use std::sync::Weak;
use std::time::{Duration, Instant};

use super::ClientState;
use crate::memory::dirty::populated::mapped_pages_at;
use crate::memory::lazy::faults::Faults;
use crate::memory::page_set::PageSet;

/// Number of looks within the patience.
const TICKS: u32 = 6;
/// Shortest time between two looks.
const SHORTEST_TICK: Duration = Duration::from_millis(20);
/// Time between two attempts to release threads that wait for unavailable memory.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// A wait that no page has ended yet.
struct Wait {
    since: Instant,
    /// The pages that were present then. Absent if the host does not tell.
    pages: Option<PageSet>,
}

impl Wait {
    fn begin(faults: &Faults) -> Self {
        Self { since: Instant::now(), pages: present(faults) }
    }

    /// Whether a page has come since. Pages that have gone, by a rewind or a balloon, count too: one that has
    /// gone and come again looks like one that was there.
    fn has_ended(&self, faults: &Faults) -> bool {
        self.pages.as_ref().zip(present(faults)).is_some_and(|(before, now)| *before != now)
    }
}

impl ClientState {
    /// Watches until the VM ends.
    pub(super) fn watch(&self, faults: &Weak<Faults>) {
        let tick = (self.handler.patience / TICKS).max(SHORTEST_TICK);
        let mut wait: Option<Wait> = None;
        while !self.wait_for_end(tick) {
            let Some(alive) = faults.upgrade() else { return };
            wait = match wait.take() {
                _ if !alive.has_waiting_thread() => None,
                Some(wait) if !wait.has_ended(&alive) => Some(wait),
                _ => Some(Wait::begin(&alive)),
            };
            drop(alive);
            if wait.as_ref().is_some_and(|wait| wait.since.elapsed() >= self.handler.patience) {
                self.give_up(faults);
                return;
            }
        }
    }
}

fn present(faults: &Faults) -> Option<PageSet> {
    let pages = mapped_pages_at(faults.start(), faults.len());
    pages.inspect_err(|error| log::debug!("cannot tell whether the memory handler answers: {error}")).ok()
}
