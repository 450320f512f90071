//! A benchmark's beginning and end, as its user sees them.

use std::env::Args;
use std::iter::Skip;
use std::process::ExitCode;
use std::str::FromStr;

use crate::Result;

/// Runs the benchmark `name` with what `parse` makes of the command line, or prints `help` where that is
/// nothing. An error goes to standard error.
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

/// Lets `take` have every option of a command line: its name, and what gives its value. It says whether
/// there is such an option. Gives the command line again as it was, for the record, or nothing if help was
/// asked for.
///
/// # Errors
/// There is no such option, it has no value, or `take` refuses that.
pub fn options(
    arguments: impl Iterator<Item = String>,
    help: &str,
    mut take: impl FnMut(&str, &mut dyn FnMut() -> Result<String>) -> Result<bool>,
) -> Result<Option<String>> {
    // cargo bench adds the first.
    let given: Vec<_> = arguments.filter(|argument| argument != "--bench").collect();
    let line = given.join(" ");
    let mut given = given.into_iter();
    while let Some(option) = given.next() {
        if option == "--help" {
            return Ok(None);
        }
        let mut value = || given.next().ok_or_else(|| format!("{option} takes a value"));
        if !take(&option, &mut value)? {
            return Err(format!("{option}: no such option\n\n{help}"));
        }
    }
    Ok(Some(line))
}

/// Parts that a benchmark measures: all, or the named ones.
#[derive(Clone, Debug)]
pub struct Parts {
    known: &'static [&'static str],
    wanted: Vec<&'static str>,
}

impl Parts {
    /// All of these.
    #[must_use]
    pub fn all(known: &'static [&'static str]) -> Self {
        Self { known, wanted: known.to_vec() }
    }

    /// Only those given as an option's value, with commas between them.
    ///
    /// # Errors
    /// There is no part of that name.
    pub fn choose(&mut self, text: &str) -> Result<()> {
        let known = |name| self.known.iter().find(|known| **known == name).copied();
        let part = |name| known(name).ok_or_else(|| format!("{name:?} is none of {}", self.known.join(", ")));
        self.wanted = text.split(',').map(part).collect::<Result<_>>()?;
        Ok(())
    }

    /// Whether one is to be measured.
    #[must_use]
    pub fn have(&self, part: &str) -> bool {
        self.wanted.contains(&part)
    }
}

/// Numbers given as an option's value, with commas between them.
///
/// # Errors
/// As [`number`].
pub fn numbers<T: FromStr>(text: &str) -> Result<Vec<T>> {
    text.split(',').map(number).collect()
}

/// A number given as an option's value.
///
/// # Errors
/// It is none, or too large.
pub fn number<T: FromStr>(text: &str) -> Result<T> {
    text.parse().map_err(|_| format!("{text:?} is not a number that this takes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<(Option<String>, Vec<u32>)> {
        let mut found = Vec::new();
        let words = line.split_whitespace().map(str::to_owned);
        let line = options(words, "the help", |option, value| match option {
            "--list" => Ok(numbers(&value()?).map(|list| found = list).is_ok()),
            _ => Ok(false),
        })?;
        Ok((line, found))
    }

    #[test]
    fn parts_are_all_or_those_that_are_named() {
        let mut parts = Parts::all(&["one", "two"]);
        assert!(parts.have("one") && parts.have("two") && !parts.have("three"));
        parts.choose("two").unwrap();
        assert!(!parts.have("one") && parts.have("two"));
        assert_eq!(parts.choose("two,three"), Err("\"three\" is none of one, two".to_owned()));
    }

    #[test]
    fn every_option_is_taken_or_refused() {
        assert_eq!(read("--bench --list 1,20"), Ok((Some("--list 1,20".to_owned()), vec![1, 20])));
        assert_eq!(read("--list 1 --help"), Ok((None, vec![1])));
        assert_eq!(read("--list"), Err("--list takes a value".to_owned()));
        assert_eq!(read("--lists 1"), Err("--lists: no such option\n\nthe help".to_owned()));
    }
}
