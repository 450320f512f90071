//! All short schedules of small buckets, against a model that counts in parts of a token: a token has as many
//! parts as its bucket has nanoseconds to refill.

use super::*;

/// Requests of a schedule.
const REQUESTS: u32 = 3;
/// Bytes of a request: less than a bucket, all of it, or more.
const COUNTS: [u64; 4] = [0, 1, 2, 5];
/// Nanoseconds before a request: none, a part of a token, or several tokens.
const WAITS: [u64; 4] = [0, 333_333, 1_000_000, 2_500_000];

/// A bucket in whole parts.
struct Model {
    size: i64,
    per_token: i64,
    /// Parts that a nanosecond brings: the size.
    level: i64,
    burst: i64,
}

impl Model {
    fn wait(&mut self, nanos: u64) {
        self.level = (self.level + self.size * nanos as i64).min(self.size * self.per_token);
    }

    /// Takes the tokens, or says whether they will be there after `nanos`.
    fn admit(&mut self, count: u64) -> bool {
        let count = count as i64;
        let (of_burst, of_level) = (count.min(self.burst), (count - self.burst).max(0));
        let is_there = of_level == 0 || self.level >= of_level.min(self.size) * self.per_token;
        if is_there {
            self.burst -= of_burst;
            self.level -= (count - of_burst) * self.per_token;
        }
        is_there
    }
}

fn check(bucket: Bucket, schedule: u32) {
    let Bucket { size, refill_time, one_time_burst } = bucket;
    let per_token = refill_time as i64 * NANOS_PER_MILLI as i64;
    let (size, burst) = (size as i64, one_time_burst as i64);
    let mut model = Model { size, per_token, level: size * per_token, burst };
    let mut limiter = RateLimiter::new(&RateLimit { bandwidth: Some(bucket), ops: None });
    let mut now = Instant::now();
    // The bucket is full at its first request, however late that is.
    assert_eq!(limiter.check(now, 0), Ok(()));
    for place in 0..REQUESTS {
        let digit = (schedule / 16_u32.pow(place)) as usize;
        let (count, wait) = (COUNTS[digit % 4], WAITS[digit / 4 % 4]);
        now += Duration::from_nanos(wait);
        model.wait(wait);
        match limiter.admit(now, count) {
            Ok(()) => assert!(model.admit(count), "{bucket:?}, {schedule:x}: request {place} is too early"),
            Err(again) => {
                assert!(!model.admit(count), "{bucket:?}, {schedule:x}: request {place} waits for nothing");
                let nanos = (again - now).as_nanos() as u64;
                model.wait(nanos - 1);
                assert!(!model.admit(count), "{bucket:?}, {schedule:x}: request {place} waits too long");
                model.wait(1);
                assert!(model.admit(count), "{bucket:?}, {schedule:x}: request {place} comes back too early");
                assert_eq!(limiter.admit(again, count), Ok(()));
                now = again;
            }
        }
    }
}

#[test]
fn all_short_schedules_of_small_buckets_equal_a_model() {
    for size in 1..=3 {
        for refill_time in 1..=3 {
            for one_time_burst in 0..=2 {
                let bucket = Bucket { size, refill_time, one_time_burst };
                (0..16_u32.pow(REQUESTS)).for_each(|schedule| check(bucket, schedule));
            }
        }
    }
}
