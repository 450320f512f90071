//! The limit on a capture's pause: decides whether the next pause can keep it.
//!
//! A pause copies the pages left and saves the state. The number of pages is known before, and passes have
//! measured the time for a page, so a pause that cannot keep the limit does not begin. A pause that overruns
//! (devices finish a slow transfer, the host schedules something else) ends as soon as the overrun is
//! certain, and the passes go on.
//!
//! Before the vCPUs stop, the disks accept no requests until those under way have finished. The limit covers
//! this time too, because a guest that waits for its disk stands still as well. The disks may use what the
//! pause itself leaves of the limit. Disks that need longer resume, and the capture asks them again later.

use std::time::{Duration, Instant};

use crate::error::Error;
use crate::machine::shared::PauseTimes;
use crate::memory::PAGE;

/// The time after the first pass within which the guest must write little enough.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most pauses that may overrun. The capture fails after them.
const MOST_OVERRUNS: u32 = 5;
/// Assumed time to copy a page, until a pass has measured it.
const USUAL_PAGE: Duration = Duration::from_micros(1);
/// The fewest pages from which a pass tells the time for one.
const ENOUGH: u64 = 64;

/// See the module.
#[derive(Debug)]
pub(crate) struct PauseLimit {
    longest: Duration,
    page: Duration,
    /// The end of the first pass.
    began: Instant,
    overruns: u32,
    last_overrun: Duration,
    /// Number of times that disks did not drain in time.
    waits: u32,
    /// Pause of the vCPUs in the last attempt that overran.
    standstill: Duration,
}

/// A sample of a running guest's writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirtySample {
    /// Pages written and not copied since.
    pub left: u64,
    /// Pages written since the last sample.
    pub written: u64,
    /// Time since the last sample.
    pub within: Duration,
    /// Passes until now.
    pub passes: u32,
}

impl PauseLimit {
    /// Starts the limit's clock at the end of the first pass.
    pub(crate) fn new(longest: Duration) -> Self {
        Self {
            longest,
            page: USUAL_PAGE,
            began: Instant::now(),
            overruns: 0,
            last_overrun: Duration::ZERO,
            waits: 0,
            standstill: Duration::ZERO,
        }
    }

    /// Records that a pass copied `pages` in the time `took`.
    pub(crate) fn copied(&mut self, pages: u64, took: Duration) {
        if let Ok(pages @ ENOUGH..) = u32::try_from(pages).map(u64::from) {
            self.page = took / pages as u32;
        }
    }

    /// Whether a pause that has lasted for `lasted` can copy `pages` in time.
    pub(crate) fn allows(&self, lasted: Duration, pages: u64) -> bool {
        lasted + self.copying(pages) <= self.longest
    }

    /// The time for disks to drain before a pause that copies `pages`. It is at least a quarter of the limit:
    /// the cost of a pause is known from a single one, which the host may have delayed.
    pub(crate) fn for_disks(&self, pages: u64) -> Duration {
        let pause = self.copying(pages).saturating_add(self.standstill.min(self.longest / 2));
        self.longest.saturating_sub(pause).max(self.longest / 4)
    }

    /// Counts a pause that overran or would have. Returns whether the disks were the cause, so that another
    /// moment may suit them.
    pub(crate) fn overran(&mut self, stood: PauseTimes) -> bool {
        // Without a pause, the disks were too slow to drain.
        let for_disks =
            stood.vcpus.is_zero() || stood.disks > self.longest / 2 && stood.vcpus <= self.longest;
        if !stood.vcpus.is_zero() {
            self.standstill = stood.vcpus;
        }
        if for_disks {
            self.waits += 1;
        } else {
            self.overruns += 1;
            self.last_overrun = stood.whole();
        }
        for_disks
    }

    /// Returns the error once no further pass can help.
    pub(crate) fn error_if_out_of_tries(&self, act: &'static str, look: DirtySample) -> Option<Error> {
        let lasted = self.began.elapsed();
        if self.overruns < MOST_OVERRUNS && lasted < PATIENCE {
            return None;
        }
        let fits = self.allows(Duration::ZERO, look.left);
        let problem = if self.waits > 0 && self.overruns < MOST_OVERRUNS && fits {
            format!("{} times the disks took too long to finish the requests under way", self.waits)
        } else if self.overruns > 0 && fits {
            format!("{} pauses took longer, the last {:.1?}", self.overruns, self.last_overrun)
        } else {
            format!(
                "after {} passes in {lasted:.1?} the guest writes {} MiB/s while {} MiB/s are copied, and \
                 copying the remaining {:.1} MiB takes {:.1?}",
                look.passes,
                mib_a_second(look.written, look.within),
                mib_a_second(1, self.page),
                (look.left * PAGE) as f64 / f64::from(1 << 20),
                self.copying(look.left)
            )
        };
        Some(Error::PauseTooLong { act, limit: self.longest, problem })
    }

