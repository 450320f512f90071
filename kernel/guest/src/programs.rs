//! `run`: executes a program of the guest's file system.

use std::process::{Command, Stdio};

use crate::console;
use crate::outcome::Outcome;

/// `run CMD ARGS…`: runs a program to its end and prints its output, standard output first.
pub(crate) fn run(words: &str) -> Outcome {
    let mut words = words.split_whitespace();
    let program = words.next().ok_or("wants a program")?;
    let mut command = Command::new(program);
    let command = command.args(words).stdin(Stdio::null()).env("PATH", "/bin:/sbin:/usr/bin:/usr/sbin");
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    for bytes in [output.stdout, output.stderr] {
        String::from_utf8_lossy(&bytes).lines().for_each(console::line);
    }
    if output.status.success() { Ok(()) } else { Err(output.status.to_string()) }
}
