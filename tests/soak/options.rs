//! The command line of the soak.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// See `scripts/soak.sh --help`.
pub struct Options {
    pub time: Duration,
    pub seed: u64,
    /// Linux guests with all devices, instead of small guests.
    pub linux: bool,
}

impl Options {
    /// Reads `[--seed N] [--linux] HOURS`.
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
        let (mut hours, mut seed, mut linux) = (None, now, false);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--linux" => linux = true,
                "--seed" => {
                    let given = words.next().and_then(|seed| seed.parse().ok());
                    seed = given.ok_or("--seed needs a number")?;
                }
                _ => {
                    let given: Option<f64> = word.parse().ok().filter(|hours| (0.0..1000.0).contains(hours));
                    hours = Some(given.ok_or(format!("{word} is no number of hours"))?);
                }
            }
        }
        let hours = hours.ok_or("the number of hours is missing")?;
        Ok(Self { time: Duration::from_secs_f64(hours * 3600.0), seed, linux })
    }
}
