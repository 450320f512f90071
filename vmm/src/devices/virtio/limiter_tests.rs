//! Token buckets at work, with times that the test chooses. `limiter_properties.rs` tests rules for any
//! schedule.

use super::*;

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
fn year_of_single_tokens_loses_none() {
    // Three in seven milliseconds: no token comes at a whole nanosecond.
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
fn burst_is_spent_first_and_once() {
    let mut limiter = bytes(bucket(100, 1000, 50));
    let start = Instant::now();
    limiter.admit(start, 150).unwrap();
    assert_eq!(limiter.admit(start, 10), Err(start + SECOND / 10));
    limiter.admit(start + 9 * SECOND, 100).unwrap();
    assert_eq!(limiter.admit(start + 9 * SECOND, 1), Err(start + 9 * SECOND + SECOND / 100));
}

#[test]
fn request_larger_than_the_bucket_leaves_a_debt() {
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
fn request_refused_by_one_bucket_is_not_charged_to_the_other() {
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
fn empty_limit_admits_all_and_can_be_changed() {
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
