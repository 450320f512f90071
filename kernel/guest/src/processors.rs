//! `load`: keeps every processor busy.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::console;
use crate::outcome::Outcome;
use crate::sleepers::in_background;
use crate::system;

static ROUNDS: AtomicU64 = AtomicU64::new(0);

/// `load SECONDS`: runs a busy thread per processor, and prints `loaded SECONDS` at the end.
pub(crate) fn load(seconds: u64) -> Outcome {
    let end = Instant::now() + Duration::from_secs(seconds);
    for _ in 1..system::online_processors() {
        in_background(move || spin_until(end))?;
    }
    in_background(move || {
        spin_until(end);
        console::line(&format!("loaded {seconds}"));
    })
}

fn spin_until(end: Instant) {
    while Instant::now() < end {
        ROUNDS.fetch_add(1, Ordering::Relaxed);
    }
}
