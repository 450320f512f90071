//! A limit for log lines that a guest can cause. A guest that misuses its devices in a loop must not fill the
//! host's disk.

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use log::Level;

use crate::sync::lock;

/// Number of lines logged without a wait.
const BURST: u32 = 8;
/// Time that earns one more line.
const INTERVAL: Duration = Duration::from_secs(10);

/// The limit of one device. It outlives the device's resets.
#[derive(Debug)]
pub(crate) struct LogLimit(Mutex<Budget>);

#[derive(Debug)]
struct Budget {
    left: u32,
    /// Time at which `left` was last updated.
    counted_to: Instant,
    /// Number of lines omitted since the last one that was logged.
    left_out: u64,
    #[cfg(test)]
    written: u64,
}

impl LogLimit {
    pub fn new() -> Self {
        Self(Mutex::new(Budget::from(Instant::now())))
    }

    /// Logs a line if the limit allows one. Adds the number of lines omitted before it. Returns whether it
    /// was allowed.
    pub fn log(&self, level: Level, line: fmt::Arguments<'_>) -> bool {
        let admitted = lock(&self.0).admit(Instant::now());
        match admitted {
            None => {}
            Some(0) => log::log!(level, "{line}"),
            Some(left_out) => {
                log::log!(level, "{line} ({left_out} earlier lines of this device were left out)")
            }
        }
        admitted.is_some()
    }

    /// The logged lines.
    #[cfg(test)]
    pub fn written(&self) -> u64 {
        lock(&self.0).written
    }

    #[cfg(test)]
    pub fn left_out(&self) -> u64 {
        lock(&self.0).left_out
    }

    /// Logs a warning.
    pub fn warn(&self, line: fmt::Arguments<'_>) {
        self.log(Level::Warn, line);
    }
}

impl Budget {
    fn from(now: Instant) -> Self {
        Self {
            left: BURST,
            counted_to: now,
            left_out: 0,
            #[cfg(test)]
            written: 0,
        }
    }

    /// Returns the number of lines omitted before this one, or `None` if the limit does not allow it.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        let intervals = now.saturating_duration_since(self.counted_to).as_nanos() / INTERVAL.as_nanos();
        let earned = u32::try_from(intervals).unwrap_or(BURST).min(BURST);
        self.left = BURST.min(self.left + earned);
        // A full budget earns nothing. Otherwise a part of an interval counts towards the next line.
        self.counted_to = if self.left == BURST { now } else { self.counted_to + INTERVAL * earned };
        if self.left == 0 {
            self.left_out += 1;
            return None;
        }
        self.left -= 1;
        #[cfg(test)]
        {
            self.written += 1;
        }
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_a_burst_are_counted_and_left_out() {
        let start = Instant::now();
        let mut budget = Budget::from(start);
        let written = (0..1000).filter_map(|_| budget.admit(start)).collect::<Vec<_>>();
        assert_eq!(written, [0; BURST as usize]);
        assert_eq!(budget.admit(start + INTERVAL - Duration::from_millis(1)), None);
        assert_eq!(budget.admit(start + INTERVAL), Some(1000 - u64::from(BURST) + 1));
        assert_eq!(budget.admit(start + INTERVAL), None);
        assert_eq!(budget.admit(start + 2 * INTERVAL), Some(1));
        let later = start + 100 * INTERVAL;
        assert_eq!(
            (0..1000).filter_map(|_| budget.admit(later)).count(),
            BURST as usize,
            "no more than a burst"
        );
    }
}
