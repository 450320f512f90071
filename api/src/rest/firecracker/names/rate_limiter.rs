//! Names of rate limits. Firecracker's clients may send null for what they leave out.

use serde::{Deserialize, Deserializer};
use volt_vmm::config::devices::{Bucket, RateLimit};

/// A rate limit with null in place of absent fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RateLimiter {
    bandwidth: Option<TokenBucket>,
    ops: Option<TokenBucket>,
}

/// A bucket with null in place of absent fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenBucket {
    size: u64,
    refill_time: u64,
    one_time_burst: Option<u64>,
}

impl From<RateLimiter> for RateLimit {
    fn from(RateLimiter { bandwidth, ops }: RateLimiter) -> Self {
        Self { bandwidth: bandwidth.map(Bucket::from), ops: ops.map(Bucket::from) }
    }
}

impl From<TokenBucket> for Bucket {
    fn from(TokenBucket { size, refill_time, one_time_burst }: TokenBucket) -> Self {
        Self { size, refill_time, one_time_burst: one_time_burst.unwrap_or_default() }
    }
}

/// Reads a rate limit that may be null.
pub(super) fn limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RateLimit, D::Error> {
    change(deserializer).map(Option::unwrap_or_default)
}

/// Reads a change of a rate limit, which may be null.
pub(super) fn change<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<RateLimit>, D::Error> {
    Ok(Option::<RateLimiter>::deserialize(deserializer)?.map(RateLimit::from))
}

/// Reads a single bucket, which may be null.
pub(super) fn bucket<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Bucket>, D::Error> {
    Ok(Option::<TokenBucket>::deserialize(deserializer)?.map(Bucket::from))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn null_is_as_good_as_a_field_left_out() {
        let of = |value: serde_json::Value| limit(value).unwrap();
        let bucket = Some(Bucket { size: 5, refill_time: 100, one_time_burst: 0 });
        let null = json!({"size": 5, "refill_time": 100, "one_time_burst": null});
        assert_eq!(of(json!({"bandwidth": null, "ops": null})), RateLimit::default());
        assert_eq!(of(json!(null)), RateLimit::default());
        assert_eq!(of(json!({"ops": null})).ops, None);
        assert_eq!(of(json!({"bandwidth": null, "ops": null})), of(json!({})));
        assert_eq!(of(json!({"bandwidth": null, "ops": &null})), RateLimit { bandwidth: None, ops: bucket });
        assert_eq!(change(json!({"ops": &null})).unwrap().unwrap().ops, bucket);
        assert_eq!((change(json!(null)).unwrap(), super::bucket(json!(null)).unwrap()), (None, None));
        assert_eq!(super::bucket(null).unwrap(), bucket);
        let burst = json!({"size": 5, "refill_time": 100, "one_time_burst": 7});
        assert_eq!(super::bucket(burst).unwrap().unwrap().one_time_burst, 7);
        for bad in [json!({"ops": {"size": null, "refill_time": 1}}), json!({"op": null}), json!([])] {
            assert!(limit(bad.clone()).is_err(), "{bad}");
        }
    }
}
