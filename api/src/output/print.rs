//! What a command has found, on standard output: for a person, or as JSON for a program.

use std::io::{Write as _, stdout};

use serde::Serialize;

use crate::failure::Failure;

/// Prints it.
///
/// # Errors
/// Standard output does not take it.
pub(crate) fn print<T: Serialize>(
    found: &T,
    json: bool,
    text: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    let failed = |source| Failure::system("print what was found", source);
    let text = match json {
        true => serde_json::to_string_pretty(found).map_err(|error| failed(error.into()))? + "\n",
        false => text(found),
    };
    stdout().write_all(text.as_bytes()).map_err(failed)
}
