//! Options of the log.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use log::LevelFilter;

use crate::process::log::{self as process_log, Layout, LogChange, LogTo};

/// Options of the log of a process. A process without any logs warnings to standard error.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct LogArgs {
    /// Log to this file or FIFO, to journald, or to stderr, with time, level and name of the VM
    #[arg(long, value_name = "FILE|journald|stderr")]
    log: Option<Target>,

    /// Log records of this level and worse: off, error, warn, info, debug or trace [default: warn]
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    log_level: Option<LevelFilter>,

    /// Log lines of text, or JSON objects [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<Format>,
}

/// Receiver of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target(LogTo);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

impl FromStr for Target {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(match text {
            "journald" => LogTo::Journal,
            "stderr" => LogTo::Stderr,
            path => LogTo::File(PathBuf::from(path)),
        }))
    }
}

fn level(text: &str) -> Result<LevelFilter, String> {
    text.parse().map_err(|_| "it is one of off, error, warn, info, debug, trace".to_owned())
}

impl LogArgs {
    /// Sets the log of the VM `id`, before the process is confined.
    ///
    /// # Errors
    /// The receiver cannot be opened.
    pub(super) fn apply(&self, id: &str) -> volt_vmm::Result<()> {
        let change = self.change();
        if change == LogChange::default() { Ok(()) } else { process_log::change(id, change) }
    }

    fn change(&self) -> LogChange {
        let to = self.log.clone().map(|Target(to)| to);
        let layout = match (self.log_format, &to) {
            (Some(Format::Json), _) => Some(Layout::Json),
            (Some(Format::Text), _) | (None, Some(_)) => Some(Layout::Text),
            (None, None) => None,
        };
        LogChange { to, layout, level: self.log_level, ..LogChange::default() }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        log: LogArgs,
    }

    fn change(words: &[&str]) -> Result<LogChange, String> {
        let line = Line::try_parse_from([&["x"], words].concat());
        line.map(|line| line.log.change()).map_err(|error| error.to_string())
    }

    #[test]
    fn receiver_and_format_choose_the_layout() {
        assert_eq!(change(&[]), Ok(LogChange::default()));
        let level = LogChange { level: Some(LevelFilter::Info), ..LogChange::default() };
        assert_eq!(change(&["--log-level", "info"]), Ok(level));
        for (words, to, layout) in [
            (&["--log", "journald"][..], Some(LogTo::Journal), Layout::Text),
            (&["--log", "stderr", "--log-format", "json"], Some(LogTo::Stderr), Layout::Json),
            (&["--log", "/l", "--log-format", "text"], Some(LogTo::File("/l".into())), Layout::Text),
            (&["--log-format", "json"], None, Layout::Json),
        ] {
            let wanted = LogChange { to, layout: Some(layout), ..LogChange::default() };
            assert_eq!(change(words), Ok(wanted), "{words:?}");
        }
    }

    #[test]
    fn unknown_level_or_format_is_refused_by_its_option() {
        for (option, value) in [("--log-level", "loud"), ("--log-format", "xml")] {
            let error = change(&[option, value]).unwrap_err();
            assert!(error.contains(option) && error.contains(value), "{error}");
        }
    }
}
