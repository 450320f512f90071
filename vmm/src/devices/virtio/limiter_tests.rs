//! The token buckets, over schedules that a seed makes up. Time here is what the test says it is.

use super::*;

/// xorshift64*: the same numbers for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % end
    }
}

fn bucket(size: u64, refill_time: u64, one_time_burst: u64) -> Bucket {
    Bucket { size, refill_time, one_time_burst }
}

fn bytes(bucket: Bucket) -> RateLimiter {
    RateLimiter::new(&RateLimit { bandwidth: Some(bucket), ops: None })
}

fn ops(bucket: Bucket) -> RateLimiter {
    RateLimiter::new(&RateLimit { bandwidth: None, ops: Some(bucket) })
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn over_any_schedule_no_more_is_admitted_than_size_burst_and_rate() {
    for seed in 1..=300 {
        let mut random = Random(seed);
        let of = bucket(1 + random.below(1 << 20), 1 + random.below(2000), random.below(1 << 21));
        let mut limiter = bytes(of);
        let start = Instant::now();
        let (mut now, mut admitted) = (start, 0u128);
        for _ in 0..2000 {
            let count = random.below(of.size + 1);
            match limiter.admit(now, count) {
                Ok(()) => admitted += u128::from(count),
                // Some ask too early.
                Err(again) if random.below(2) == 0 => now = again,
                Err(_) => {}
            }
            now += Duration::from_nanos(random.below(20_000_000));
            let nanos = (now - start).as_nanos();
            let come = nanos * u128::from(of.size) / (u128::from(of.refill_time) * NANOS_PER_MILLI);
            let most = u128::from(of.size) + u128::from(of.one_time_burst) + come;
            assert!(admitted <= most, "seed {seed}: {admitted} of {most} in {nanos} ns with {of:?}");
        }
    }
}

#[test]
fn who_always_asks_gets_the_rate() {
    for seed in 1..=200 {
        let mut random = Random(seed);
        let of = bucket(1 + random.below(1 << 24), 1 + random.below(2000), random.below(1 << 20));
        let mut limiter = bytes(of);
        let start = Instant::now();
        let (mut now, mut admitted) = (start, 0u128);
        // Requests up to three times as large as the bucket, 100 times its size in all.
        while admitted < 100 * u128::from(of.size) {
            let count = 1 + random.below(3 * of.size);
            if let Err(again) = limiter.admit(now, count) {
                assert!(again > now);
                now = again;
                limiter.admit(now, count).expect("admitted when it was told to ask again");
            }
            admitted += u128::from(count);
        }
        let nanos = (now - start).as_nanos();
        let rate = nanos * u128::from(of.size) / (u128::from(of.refill_time) * NANOS_PER_MILLI);
        assert!(admitted * 100 >= rate * 99, "seed {seed}: {admitted} of {rate} with {of:?}");
        // What is larger than the bucket goes beyond it by a debt of twice its size at most.
        let most = rate + u128::from(3 * of.size) + u128::from(of.one_time_burst);
        assert!(admitted <= most, "seed {seed}: {admitted} of {most} with {of:?}");
    }
}

#[test]
fn it_says_the_first_moment_at_which_it_admits() {
    for seed in 1..=100 {
        let mut random = Random(seed);
        let mut limiter = bytes(bucket(1 + random.below(1 << 30), 1 + random.below(5000), 0));
        let mut now = Instant::now();
        for _ in 0..200 {
            let count = random.below(1 << 31);
            if let Err(again) = limiter.admit(now, count) {
                assert!(limiter.admit(again - Duration::from_nanos(1), count).is_err(), "seed {seed}");
                limiter.admit(again, count).unwrap();
                now = again;
            }
        }
    }
}

#[test]
fn a_year_of_single_tokens_drifts_by_none() {
    // Three in seven milliseconds: no moment at which a token is there is a whole nanosecond.
    let mut limiter = ops(bucket(3, 7, 0));
    let start = Instant::now();
    let mut now = start;
    for _ in 0..3 + 3_000_000 {
        while let Err(again) = limiter.admit(now, 0) {
            now = again;
        }
    }
    assert_eq!(now - start, Duration::from_millis(7_000_000));
}

#[test]
fn the_burst_comes_first_and_once() {
    let mut limiter = bytes(bucket(100, 1000, 50));
    let start = Instant::now();
    limiter.admit(start, 150).unwrap();
    assert_eq!(limiter.admit(start, 10), Err(start + SECOND / 10));
    limiter.admit(start + 9 * SECOND, 100).unwrap();
    assert_eq!(limiter.admit(start + 9 * SECOND, 1), Err(start + 9 * SECOND + SECOND / 100));
}

#[test]
fn what_is_larger_than_the_bucket_leaves_a_debt() {
    let mut limiter = bytes(bucket(100, 1000, 0));
    let start = Instant::now();
    limiter.admit(start, 1).unwrap();
    let full = limiter.admit(start, 350).unwrap_err();
    assert_eq!(full, start + SECOND / 100);
    limiter.admit(full, 350).unwrap();
    assert_eq!(limiter.admit(full, 10), Err(full + SECOND * 26 / 10));
    limiter.admit(full, 0).expect("what has no bytes waits for none");
}

#[test]
fn neither_bucket_is_charged_for_what_the_other_refuses() {
    let limit = RateLimit { bandwidth: Some(bucket(1000, 1000, 0)), ops: Some(bucket(2, 1000, 0)) };
    let mut limiter = RateLimiter::new(&limit);
    let start = Instant::now();
    limiter.admit(start, 900).unwrap();
    assert_eq!(limiter.admit(start, 400), Err(start + SECOND * 3 / 10));
    limiter.admit(start, 100).unwrap();
    assert_eq!(limiter.admit(start, 100), Err(start + SECOND / 2), "the later of both");
    limiter.admit(start + SECOND / 2, 500).unwrap();
}

#[test]
fn no_limit_is_none_and_a_limit_can_be_changed() {
    let none = RateLimit { bandwidth: Some(bucket(0, 100, 5)), ops: Some(bucket(100, 0, 5)) };
    let mut limiter = RateLimiter::new(&none);
    let now = Instant::now();
    assert!(limiter.is_unlimited() && limiter.admit(now, u64::MAX).is_ok());

    let mut limit = RateLimit { bandwidth: Some(bucket(10, 1000, 0)), ops: None };
    limiter.change(&limit);
    assert!(!limiter.is_unlimited());
    limiter.admit(now, 10).unwrap();
    limit.ops = Some(bucket(1, 1000, 0));
    limiter.change(&limit);
    assert_eq!(limiter.admit(now, 10), Err(now + SECOND), "the bucket that stays was not filled");
    limit.bandwidth = Some(bucket(10, 500, 0));
    limiter.change(&limit);
    limiter.admit(now, 10).expect("a new bucket is full");
    limiter.change(&none);
    assert!(limiter.is_unlimited());
}

#[test]
fn the_largest_numbers_and_a_clock_that_goes_back_do_no_harm() {
    let most = bucket(u64::MAX, u64::MAX, u64::MAX);
    for of in [most, bucket(1, u64::MAX, 0), bucket(u64::MAX, 1, 0), bucket(1, 1, u64::MAX)] {
        let mut limiter = bytes(of);
        let start = Instant::now();
        let mut now = start;
        for count in [u64::MAX, u64::MAX, 1, u64::MAX, 0, u64::MAX] {
            if let Err(again) = limiter.admit(now, count) {
                assert!(again > now);
                now += SECOND * (u32::MAX / 100);
            }
            let _ = limiter.admit(start, count);
        }
    }
}
