//! A rate limit: a token bucket for bytes and one for operations, as in Firecracker.
//!
//! ```text
//!            one_time_burst ──> burst ─┐ first          size tokens in refill_time
//!                                      ├──> a request       │ (never above size)
//!            size ───────────> level ──┘ then               v
//!                                ^────────────────────── refill
//! ```
//!
//! A request larger than a whole bucket is admitted when the bucket is full. It takes the level below zero, a
//! debt that is paid before the next request. Without this rule it would never be admitted. Nothing is
//! rounded: a fraction of a token is kept.

use std::time::{Duration, Instant};

use crate::config::devices::{Bucket, RateLimit};
use crate::counters::device::LimitWaits;

/// Longest wait, and longest time that earns tokens: 146 years. It keeps every product below within 128 bits.
const FOR_EVER: u64 = 1 << 62;
const NANOS_PER_MILLI: u128 = 1_000_000;

/// The two buckets of one direction of a device.
#[derive(Debug)]
pub struct RateLimiter {
    bytes: Option<Tokens>,
    ops: Option<Tokens>,
    waits: LimitWaits,
}

impl RateLimiter {
    /// Makes a limiter whose buckets are full.
    #[must_use]
    pub fn new(limit: &RateLimit) -> Self {
        let RateLimit { bandwidth, ops } = limit;
        let waits = LimitWaits::default();
        Self { bytes: bandwidth.and_then(Tokens::new), ops: ops.and_then(Tokens::new), waits }
    }

    /// Whether everything is admitted at once.
    #[cfg(test)]
    fn is_unlimited(&self) -> bool {
        self.bytes.is_none() && self.ops.is_none()
    }

    /// Counts one operation of `bytes` bytes.
    ///
    /// # Errors
    /// The operation is over the limit. Nothing is counted. Returns the time to ask again.
    pub fn admit(&mut self, now: Instant, bytes: u64) -> Result<(), Instant> {
        self.check(now, bytes)?;
        self.spend(bytes);
        Ok(())
    }

    /// Checks whether one operation of `bytes` bytes would be admitted. Counts nothing.
    ///
    /// # Errors
    /// The operation is over the limit. Returns the time to ask again.
    pub fn check(&mut self, now: Instant, bytes: u64) -> Result<(), Instant> {
        let mut wait = 0;
        for (bucket, count) in [(self.bytes.as_mut(), bytes), (self.ops.as_mut(), 1)] {
            if let Some(bucket) = bucket {
                bucket.refill(now);
                wait = wait.max(bucket.nanos_until(count));
            }
        }
        if wait > 0 {
            self.waits.refused(now);
            return Err(now + Duration::from_nanos(wait));
        }
        self.waits.admitted(now);
        Ok(())
    }

    /// The waits since the device last counted them.
    pub fn waits(&mut self) -> &mut LimitWaits {
        &mut self.waits
    }

    /// Counts one operation of `bytes` bytes, even over the limit: later operations wait for the debt.
    pub fn spend(&mut self, bytes: u64) {
        for (bucket, count) in [(self.bytes.as_mut(), bytes), (self.ops.as_mut(), 1)] {
            if let Some(bucket) = bucket {
                bucket.charge(count);
            }
        }
    }

    /// Sets another limit. A changed bucket starts full; an unchanged one continues.
    pub fn change(&mut self, limit: &RateLimit) {
        let Self { bytes, ops, waits: _ } = Self::new(limit);
        for (old, new) in [(&mut self.bytes, bytes), (&mut self.ops, ops)] {
            if old.as_ref().map(|tokens| tokens.bucket) != new.as_ref().map(|tokens| tokens.bucket) {
                *old = new;
            }
        }
    }
}

/// One bucket.
#[derive(Debug)]
struct Tokens {
    bucket: Bucket,
    /// Tokens left of the one-time burst.
    burst: u64,
    /// Tokens, at most the bucket's size. A level below zero is a debt.
    level: i128,
    /// Fraction of the next token, in tokens times nanoseconds of the refill time.
    part: u128,
    /// Time of the last refill; `None` before the first request, when the bucket is full.
    counted: Option<Instant>,
}

impl Tokens {
    /// Makes a full bucket, or `None` for one without a limit.
    fn new(bucket: Bucket) -> Option<Self> {
        let Bucket { size, refill_time, one_time_burst } = bucket;
        (size > 0 && refill_time > 0).then(|| Self {
            bucket,
            burst: one_time_burst,
            level: size.into(),
            part: 0,
            counted: None,
        })
    }

    fn size(&self) -> i128 {
        self.bucket.size.into()
    }

    fn refill_nanos(&self) -> u128 {
        u128::from(self.bucket.refill_time) * NANOS_PER_MILLI
    }

    fn refill(&mut self, now: Instant) {
        let before = self.counted.unwrap_or(now);
        let nanos = now.saturating_duration_since(before).as_nanos().min(FOR_EVER.into());
        self.counted = Some(before.max(now));
        // Below 2^62 * 2^64 + 2^84.
        let come = nanos * u128::from(self.bucket.size) + self.part;
        self.level += (come / self.refill_nanos()).cast_signed();
        self.part = come % self.refill_nanos();
        if self.level >= self.size() {
            (self.level, self.part) = (self.size(), 0);
        }
    }

    /// Nanoseconds until `count` tokens may be taken.
    fn nanos_until(&self, count: u64) -> u64 {
        let of_level = count.saturating_sub(self.burst);
        let wanted = i128::from(of_level).min(self.size());
        // A request that the burst covers, or that costs nothing, does not wait for a debt.
        if of_level == 0 || wanted <= self.level {
            return 0;
        }
        let missing = (wanted - self.level).unsigned_abs();
        let nanos = match missing.checked_mul(self.refill_nanos()) {
            Some(whole) => (whole - self.part).div_ceil(self.bucket.size.into()),
            // 2^128 by less than 2^64 is more than 500 years.
            None => FOR_EVER.into(),
        };
        nanos.min(FOR_EVER.into()) as u64
    }

    fn charge(&mut self, count: u64) {
        let of_burst = count.min(self.burst);
        self.burst -= of_burst;
        self.level -= i128::from(count - of_burst);
    }
}

#[cfg(test)]
#[path = "limiter_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "limiter_properties.rs"]
mod properties;

#[cfg(test)]
#[path = "limiter_exhaustive.rs"]
mod exhaustive;
