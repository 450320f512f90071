//! Runs of the program `volt-vmm`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

/// The program, and the directories that it uses in place of the user's.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// Variables of its environment beside those of this process.
    pub(crate) variables: Vec<(&'static str, OsString)>,
}

impl Default for Program {
    fn default() -> Self {
        Self { path: PathBuf::from("volt-vmm"), variables: Vec::new() }
    }
}

impl Program {
    /// Sets a variable of its environment.
    pub(crate) fn set(&mut self, name: &'static str, value: impl Into<OsString>) {
        self.variables.retain(|(known, _)| *known != name);
        self.variables.push((name, value.into()));
    }

    /// Runs it to its end. Returns its standard output.
    ///
    /// # Errors
    /// It cannot be started, or fails.
    pub(crate) fn run(&self, sandbox: &str, act: &'static str, words: &[String]) -> Result<Vec<u8>> {
        let mut command = Command::new(&self.path);
        command.args(words).envs(self.variables.iter().map(|(name, value)| (name, value)));
        let output = command.stdin(Stdio::null()).output().map_err(|cause| Error::Program {
            sandbox: sandbox.to_owned(),
            act,
            program: self.path.clone(),
            cause,
        })?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let lines = said.lines().filter(|line| !line.is_empty());
        let lines = lines.map(|line| line.strip_prefix("volt-vmm: ").unwrap_or(line));
        let mut message = lines.collect::<Vec<_>>().join("; ");
        if message.is_empty() {
            message = format!("{} ended with {}", self.path.display(), output.status);
        }
        Err(Error::Refused { sandbox: sandbox.to_owned(), act, status: output.status.code(), message })
    }

    /// As [`Self::run`], for a command that prints JSON.
    ///
    /// # Errors
    /// As there, or the output is of another kind.
    pub(crate) fn json<T: DeserializeOwned>(
        &self,
        sandbox: &str,
        act: &'static str,
        words: &[String],
    ) -> Result<T> {
        let printed = self.run(sandbox, act, words)?;
        serde_json::from_slice(&printed).map_err(|error| self.differs(sandbox, act, &error.to_string()))
    }

    /// The error of a program of another version.
    pub(crate) fn differs(&self, sandbox: &str, act: &'static str, problem: &str) -> Error {
        let (sandbox, problem) = (sandbox.to_owned(), problem.to_owned());
        Error::Version { sandbox, act, program: self.path.clone(), problem }
    }
}

/// Words of a command line.
pub(crate) fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Result<Vec<u8>> {
        let program = Program { path: "/bin/sh".into(), ..Program::default() };
        program.run("web", "fork", &words(["-c", script]))
    }

    #[test]
    fn error_has_sandbox_act_status_and_messages() {
        let error = sh("echo 'volt-vmm: VM web: no room' >&2; echo >&2; echo cure >&2; exit 3").unwrap_err();
        assert_eq!(error.to_string(), "cannot fork sandbox web: VM web: no room; cure");
        assert!(matches!(error, Error::Refused { status: Some(3), .. }), "{error:?}");
        let error = sh("kill -9 $$").unwrap_err().to_string();
        assert!(error.contains("/bin/sh ended with signal: 9"), "{error}");
    }

    #[test]
    fn missing_program_is_named() {
        let program = Program { path: "/missing/volt-vmm".into(), ..Program::default() };
        let error = program.run("web", "start", &[]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("cannot start sandbox web: cannot start /missing/volt-vmm: No such"),
            "{text}"
        );
    }

    #[test]
    fn later_value_of_a_variable_counts_and_input_is_empty() {
        let mut program = Program { path: "/bin/sh".into(), ..Program::default() };
        program.set("VOLT_RUN_DIR", "/a");
        program.set("VOLT_RUN_DIR", "/b");
        let printed = program.run("web", "start", &words(["-c", "cat; echo $VOLT_RUN_DIR"])).unwrap();
        assert_eq!(printed, b"/b\n");
    }

    #[test]
    fn output_of_another_version_is_refused() {
        let program = Program { path: "/bin/echo".into(), ..Program::default() };
        let error = program.json::<Vec<u8>>("web", "fork", &words(["x"])).unwrap_err().to_string();
        assert!(error.starts_with("cannot fork sandbox web: /bin/echo is of another version: "), "{error}");
    }
}
