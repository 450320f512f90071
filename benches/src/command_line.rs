//! A benchmark's beginning and end, as its user sees them.

use std::env::Args;
use std::iter::Skip;
use std::process::ExitCode;
use std::str::FromStr;

use crate::Result;

/// Runs the benchmark `name` with what `parse` makes of the command line, or prints `help` where that is nothing. An error goes to
/// standard error.
pub fn run<Options>(
    name: &str,
    help: &str,
    parse: impl FnOnce(Skip<Args>) -> Result<Option<Options>>,
    run: impl FnOnce(&Options) -> Result<()>,
) -> ExitCode {
    let outcome = parse(std::env::args().skip(1)).and_then(|options| match options {
        Some(options) => run(&options),
        None => {
            println!("{help}");
            Ok(())
        }
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A number given as an option's value.
///
/// # Errors
/// It is none, or too large.
pub fn number<T: FromStr>(text: &str) -> Result<T> {
    text.parse().map_err(|_| format!("{text:?} is not a number that this takes"))
}
