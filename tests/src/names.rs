//! VMs with names, in a run directory of the test's own.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::guest::Guest;
use crate::launch::{Input, Launch};
use crate::outcome::Outcome;
use crate::patience::wait_until;
use crate::program::binary;
use crate::scratch::Scratch;

/// A run directory and a directory of snapshots. All VMs in it are killed on drop.
#[derive(Debug)]
pub struct Names {
    scratch: Scratch,
}

impl Names {
    /// Makes empty directories.
    #[must_use]
    pub fn new() -> Self {
        Self::in_scratch(Scratch::new())
    }

    /// Makes empty directories in this one.
    ///
    /// # Panics
    /// The file system refuses.
    #[must_use]
    pub fn in_scratch(scratch: Scratch) -> Self {
        for directory in ["run", "data"] {
            let made = DirBuilder::new().mode(0o700).create(scratch.path(directory));
            made.expect("make a directory");
        }
        Self { scratch }
    }

    /// Returns the scratch directory.
    #[must_use]
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Returns the run directory of all VMs.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.scratch.path("run/volt-vmm")
    }

    /// Returns the run directory of one VM.
    #[must_use]
    pub fn of(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// Returns the variables that name these directories.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, OsString); 2] {
        let path = |name| self.scratch.path(name).into_os_string();
        [("VOLT_RUN_DIR", path("run/volt-vmm")), ("VOLT_DATA_DIR", path("data/volt-vmm"))]
    }

    /// Makes a command of `volt-vmm` with these directories.
    #[must_use]
    pub fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(binary());
        command.args(arguments).envs(self.environment());
        command
    }

    /// Runs a command line of `volt-vmm`, whose words have no blanks, to its end.
    #[must_use]
    pub fn run(&self, line: &str) -> Outcome {
        Outcome::of_command(&mut self.command(line.split_whitespace()))
    }

    /// Runs a command line that must succeed. Returns its output.
    ///
    /// # Panics
    /// It fails.
    pub fn ok(&self, line: &str) -> String {
        let outcome = self.run(line);
        outcome.succeeded();
        outcome.stdout
    }

    /// Runs a command line that must succeed. Returns its output, decoded.
    ///
    /// # Panics
    /// It fails, or prints no JSON.
    #[must_use]
    pub fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.ok(line)).expect("JSON on standard output")
    }

    /// Boots the small guest with a name in the background.
    ///
    /// # Panics
    /// It does not start.
    pub fn boot(&self, name: &str, cmdline: &str) {
        let mut words = small(cmdline);
        words.extend(["--detach".into(), "--name".into(), name.into()]);
        let outcome = Outcome::of_command(&mut self.command(words));
        outcome.succeeded();
        assert_eq!(outcome.stdout, format!("{name}\n"));
    }

    /// Starts `volt-vmm` in the foreground.
    #[must_use]
    pub fn start(&self, arguments: Vec<OsString>, input: Input<'_>) -> Guest {
        self.start_with(arguments, input, &[])
    }

    /// Starts `volt-vmm` in the foreground with more variables.
    #[must_use]
    pub fn start_with(
        &self,
        arguments: Vec<OsString>,
        input: Input<'_>,
        variables: &[(&'static str, OsString)],
    ) -> Guest {
        let environment = [&self.environment()[..], variables].concat();
        let launch = Launch { input, environment, ..Launch::of(arguments) };
        launch.start(self.scratch.clone(), self.scratch.fresh("none"))
    }

    /// Returns the state of a VM in `ps`.
    #[must_use]
    pub fn state(&self, name: &str) -> Option<String> {
        let all = self.json("ps --all --json");
        let row = all.as_array()?.iter().find(|row| row["name"] == name)?.clone();
        row["state"].as_str().map(str::to_owned)
    }

    /// Returns the process of a VM.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    pub fn pid(&self, name: &str) -> u32 {
        let record = fs::read(self.of(name).join("vm.json")).expect("the record of a VM");
        let record: Value = serde_json::from_slice(&record).expect("a record is JSON");
        record["pid"].as_u64().and_then(|pid| pid.try_into().ok()).expect("the process of a VM")
    }

    /// Waits until the log of a VM has `text`.
    pub fn wait_for(&self, name: &str, text: &str) {
        wait_until(&format!("{name} says {text:?}"), || {
            self.run(&format!("logs {name}")).stdout.contains(text)
        });
    }
}

impl Default for Names {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        for entry in fs::read_dir(self.root()).into_iter().flatten().flatten() {
            let name = entry.file_name();
            // One that has ended, or that the test damaged, is no error here.
            let _ = self.command([OsStr::new("kill"), &name]).output();
        }
    }
}

/// Returns the arguments that boot the small guest with 64 MiB.
#[must_use]
pub fn small(cmdline: &str) -> Vec<OsString> {
    let guest = crate::small_guest();
    let words: [&OsStr; 7] = [
        "run".as_ref(),
        "--kernel".as_ref(),
        guest.as_os_str(),
        "--cmdline".as_ref(),
        cmdline.as_ref(),
        "--memory".as_ref(),
        "64M".as_ref(),
    ];
    words.map(OsStr::to_owned).to_vec()
}

/// Returns the arguments that boot the small guest with a name in the foreground.
#[must_use]
pub fn named(name: &str, cmdline: &str) -> Vec<OsString> {
    let mut words = small(cmdline);
    words.extend(["--name".into(), name.into()]);
    words
}

/// Whether a process exists.
#[must_use]
pub fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
