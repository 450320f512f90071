//! Names of the log.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `PUT /logger`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Logger {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) log_path: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) level: Option<LogLevel>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) show_level: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) show_log_origin: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) module: Option<String>,
}

impl Logger {
    /// The settings of both; `other`'s count where both have one.
    pub(crate) fn with(self, other: Self) -> Self {
        Self {
            log_path: other.log_path.or(self.log_path),
            level: other.level.or(self.level),
            show_level: other.show_level.or(self.show_level),
            show_log_origin: other.show_log_origin.or(self.show_log_origin),
            module: other.module.or(self.module),
        }
    }
}

/// A level. It is read in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum LogLevel {
    Off,
    Error,
    Warning,
    Info,
    Debug,
    Trace,
}

impl std::str::FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "off" => Self::Off,
            "error" => Self::Error,
            "warn" | "warning" => Self::Warning,
            "info" => Self::Info,
            "debug" => Self::Debug,
            "trace" => Self::Trace,
            _ => return Err(format!("no level {text:?}; use Error, Warning, Info, Debug, Trace or Off")),
        })
    }
}

impl TryFrom<String> for LogLevel {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_is_read_in_any_case_and_written_as_firecracker_does() {
        let levels = [("error", "Error"), ("WARN", "Warning"), ("Warning", "Warning"), ("off", "Off")];
        for (text, written) in levels {
            let logger: Logger = serde_json::from_value(serde_json::json!({"level": text})).unwrap();
            assert_eq!(serde_json::to_value(&logger).unwrap()["level"], written);
        }
        let error = serde_json::from_str::<Logger>(r#"{"level":"loud"}"#).unwrap_err().to_string();
        assert!(error.contains("no level \"loud\"; use Error, Warning"), "{error}");
    }
}
