//! The longest pause that a capture may cause, and whether the next one would keep to it.
//!
//! A pause copies the pages that are left and saves the state. The pages are known before the pause begins, and passes have shown
//! how long a page takes: a pause that cannot keep to the limit does not begin. A pause that turns out longer (the devices finish
//! a slow transfer first, the host runs something else) ends as soon as that is known, and the passes go on.
//!
//! Before the vCPUs stand still the disks take no requests for as long as they finish those under way. The
//! limit counts that too: a guest that waits for its disk stands still as well. The disks get what the limit
//! leaves beside the pause itself. Disks that take longer are let go on, and asked again later.

use std::time::{Duration, Instant};

use crate::error::Error;
use crate::machine::running::PauseTimes;
use crate::memory::PAGE;

/// The guest is given so long, after the first pass, to write little enough.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pauses that took too long, before there is no other.
const MOST_OVERRUNS: u32 = 5;
/// A page's copy, before a pass has shown how long it takes.
const USUAL_PAGE: Duration = Duration::from_micros(1);
/// A pass of fewer pages shows little of how long one takes.
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
    /// How often disks did not come to rest in time.
    waits: u32,
    /// How long the vCPUs stood still in the last pause that was too long.
    standstill: Duration,
}

/// A look at a guest that runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirtySample {
    /// Pages that were written, and have not been copied since.
    pub left: u64,
    /// Pages that were written since the look before this one.
    pub written: u64,
    /// Time since the look before this one.
    pub within: Duration,
    /// Passes so far.
    pub passes: u32,
}

impl PauseLimit {
    /// Begins with the end of the first pass.
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

    /// A pass copied so many pages.
    pub(crate) fn copied(&mut self, pages: u64, took: Duration) {
        if let Ok(pages @ ENOUGH..) = u32::try_from(pages).map(u64::from) {
            self.page = took / pages as u32;
        }
    }

    /// Whether a pause that has lasted so long can copy so many pages in time.
    pub(crate) fn allows(&self, lasted: Duration, pages: u64) -> bool {
        lasted + self.copying(pages) <= self.longest
    }

    /// The time that disks may take to come to rest before a pause that copies so many pages. At least a
    /// quarter of the limit: how long a pause takes is known from one pause, which the host may have held
    /// up.
    pub(crate) fn for_disks(&self, pages: u64) -> Duration {
        let pause = self.copying(pages).saturating_add(self.standstill.min(self.longest / 2));
        self.longest.saturating_sub(pause).max(self.longest / 4)
    }

    /// The guest stood still for too long, or would have. Returns whether its disks were the cause: another
    /// moment may suit them.
    pub(crate) fn overran(&mut self, stood: PauseTimes) -> bool {
        // Without a pause the disks did not come to rest in time.
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

    /// The error, once there is no use in going on.
    pub(crate) fn hopeless(&self, act: &'static str, look: DirtySample) -> Option<Error> {
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
                "after {} passes in {lasted:.1?} the guest writes {} MiB/s where {} MiB/s are copied, and the {:.1} MiB \
                 that are left take {:.1?}",
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
        assert!(limit.hopeless("take a snapshot", look(10_000)).is_none(), "there is time left");
        limit.began -= PATIENCE;
        let text = limit.hopeless("take a snapshot", look(10_240)).unwrap().to_string();
        let expected = "cannot take a snapshot within a pause of 5ms: after 7 passes in 10.0s the guest writes 300 MiB/s \
                        where 976 MiB/s are copied, and the 40.0 MiB that are left take 41.0ms; allow a longer pause, or \
                        wait until the guest does less";
        assert_eq!(text, expected);
    }

    #[test]
    fn pauses_that_took_too_long_are_counted() {
        let mut limit = PauseLimit::new(FIVE);
        (0..MOST_OVERRUNS).for_each(|_| {
            assert!(limit.hopeless("take a snapshot", look(1)).is_none());
            let stood = PauseTimes { disks: Duration::from_micros(300), vcpus: Duration::from_millis(7) };
            assert!(!limit.overran(stood), "the disks took little of it");
        });
        let text = limit.hopeless("take a snapshot", look(1)).unwrap().to_string();
        assert!(text.contains("5 pauses took longer, the last 7.3ms; allow"), "{text}");
    }

    #[test]
    fn error_says_that_disks_did_not_come_to_rest() {
        let mut limit = PauseLimit::new(FIVE);
        (0..8).for_each(|_| assert!(limit.overran(stood(6000, 0))));
        assert!(limit.hopeless("take a snapshot", look(1)).is_none(), "they may yet");
        limit.began -= PATIENCE;
        let text = limit.hopeless("take a snapshot", look(1)).unwrap().to_string();
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

    /// A flush that takes a little less than the limit leaves too little of it for the pause.
    #[test]
    fn pauses_that_disks_made_too_long_leave_time_for_another_moment() {
        let mut limit = PauseLimit::new(FIVE);
        (0..10 * MOST_OVERRUNS).for_each(|_| {
            assert!(limit.overran(stood(4600, 800)));
            assert!(limit.hopeless("take a snapshot", look(1)).is_none());
        });
        assert!(!limit.overran(stood(4600, 5100)), "the pause alone took too long");
        limit.began -= PATIENCE;
        let text = limit.hopeless("take a snapshot", look(1)).unwrap().to_string();
        assert!(text.contains("50 times the disks took too long"), "{text}");
    }
}
