//! Starts of `volt-vmm`: its console input and its surroundings.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::faults::Injector;
use crate::guest::Guest;
use crate::held_syncs::HeldSyncs;
use crate::kvm_shim::KvmShim;
use crate::namespace::Namespace;
use crate::pressure::{MemoryLimit, Pressure};
use crate::program::binary;
use crate::scratch::Scratch;
use crate::terminal::Terminal;
use crate::transcript::Transcript;

/// A secret in the environment of every `volt-vmm` that a test starts ([`Boot`](crate::Boot)).
pub const SECRET: &str = "secret-of-the-environment";

/// The source of a guest's console input.
#[derive(Debug)]
pub enum Input<'a> {
    /// The test types ([`Guest::type_in`]).
    Test,
    /// A pipe that is closed at once.
    Ended,
    /// `/dev/null`.
    Null,
    /// A file.
    File(&'a Path),
    /// A terminal, which is standard output, too.
    Terminal(&'a Terminal),
}

/// A `volt-vmm` that is about to start.
pub(crate) struct Launch<'a> {
    pub(crate) arguments: Vec<OsString>,
    pub(crate) input: Input<'a>,
    pub(crate) namespace: Option<&'a Namespace>,
    pub(crate) shim: KvmShim,
    /// The control groups of the process.
    pub(crate) pressure: Option<&'a Pressure>,
    pub(crate) limit: Option<&'a MemoryLimit>,
    /// The syncs that the test can hold.
    pub(crate) syncs: Option<&'a HeldSyncs>,
    /// The faults of its system calls.
    pub(crate) faults: Option<&'a Injector>,
    /// Variables of its environment.
    pub(crate) environment: Vec<(&'static str, OsString)>,
    /// Whether it works in the scratch directory.
    pub(crate) in_scratch: bool,
}

impl Launch<'_> {
    /// Starts `volt-vmm` with input from the test and no special surroundings.
    pub(crate) fn of(arguments: Vec<OsString>) -> Self {
        let (input, shim) = (Input::Test, KvmShim::new());
        let (namespace, pressure, limit) = (None, None, None);
        let environment = Vec::new();
        Self {
            arguments,
            input,
            namespace,
            shim,
            pressure,
            limit,
            syncs: None,
            faults: None,
            environment,
            in_scratch: false,
        }
    }

    pub(crate) fn start(self, scratch: Scratch, socket: PathBuf) -> Guest {
        let mut command = Command::new(binary());
        command.args(&self.arguments).env("TOKEN", SECRET).envs(self.environment);
        if self.in_scratch {
            command.current_dir(scratch.directory());
        }
        if let Some(pressure) = self.pressure {
            pressure.apply(&mut command);
        }
        if let Some(limit) = self.limit {
            limit.apply(&mut command);
        }
        if let Some(namespace) = self.namespace {
            namespace.apply(&mut command);
        }
        self.shim.apply(&mut command);
        if let Some(syncs) = self.syncs {
            syncs.apply(&mut command);
        }
        if let Some(faults) = self.faults {
            faults.apply(&mut command);
        }
        // SAFETY: between fork and exec only system calls are made.
        unsafe { command.pre_exec(become_a_child) };
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let opened = |file: std::io::Result<File>| file.expect("open the console's input");
        match &self.input {
            Input::Test | Input::Ended => command.stdin(Stdio::piped()),
            Input::Null => command.stdin(Stdio::null()),
            Input::File(path) => command.stdin(opened(File::open(path))),
            Input::Terminal(terminal) => terminal.own(&mut command),
        };
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let typed = child.stdin.take().map(OwnedFd::from);
        let output = Transcript::of(match (child.stdout.take(), &self.input) {
            (Some(stream), _) => File::from(OwnedFd::from(stream)),
            (None, Input::Terminal(terminal)) => terminal.end(),
            (None, _) => File::open("/dev/null").expect("open /dev/null"),
        });
        let stderr = child.stderr.take().map_or_else(Transcript::default, Transcript::of);
        let on_terminal = matches!(self.input, Input::Terminal(_));
        let typed = match self.input {
            Input::Test => typed.map(File::from),
            Input::Terminal(terminal) => Some(terminal.end()),
            _ => None,
        };
        Guest::new(child, typed, (output, stderr), on_terminal, scratch, socket)
    }
}

impl Guest {
    /// Starts a process without a VM, which waits for a load or a boot through its API.
    #[must_use]
    pub fn waiting() -> Self {
        Self::waiting_with(&[])
    }

    /// Starts a waiting process with these options.
    #[must_use]
    pub fn waiting_with(options: &[&str]) -> Self {
        Self::waiting_in("--api-socket", options, false)
    }

    /// As [`Guest::waiting_with`]. Files with relative paths, which requests may have, are the scratch
    /// directory's.
    #[must_use]
    pub fn waiting_in_scratch(options: &[&str]) -> Self {
        Self::waiting_in("--api-socket", options, true)
    }

    /// As [`Guest::waiting_with`], by Firecracker's command line.
    #[must_use]
    pub fn of_firecracker(options: &[&str]) -> Self {
        Self::waiting_in("--api-sock", options, false)
    }

    fn waiting_in(option: &str, options: &[&str], in_scratch: bool) -> Self {
        let scratch = Scratch::new();
        let socket = scratch.fresh("api");
        let mut arguments = vec![option.into(), socket.clone().into()];
        arguments.extend(options.iter().map(Into::into));
        Launch { in_scratch, ..Launch::of(arguments) }.start(scratch, socket)
    }
}

/// Ties the child to the test's life, and resets signals that nohup or a background job ignores. `volt-vmm`
/// would take an ignored signal for its user's wish.
fn become_a_child() -> std::io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: the default action is valid for any signal.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}
