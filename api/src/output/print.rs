//! Prints a command's result on standard output, as text or as JSON.

use std::io::{Write as _, stdout};

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
    let failed = |source| Failure::system("print the result", source);
    let text = match json {
        true => serde_json::to_string_pretty(result).map_err(|error| failed(error.into()))? + "\n",
        false => text(result),
    };
    stdout().write_all(text.as_bytes()).map_err(failed)
}
