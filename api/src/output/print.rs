//! Prints a command's result on standard output, as text or as JSON.

use std::io::{self, Write as _, stdout};

use serde::Serialize;

use crate::failure::Failure;

/// Prints a result as JSON, or as the text that `text` returns.
///
/// # Errors
/// A write to standard output failed.
pub(crate) fn print<T: Serialize>(
    result: &T,
    json: bool,
    text: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    let text = match json {
        true => serde_json::to_string_pretty(result).map_err(failed)? + "\n",
        false => text(result),
    };
    self::text(&text)
}

/// Prints a text.
///
/// # Errors
/// A write to standard output failed.
pub(crate) fn text(text: &str) -> Result<(), Failure> {
    stdout().write_all(text.as_bytes()).map_err(failed)
}

fn failed(source: impl Into<io::Error>) -> Failure {
    Failure::system("print the result", source)
}
