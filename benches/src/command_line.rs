//! The command line of a benchmark, its errors and its exit status.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, ValueEnum};

use crate::{Result, built};

/// Runs a benchmark with the options of the command line. Prints an error to standard error.
pub fn run<Options: Parser>(run: impl FnOnce(&Options) -> Result<()>) -> ExitCode {
    let options = Options::parse_from(std::env::args().filter(is_ours));
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", Options::command().get_name());
            ExitCode::FAILURE
        }
    }
}

/// The options of the command line in one line, for the record.
#[must_use]
pub fn given() -> String {
    let quoted = |word: String| if word.contains(' ') { format!("'{word}'") } else { word };
    std::env::args().skip(1).filter(is_ours).map(quoted).collect::<Vec<_>>().join(" ")
}

/// Whether an argument is not one that cargo bench adds.
fn is_ours(argument: &String) -> bool {
    argument != "--bench"
}

/// The parts of a benchmark to measure: all, or the named ones.
#[derive(Args, Clone, Debug)]
pub struct Only<Part: ValueEnum + PartialEq + Send + Sync + 'static> {
    /// Measure only these parts, separated by commas
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',', action = ArgAction::Set)]
    only: Vec<Part>,
}

impl<Part: ValueEnum + PartialEq + Send + Sync + 'static> Only<Part> {
    /// Whether to measure a part.
    #[must_use]
    pub fn has(&self, part: &Part) -> bool {
        self.only.is_empty() || self.only.contains(part)
    }
}

/// The program to measure.
#[derive(Args, Clone, Debug)]
pub struct Program {
    /// Program to measure [default: the release binary of this tree]
    #[arg(long, value_name = "FILE")]
    volt_vmm: Option<PathBuf>,
}

impl Program {
    /// Its path.
    ///
    /// # Errors
    /// The release binary of this tree does not build.
    pub fn path(&self) -> Result<PathBuf> {
        self.volt_vmm.clone().map_or_else(built::volt_vmm, Ok)
    }
}

/// How runs of all that is compared take turns.
#[derive(Args, Clone, Copy, Debug)]
pub struct Turns {
    /// Pause between two runs in milliseconds
    #[arg(long = "pause", value_name = "MS", default_value_t = 5)]
    pause_ms: u64,

    /// Give all that is measured priority over other programs (SCHED_FIFO, as root), for a busy machine
    #[arg(long)]
    pub realtime: bool,
}

impl Turns {
    /// The pause between two runs.
    #[must_use]
    pub fn pause(&self) -> Duration {
        Duration::from_millis(self.pause_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq, ValueEnum)]
    enum Part {
        One,
        Two,
    }

    #[derive(Debug, Parser)]
    #[command(args_override_self = true)]
    struct PartOptions {
        #[command(flatten)]
        only: Only<Part>,
    }

    fn parse(line: &str) -> std::result::Result<Only<Part>, String> {
        let options = PartOptions::try_parse_from(["bench"].into_iter().chain(line.split_whitespace()));
        options.map(|options| options.only).map_err(|error| error.to_string())
    }

    #[test]
    fn benchmark_measures_all_parts_or_the_named_ones() {
        let all = parse("").unwrap();
        assert!(all.has(&Part::One) && all.has(&Part::Two));
        let second = parse("--only two").unwrap();
        assert!(!second.has(&Part::One) && second.has(&Part::Two));
        let both = parse("--only two,one").unwrap();
        assert!(both.has(&Part::One) && both.has(&Part::Two));
        // A script puts its defaults before the options of its caller.
        let last = parse("--only one,two --only two").unwrap();
        assert!(!last.has(&Part::One) && last.has(&Part::Two));
        let error = parse("--only two,three").unwrap_err();
        assert!(error.contains("'three'") && error.contains("possible values: one, two"), "{error}");
    }
}
