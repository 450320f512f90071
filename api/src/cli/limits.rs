//! Rate limits as words: `bandwidth=10M` for so many bytes a second, `ops=500/100+2000` for so many operations in 100 ms and
//! 2000 beforehand.

use volt_vmm::config::devices::{Bucket, RateLimit};

use super::words::Words;

/// Milliseconds, unless given.
const REFILL_TIME: u64 = 1000;

/// A limit from the words of these names.
pub(super) fn limit(words: &mut Words<'_>, bandwidth: &str, ops: &str) -> Result<RateLimit, String> {
    Ok(RateLimit { bandwidth: bucket(words, bandwidth)?, ops: bucket(words, ops)? })
}

/// The same, and nothing where there is no such word.
pub(super) fn change(words: &mut Words<'_>, bandwidth: &str, ops: &str) -> Result<Option<RateLimit>, String> {
    limit(words, bandwidth, ops).map(|limit| Some(limit).filter(|limit| !limit.is_none()))
}

fn bucket(words: &mut Words<'_>, name: &str) -> Result<Option<Bucket>, String> {
    let Some(text) = words.value(name) else { return Ok(None) };
    let bucket = parse(text);
    let wrong = || {
        format!("{name}={text}: write N, N/MILLISECONDS, N+BURST or N/MILLISECONDS+BURST, as in 10M/100+64M")
    };
    bucket.ok_or_else(wrong).map(Some)
}

fn parse(text: &str) -> Option<Bucket> {
    let (rate, burst) = text.split_once('+').unwrap_or((text, "0"));
    let (size, time) = match rate.split_once('/') {
        Some((size, time)) => (size, time.parse().ok().filter(|time| *time > 0)?),
        None => (rate, REFILL_TIME),
    };
    Some(Bucket { size: number(size)?, refill_time: time, one_time_burst: number(burst)? })
}

/// A number, with K, M or G for powers of 1024.
pub(super) fn number(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let unit: u64 = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_times_and_bursts() {
        let bucket = |size, refill_time, one_time_burst| Some(Bucket { size, refill_time, one_time_burst });
        for (text, expected) in [
            ("500", bucket(500, 1000, 0)),
            ("10M", bucket(10 << 20, 1000, 0)),
            ("1K/100", bucket(1024, 100, 0)),
            ("2G+3K", bucket(2 << 30, 1000, 3 << 10)),
            ("7/1+8", bucket(7, 1, 8)),
            ("0", bucket(0, 1000, 0)),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
        for text in ["", "M", "1MM", "1X", "1/0", "1/", "1+", "-1", "1.5M", "18446744073709551615K"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
