//! Points in time as RFC 3339 text.

const DAY: i64 = 86_400;

/// Days from 1970-01-01 to a date of the Gregorian calendar.
///
/// Years begin in March here, so a leap day is the last day of its year.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The date that many days after 1970-01-01: year, month, day.
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (year + era * 400 + carry, month, day)
}

/// Writes seconds and nanoseconds since 1970 as RFC 3339, in UTC.
pub fn to_text(seconds: i64, nanoseconds: i32) -> String {
    let (year, month, day) = date_of(seconds.div_euclid(DAY));
    let second = seconds.rem_euclid(DAY);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let fraction = if nanoseconds == 0 { String::new() } else { format!(".{nanoseconds:09}") };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// Reads RFC 3339 as seconds and nanoseconds since 1970.
pub fn from_text(text: &str) -> Option<(i64, i32)> {
    let number = |range: std::ops::Range<usize>| {
        let digits = text.get(range)?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<i64>().ok())?
    };
    let separators = [(4, "-"), (7, "-"), (13, ":"), (16, ":")];
    if separators.iter().any(|&(at, mark)| text.get(at..=at) != Some(mark)) {
        return None;
    }
    if !matches!(text.get(10..11)?, "T" | "t" | " ") {
        return None;
    }
    let (month, day) = (number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let rest = text.get(19..)?;
    let digits = rest.strip_prefix('.').map_or(0, |rest| rest.bytes().take_while(u8::is_ascii_digit).count());
    let nanoseconds = match digits {
        0 => 0,
        _ => format!("{:0<9.9}", &rest[1..=digits]).parse().ok()?,
    };
    let zone = if digits == 0 { rest } else { &rest[digits + 1..] };
    let seconds = days_of(number(0..4)?, month, day) * DAY + hour * 3_600 + minute * 60 + second;
    Some((seconds - offset_of(zone)?, nanoseconds))
}

/// Seconds that a zone is ahead of UTC.
fn offset_of(zone: &str) -> Option<i64> {
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let sign = match zone.get(0..1)? {
        "+" => 1,
        "-" => -1,
        _ => return None,
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    Some(sign * (hours.parse::<u8>().ok()? as i64 * 3_600 + i64::from(minutes.parse::<u8>().ok()?) * 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_survives_a_round_trip() {
        for (seconds, nanoseconds) in [(0, 0), (951_782_400, 5), (1_795_843_466, 999_999_999), (-1, 0)] {
            assert_eq!(from_text(&to_text(seconds, nanoseconds)), Some((seconds, nanoseconds)));
        }
        assert_eq!(to_text(951_782_400, 0), "2000-02-29T00:00:00Z");
    }

    #[test]
    fn zone_and_fraction_are_read() {
        assert_eq!(from_text("1970-01-01T01:00:00.25+01:00"), Some((0, 250_000_000)));
    }

    #[test]
    fn malformed_text_is_refused() {
        for text in ["", "1970-01-01", "1970-13-01T00:00:00Z", "1970-01-01T00:00:00", "1970-01-01T00:00:00.Z"]
        {
            assert_eq!(from_text(text), None, "{text}");
        }
    }
}
