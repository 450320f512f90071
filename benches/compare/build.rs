//! One of the two builds: its programs, and its probe, which runs.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command};
use std::time::Duration;

use volt_benches::process::Running;
use volt_benches::{OrSay, Result};

/// See the module.
pub struct Build {
    /// The program `volt-vmm`.
    pub volt_vmm: PathBuf,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _probe: Running,
}

impl Build {
    /// Starts the probe in `dir`.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(dir: &Path, memory: Option<&Path>) -> Result<Self> {
        let mut probe = Command::new(dir.join("compare"));
        probe.arg("--probe");
        if let Some(memory) = memory {
            probe.arg("--memory").arg(memory);
        }
        let (probe, input, output) = Running::talking(&mut probe)?;
        Ok(Self { volt_vmm: dir.join("volt-vmm"), input, output: BufReader::new(output), _probe: probe })
    }

    /// Has the probe do an act once. Returns what was timed of it, by name.
    ///
    /// # Errors
    /// The act failed.
    pub fn act(&mut self, act: &str) -> Result<Vec<(String, Duration)>> {
        writeln!(self.input, "{act}").or_say("ask a probe")?;
        let mut line = String::new();
        self.output.read_line(&mut line).or_say("hear a probe")?;
        let wrong = || format!("{}: {act}: {}", self.volt_vmm.display(), line.trim());
        let time = |part: &str| {
            let (name, nanoseconds) = part.rsplit_once('=')?;
            Some((name.to_owned(), Duration::from_nanos(nanoseconds.parse().ok()?)))
        };
        let times: Option<Vec<_>> = line.trim_end_matches('\n').split(';').map(time).collect();
        times.ok_or_else(wrong)
    }
}
