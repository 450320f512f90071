//! Sizes as text.

use super::MIB;

/// Parses a size: a whole number and a unit, `K`, `M`, `G` or `T` for powers of 1024 (also `k` and `KiB`), or
/// `B`. A plain number counts in units of `plain` bytes.
///
/// # Errors
/// Says why the text is no size.
pub fn parse_size(text: &str, plain: u64) -> Result<u64, &'static str> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| "not a number; write a size such as 512M or 4G")?;
    let unit = match &text[digits.len()..] {
        "" => plain,
        "B" => 1,
        "K" | "k" | "KiB" => 1 << 10,
        "M" | "m" | "MiB" => MIB,
        "G" | "g" | "GiB" => 1 << 30,
        "T" | "t" | "TiB" => 1 << 40,
        _ => return Err("the unit must be K, M, G or T"),
    };
    number.checked_mul(unit).ok_or("too large")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1024() {
        for (text, bytes) in [
            ("512", 512),
            ("512B", 512),
            ("64K", 64 << 10),
            ("64k", 64 << 10),
            ("64KiB", 64 << 10),
            ("512M", 512 << 20),
            ("512m", 512 << 20),
            ("64MiB", 64 << 20),
            ("4G", 4 << 30),
            ("1T", 1 << 40),
            ("1TiB", 1 << 40),
        ] {
            assert_eq!(parse_size(text, 1), Ok(bytes), "{text}");
        }
        assert_eq!((parse_size("64", MIB), parse_size("64B", MIB)), (Ok(64 << 20), Ok(64)));
    }

    #[test]
    fn other_text_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "not a number"),
            ("big", "not a number"),
            ("-1", "not a number"),
            ("1.5M", "not a number"),
            ("64KB", "unit"),
            ("1MM", "unit"),
            ("18446744073709551615K", "too large"),
        ] {
            let refused = parse_size(text, 1).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
