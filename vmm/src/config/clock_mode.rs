//! How a restored guest's clocks treat the time since the snapshot.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How a restored guest's clocks treat the time since the snapshot. A choice of each restore, which no
/// snapshot keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ClockMode {
    /// They continue from their saved values. The guest notices no gap, and its time of day is late by the
    /// gap.
    #[default]
    Continue,
    /// kvmclock and the TSCs jump by the time since the snapshot. All of the guest's clocks move with them,
    /// and timers that passed meanwhile fire at once.
    Realtime,
}

impl ClockMode {
    const ALL: [Self; 2] = [Self::Continue, Self::Realtime];
}

impl FromStr for ClockMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|mode| mode.to_string() == text);
        found.ok_or_else(|| format!("it is one of {}", Self::ALL.map(|mode| mode.to_string()).join(", ")))
    }
}

/// Writes the name that serde uses.
impl fmt::Display for ClockMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_has_one_spelling_everywhere() {
        for (mode, name) in [(ClockMode::Continue, "continue"), (ClockMode::Realtime, "realtime")] {
            assert_eq!(mode.to_string(), name);
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(serde_json::to_string(&mode).unwrap(), format!("\"{mode}\""));
        }
        assert!("now".parse::<ClockMode>().unwrap_err().contains("continue, realtime"));
    }
}
