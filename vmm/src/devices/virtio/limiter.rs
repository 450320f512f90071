//! How fast a device may be used: a token bucket for bytes and one for operations, as Firecracker's.
//!
//! ```text
//!            one_time_burst ──> burst ─┐ first          size tokens in refill_time
//!                                      ├──> a request       │ (never above size)
//!            size ───────────> level ──┘ then               v
//!                                ^────────────────────── refill
//! ```
//!
//! A request that is larger than a whole bucket would wait for ever: it is admitted when the bucket is full and takes the level
//! below zero, a debt that is paid before the next. Nothing is rounded: the part of a token that has come so far is kept.

use std::time::{Duration, Instant};

use crate::config::devices::{Bucket, RateLimit};

/// Times beyond this, 146 years, are not told apart. It keeps every product below within 128 bits.
const FOR_EVER: u64 = 1 << 62;
const NANOS_PER_MILLI: u128 = 1_000_000;

/// Both buckets of one user.
#[derive(Debug)]
pub struct RateLimiter {
    bytes: Option<Tokens>,
    ops: Option<Tokens>,
}

impl RateLimiter {
    /// A limiter whose buckets are full.
    #[must_use]
    pub fn new(limit: &RateLimit) -> Self {
        let RateLimit { bandwidth, ops } = limit;
        Self { bytes: bandwidth.and_then(Tokens::new), ops: ops.and_then(Tokens::new) }
    }

    /// Whether everything is admitted at once.
    #[cfg(test)]
    fn is_unlimited(&self) -> bool {
        self.bytes.is_none() && self.ops.is_none()
    }

    /// Counts one operation of so many bytes.
    ///
    /// # Errors
    /// Not now, and nothing is counted: when to ask again.
    pub fn admit(&mut self, now: Instant, bytes: u64) -> Result<(), Instant> {
        self.check(now, bytes)?;
        self.spend(bytes);
        Ok(())
    }

    /// Whether one operation of so many bytes would be admitted. Nothing is counted.
    ///
    /// # Errors
    /// Not now: when to ask again.
    pub fn check(&mut self, now: Instant, bytes: u64) -> Result<(), Instant> {
        let mut wait = 0;
        for (bucket, count) in [(self.bytes.as_mut(), bytes), (self.ops.as_mut(), 1)] {
            if let Some(bucket) = bucket {
                bucket.refill(now);
                wait = wait.max(bucket.nanos_until(count));
            }
        }
        if wait > 0 { Err(now + Duration::from_nanos(wait)) } else { Ok(()) }
    }

    /// Counts one operation of so many bytes, which may be more than there are: those who come later wait for it.
    pub fn spend(&mut self, bytes: u64) {
        for (bucket, count) in [(self.bytes.as_mut(), bytes), (self.ops.as_mut(), 1)] {
            if let Some(bucket) = bucket {
                bucket.charge(count);
            }
        }
    }

    /// Another limit from now on. A bucket that it changes is new and full; one that stays goes on as it is.
    pub fn change(&mut self, limit: &RateLimit) {
        let Self { bytes, ops } = Self::new(limit);
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
    /// What is left of the one-time burst.
    burst: u64,
    /// At most the bucket's size; below zero it is a debt.
    level: i128,
    /// What has come of the next token, in tokens times nanoseconds of the refill time.
    part: u128,
    /// Until when the level is counted; none before the first request, when the bucket is full anyway.
    counted: Option<Instant>,
}

impl Tokens {
    /// None when the bucket limits nothing.
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

    /// How long it takes until so many tokens may be taken, in nanoseconds.
    fn nanos_until(&self, count: u64) -> u64 {
        let of_level = count.saturating_sub(self.burst);
        let wanted = i128::from(of_level).min(self.size());
        // What the burst pays for alone waits for no debt, and neither does what costs nothing.
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
