//! Rules of a rate limiter for any bucket and any schedule, with times that the test chooses.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A bucket of usual numbers, or of any.
fn bucket() -> impl Strategy<Value = Bucket> {
    let everyday = (1..1u64 << 24, 1..2000u64, 0..1u64 << 21);
    let any = (edge(), edge(), prop_oneof![Just(0), edge()]);
    prop_oneof![everyday, any].prop_map(|(size, refill_time, one_time_burst)| Bucket {
        size,
        refill_time,
        one_time_burst,
    })
}

/// A number from 1 on, half of them near a power of two or the maximum.
fn edge() -> impl Strategy<Value = u64> {
    let beside = (0..64u32, 0..3u64).prop_map(|(shift, by)| (1 << shift) - 1 + by);
    prop_oneof![1..=u64::MAX, beside.prop_map(|number: u64| number.max(1)), Just(u64::MAX)]
}

/// The size of a request, in parts of the bucket's size or in bytes, and the time since the last request.
#[derive(Clone, Debug)]
struct Request {
    parts: Option<u8>,
    bytes: u64,
    after: u64,
    patient: bool,
}

fn request() -> impl Strategy<Value = Request> {
    let after = prop_oneof![0..20_000_000u64, edge().prop_map(|nanos| nanos >> 4)];
    (any::<Option<u8>>(), prop_oneof![Just(0), edge()], after, any::<bool>())
        .prop_map(|(parts, bytes, after, patient)| Request { parts, bytes, after, patient })
}

impl Request {
    /// Up to three times the size.
    fn bytes_of(&self, bucket: &Bucket) -> u64 {
        let part =
            |parts: u8| (u128::from(bucket.size) * 3 * u128::from(parts) / 255).min(u64::MAX.into()) as u64;
        self.parts.map_or(self.bytes, part)
    }
}

fn limiter(of: Bucket) -> RateLimiter {
    RateLimiter::new(&RateLimit { bandwidth: Some(of), ops: None })
}

/// The admitted requests and their times.
#[derive(Debug)]
struct Ledger {
    of: Bucket,
    entries: Vec<(Instant, u64)>,
}

impl Ledger {
    /// Tokens that come in `time`.
    fn come(&self, time: Duration) -> u128 {
        time.as_nanos() * u128::from(self.of.size) / (u128::from(self.of.refill_time) * NANOS_PER_MILLI)
    }

    /// Records an admitted request, and checks the rate since each earlier one. A request larger than the
    /// bucket counts as a whole bucket at its own time, and in full for later ones.
    fn enter(&mut self, now: Instant, count: u64) -> Result<(), TestCaseError> {
        let Bucket { size, one_time_burst, .. } = self.of;
        let mut sum = u128::from(count.min(size));
        for (since, before) in self.entries.iter().rev() {
            sum += u128::from(*before);
            let most = u128::from(size) + u128::from(one_time_burst) + self.come(now - *since);
            prop_assert!(count == 0 || sum <= most, "{sum} of {most} in {:?}", now - *since);
        }
        self.entries.push((now, count));
        Ok(())
    }

    fn sum(&self) -> u128 {
        self.entries.iter().map(|(_, count)| u128::from(*count)).sum()
    }
}

/// Longer than any test waits.
const TOO_LONG: Duration = Duration::from_nanos(FOR_EVER / 128);

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn admitted_requests_stay_within_size_burst_and_rate(of in bucket(), requests in vec(request(), 1..100)) {
        let (mut limiter, mut ledger) = (limiter(of), Ledger { of, entries: Vec::new() });
        let mut now = Instant::now();
        for request in requests {
            let count = request.bytes_of(&of);
            match limiter.admit(now, count) {
                Ok(()) => ledger.enter(now, count)?,
                Err(again) if request.patient && again - now < TOO_LONG => now = again,
                Err(_) => now += Duration::from_nanos(request.after >> 6),
            }
        }
    }

    /// Admits a request at that nanosecond, and refuses it one nanosecond before.
    #[test]
    fn refused_request_gets_the_first_moment_of_admission(of in bucket(), requests in vec(request(), 1..50)) {
        let mut limiter = limiter(of);
        let mut now = Instant::now();
        for request in requests {
            let count = request.bytes_of(&of);
            let Err(again) = limiter.admit(now, count) else { continue };
            if again - now >= TOO_LONG {
                break;
            }
            prop_assert!(limiter.admit(again - Duration::from_nanos(1), count).is_err());
            prop_assert!(limiter.admit(again, count).is_ok());
            now = again;
        }
    }

    #[test]
    fn constant_requests_get_the_full_rate(of in bucket(), requests in vec(request(), 1..100)) {
        let (mut limiter, mut ledger) = (limiter(of), Ledger { of, entries: Vec::new() });
        let start = Instant::now();
        let mut now = start;
        for request in requests {
            let count = request.bytes_of(&of).max(1);
            if let Err(again) = limiter.admit(now, count) {
                prop_assert!(again > now);
                if again - now >= TOO_LONG {
                    break;
                }
                now = again;
                prop_assert!(limiter.admit(now, count).is_ok());
            }
            ledger.enter(now, count)?;
            prop_assert!(ledger.sum() >= ledger.come(now - start), "it waited for what was there");
        }
    }

    /// For any request and any bucket, with a clock that jumps.
    #[test]
    fn largest_numbers_do_not_overflow(
        of in bucket(), ops in bucket(), requests in vec((edge(), any::<i64>(), any::<bool>()), 1..50)
    ) {
        let mut limiter = RateLimiter::new(&RateLimit { bandwidth: Some(of), ops: Some(ops) });
        let start = Instant::now() + Duration::from_nanos(FOR_EVER);
        for (count, at, far) in requests {
            let moment = Duration::from_nanos(at.unsigned_abs() >> 1);
            let now = match (at < 0, far) {
                (true, _) => start - moment,
                (false, false) => start + moment,
                (false, true) => start + Duration::from_secs(at.unsigned_abs() >> 2),
            };
            if let Err(again) = limiter.admit(now, count) {
                prop_assert!(again > now);
            }
            limiter.spend(count);
        }
    }
}
