//! Rules of the house that neither the compiler nor a shell script can check. `scripts/check.sh` runs it from
//! the root of the repository.

mod circles;
mod imports;
mod lines;
mod links;
mod literals;
mod markdown;
mod source;
mod starters;
mod text;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
Usage: volt-checks CHECK PATH...

Checks:
  circles DIR...     no import circle among sibling modules of a crate's source directory
  imports DIR...     the modules of a crate's source directory import each other only downwards
  links FILE...      links, anchors and file names in Markdown files lead somewhere
  lines FILE...      lines have at most 110 columns (tables, links, diagrams and URLs excepted)
  starters FILE...   no sentence of a comment, a string or a page begins with a word that STYLE forbids

Prints each finding. Exit status: 0 without findings, 1 with findings, 2 if the check could not run.";

/// Findings of one check, each a line for the reader.
type Findings = Vec<String>;

fn run(check: &str, paths: &[PathBuf]) -> Result<Findings, String> {
    let check: fn(&Path) -> std::io::Result<Findings> = match check {
        "circles" => circles::check,
        "imports" => imports::check,
        "links" => links::check,
        "lines" => lines::check,
        "starters" => starters::check,
        _ => return Err(format!("unknown check {check}\n{USAGE}")),
    };
    let mut findings = Vec::new();
    for path in paths {
        findings.extend(check(path).map_err(|error| format!("cannot check {}: {error}", path.display()))?);
    }
    Ok(findings)
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let check = arguments.next().unwrap_or_default();
    if check == "--help" || check == "-h" {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let paths: Vec<PathBuf> = arguments.map(PathBuf::from).collect();
    match run(&check.to_string_lossy(), &paths) {
        Ok(findings) => {
            findings.iter().for_each(|finding| println!("{finding}"));
            ExitCode::from(u8::from(!findings.is_empty()))
        }
        Err(problem) => {
            eprintln!("volt-checks: {problem}");
            ExitCode::from(2)
        }
    }
}
