//! Rate limits as arguments: `10M` for 10 MiB a second; `500/100+2000` for 500 in 100 ms
//! and a burst of 2000.

use volt_vmm::config::devices::Bucket;
use volt_vmm::parse_size;

/// Milliseconds, unless given.
const REFILL_TIME: u64 = 1000;

/// Forms of a rate limit.
pub(super) const SYNTAX: &str = "AMOUNT[/MILLISECONDS][+BURST], as in 10M/100+64M";

/// Parses a rate limit.
pub(super) fn bucket(text: &str) -> Option<Bucket> {
    let (rate, burst) = text.split_once('+').unwrap_or((text, "0"));
    let (size, time) = match rate.split_once('/') {
        Some((size, time)) => (size, time.parse().ok().filter(|time| *time > 0)?),
        None => (rate, REFILL_TIME),
    };
    Some(Bucket { size: number(size)?, refill_time: time, one_time_burst: number(burst)? })
}

/// Parses a number as a size is written: `500`, `10M`.
fn number(text: &str) -> Option<u64> {
    parse_size(text, 1).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_takes_number_time_and_burst_and_refuses_other_text() {
        let bucket = |size, refill_time, one_time_burst| Some(Bucket { size, refill_time, one_time_burst });
        for (text, expected) in [
            ("500", bucket(500, 1000, 0)),
            ("10M", bucket(10 << 20, 1000, 0)),
            ("1K/100", bucket(1024, 100, 0)),
            ("2G+3K", bucket(2 << 30, 1000, 3 << 10)),
            ("7/1+8", bucket(7, 1, 8)),
            ("1T/50", bucket(1 << 40, 50, 0)),
            ("0", bucket(0, 1000, 0)),
        ] {
            assert_eq!(super::bucket(text), expected, "{text}");
        }
        for text in ["", "M", "1MM", "1X", "1/0", "1/", "1+", "-1", "1.5M", "18446744073709551615K"] {
            assert_eq!(super::bucket(text), None, "{text}");
        }
    }
}
