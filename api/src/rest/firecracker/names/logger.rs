//! Names of the log.

use std::path::PathBuf;

use log::LevelFilter;
use serde::{Deserialize, Serialize};

use crate::process::log::LogChange;

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

/// A level, in upper or lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub(crate) struct LogLevel(LevelFilter);

impl std::str::FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self(match text.to_ascii_lowercase().as_str() {
            "off" => LevelFilter::Off,
            "error" => LevelFilter::Error,
            "warn" | "warning" => LevelFilter::Warn,
            "info" => LevelFilter::Info,
            "debug" => LevelFilter::Debug,
            "trace" => LevelFilter::Trace,
            _ => {
                return Err(format!("no level {text:?}; use Error, Warning, Info, Debug, Trace or Off"));
            }
        }))
    }
}

impl TryFrom<String> for LogLevel {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<LogLevel> for &'static str {
    fn from(LogLevel(level): LogLevel) -> Self {
        match level {
            LevelFilter::Off => "Off",
            LevelFilter::Error => "Error",
            LevelFilter::Warn => "Warning",
            LevelFilter::Info => "Info",
            LevelFilter::Debug => "Debug",
            LevelFilter::Trace => "Trace",
        }
    }
}

impl From<Logger> for LogChange {
    fn from(Logger { log_path, level, show_level, show_log_origin, module }: Logger) -> Self {
        let level = level.map(|LogLevel(level)| level);
        Self { path: log_path, level, shows_level: show_level, shows_origin: show_log_origin, module }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_is_read_in_any_case_and_written_as_firecracker_does() {
        for (text, written) in
            [("error", "Error"), ("WARN", "Warning"), ("Warning", "Warning"), ("off", "Off")]
        {
            let logger: Logger = serde_json::from_value(serde_json::json!({"level": text})).unwrap();
            assert_eq!(serde_json::to_value(&logger).unwrap()["level"], written);
        }
        let error = serde_json::from_str::<Logger>(r#"{"level":"loud"}"#).unwrap_err().to_string();
        assert!(error.contains("no level \"loud\"; use Error, Warning"), "{error}");
    }
}