    fn copying(&self, pages: u64) -> Duration {
        self.page.saturating_mul(u32::try_from(pages).unwrap_or(u32::MAX))
    }
}

fn mib_a_second(pages: u64, within: Duration) -> u64 {
    ((pages * PAGE) as f64 / within.as_secs_f64().max(1e-9)) as u64 >> 20
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIVE: Duration = Duration::from_millis(5);

    fn look(left: u64) -> DirtySample {
        DirtySample { left, written: 256 * 300, within: Duration::from_secs(1), passes: 7 }
    }

    #[test]
    fn pause_is_allowed_while_the_copy_fits_into_what_is_left_of_it() {
        let mut limit = PauseLimit::new(FIVE);
        limit.copied(1000, Duration::from_millis(2));
        assert!(limit.allows(Duration::ZERO, 2500));
        assert!(!limit.allows(Duration::ZERO, 2501));
        assert!(!limit.allows(Duration::from_millis(1), 2500));
        limit.copied(ENOUGH - 1, Duration::from_secs(1));
        assert!(limit.allows(Duration::ZERO, 2500), "few pages show little");
        assert!(!limit.allows(Duration::ZERO, u64::MAX));
    }

    #[test]
    fn error_says_what_was_measured() {
        let mut limit = PauseLimit::new(FIVE);
        limit.copied(1000, Duration::from_millis(4));
        assert!(limit.error_if_out_of_tries("take a snapshot", look(10_000)).is_none(), "there is time left");
        limit.began -= PATIENCE;
        let text = limit.error_if_out_of_tries("take a snapshot", look(10_240)).unwrap().to_string();
        let expected = "cannot take a snapshot within a pause of 5ms: after 7 passes in 10.0s the guest \
                        writes 300 MiB/s while 976 MiB/s are copied, and copying the remaining 40.0 MiB \
                        takes 41.0ms; allow a longer pause, or wait until the guest does less";
        assert_eq!(text, expected);
    }

    #[test]
    fn pauses_that_took_too_long_are_counted() {
        let mut limit = PauseLimit::new(FIVE);
        (0..MOST_OVERRUNS).for_each(|_| {
            assert!(limit.error_if_out_of_tries("take a snapshot", look(1)).is_none());
            let stood = PauseTimes { disks: Duration::from_micros(300), vcpus: Duration::from_millis(7) };
            assert!(!limit.overran(stood), "the disks took little of it");
        });
        let text = limit.error_if_out_of_tries("take a snapshot", look(1)).unwrap().to_string();
        assert!(text.contains("5 pauses took longer, the last 7.3ms; allow"), "{text}");
    }

    #[test]
    fn error_says_that_disks_did_not_come_to_rest() {
        let mut limit = PauseLimit::new(FIVE);
        (0..8).for_each(|_| assert!(limit.overran(stood(6000, 0))));
        assert!(limit.error_if_out_of_tries("take a snapshot", look(1)).is_none(), "they may yet");
        limit.began -= PATIENCE;
        let text = limit.error_if_out_of_tries("take a snapshot", look(1)).unwrap().to_string();
        assert!(
            text.contains("8 times the disks took too long to finish the requests under way; allow"),
            "{text}"
        );
    }

    fn stood(disks: u64, vcpus: u64) -> PauseTimes {
        PauseTimes { disks: Duration::from_micros(disks), vcpus: Duration::from_micros(vcpus) }
    }

    #[test]
    fn disks_get_what_the_pause_leaves_of_the_limit() {
        let mut limit = PauseLimit::new(FIVE);
        limit.copied(1000, Duration::from_millis(1));
        assert_eq!(limit.for_disks(0), FIVE);
        assert_eq!(limit.for_disks(1000), Duration::from_millis(4));
        assert_eq!(limit.for_disks(u64::MAX), FIVE / 4, "a look at idle disks takes little");
        limit.overran(stood(100, 5200));
        assert_eq!(limit.for_disks(0), FIVE / 2, "one pause that the host held up shows little");
        limit.overran(stood(4600, 800));
        assert_eq!(limit.for_disks(1000), Duration::from_micros(3200));
        limit.overran(stood(3200, 0));
        assert_eq!(limit.for_disks(1000), Duration::from_micros(3200), "there was no pause");
    }

    /// A flush slightly shorter than the limit leaves too little of it for the pause.
    #[test]
    fn pauses_that_disks_made_too_long_leave_time_for_another_moment() {
        let mut limit = PauseLimit::new(FIVE);
        (0..10 * MOST_OVERRUNS).for_each(|_| {
            assert!(limit.overran(stood(4600, 800)));
            assert!(limit.error_if_out_of_tries("take a snapshot", look(1)).is_none());
        });
        assert!(!limit.overran(stood(4600, 5100)), "the pause alone took too long");
        limit.began -= PATIENCE;
        let text = limit.error_if_out_of_tries("take a snapshot", look(1)).unwrap().to_string();
        assert!(text.contains("50 times the disks took too long"), "{text}");
    }
}
