//! Times as cells of a table.

use std::time::Duration;

pub use volt_vmm::internal::times::Times;

/// Minimum, p50, p90 and p99 in milliseconds.
#[must_use]
pub fn percentiles(times: &Times) -> [String; 4] {
    [0, 50, 90, 99].map(|percent| milliseconds(times.percentile(percent)))
}

/// With the digits that mean something.
#[must_use]
pub fn milliseconds(time: Duration) -> String {
    let milliseconds = time.as_secs_f64() * 1e3;
    match milliseconds {
        100.0.. => format!("{milliseconds:.0}"),
        10.0.. => format!("{milliseconds:.1}"),
        _ => format!("{milliseconds:.3}"),
    }
}

/// Difference of a percentile to that of other times, in milliseconds.
#[must_use]
pub fn more(times: &Times, than: &Times, percent: usize) -> f64 {
    (times.percentile(percent).as_secs_f64() - than.percentile(percent).as_secs_f64()) * 1e3
}

/// A number of microseconds.
#[must_use]
pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A number of MiB.
#[must_use]
pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// `a / b`.
#[must_use]
pub fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64()
}

/// Geometric mean of ratios.
#[must_use]
pub fn geometric_mean(ratios: &[f64]) -> f64 {
    (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geometric_mean_weighs_half_and_double_alike() {
        assert!((geometric_mean(&[0.5, 2.0]) - 1.0).abs() < 1e-9);
        assert!((geometric_mean(&[4.0, 1.0]) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn milliseconds_keep_significant_digits() {
        let texts = [1_234, 12_345, 123_456].map(|us| milliseconds(Duration::from_micros(us)));
        assert_eq!(texts, ["1.234", "12.3", "123"]);
        let times = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(percentiles(&times), ["1.000", "50.0", "90.0", "99.0"]);
    }

    #[test]
    fn difference_of_percentiles_has_a_sign() {
        let [few, many] = [10, 30].map(|last| (1..=last).map(Duration::from_millis).collect::<Times>());
        assert!((more(&many, &few, 50) - 10.0).abs() < 1e-9);
        assert!((more(&few, &many, 50) + 10.0).abs() < 1e-9);
    }
}
