//! Parses command lines.

use std::ffi::OsString;
use std::io::Write;

use clap::Parser;

use crate::output::print::harmless;

/// Parses a command line. After an error, help or a version, prints it and ends the process.
pub(super) fn parsed<T: Parser>(arguments: Vec<OsString>) -> T {
    T::try_parse_from(arguments).unwrap_or_else(|answer| {
        let text = harmless(&answer.render().to_string());
        // The process ends, whoever does not read.
        let _ = match answer.use_stderr() {
            true => std::io::stderr().write_all(text.as_bytes()),
            false => std::io::stdout().write_all(text.as_bytes()),
        };
        std::process::exit(answer.exit_code())
    })
}
