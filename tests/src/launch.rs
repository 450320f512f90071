//! The start of a `volt-vmm`: its console's input and its surroundings.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::guest::Guest;
use crate::held_syncs::HeldSyncs;
use crate::kvm_shim::KvmShim;
use crate::namespace::Namespace;
use crate::pressure::Pressure;
use crate::program::binary;
use crate::scratch::Scratch;
use crate::terminal::Terminal;
use crate::transcript::Transcript;

/// Where a guest's console input comes from.
#[derive(Debug)]
pub enum Input<'a> {
    /// From the test ([`Guest::type_in`]).
    Test,
    /// From a pipe that is closed at once.
    Ended,
    /// From `/dev/null`.
    Null,
    /// From a file.
    File(&'a Path),
    /// From a terminal, which is standard output too.
    Terminal(&'a Terminal),
}

/// A `volt-vmm` that is about to run.
pub(crate) struct Launch<'a> {
    pub(crate) arguments: Vec<OsString>,
    pub(crate) input: Input<'a>,
    pub(crate) namespace: Option<&'a Namespace>,
    pub(crate) shim: KvmShim,
    /// The control group that it is born in.
    pub(crate) pressure: Option<&'a Pressure>,
    /// What holds its syncs.
    pub(crate) syncs: Option<&'a HeldSyncs>,
}

impl Launch<'_> {
    /// With input from the test, and nothing special about its surroundings.
    pub(crate) fn of(arguments: Vec<OsString>) -> Self {
        let (input, shim) = (Input::Test, KvmShim::new());
        Self { arguments, input, namespace: None, shim, pressure: None, syncs: None }
    }

    pub(crate) fn start(self, scratch: Scratch, socket: PathBuf) -> Guest {
        let mut command = Command::new(binary());
        command.args(&self.arguments);
        if let Some(pressure) = self.pressure {
            pressure.apply(&mut command);
        }
        if let Some(namespace) = self.namespace {
            namespace.apply(&mut command);
        }
        self.shim.apply(&mut command);
        if let Some(syncs) = self.syncs {
            syncs.apply(&mut command);
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
    /// A process without a VM, which waits for one to be loaded or booted through its API.
    #[must_use]
    pub fn waiting() -> Self {
        Self::waiting_with(&[])
    }

    /// The same with these options.
    #[must_use]
    pub fn waiting_with(options: &[&str]) -> Self {
        let scratch = Scratch::new();
        let socket = scratch.fresh("api");
        let mut arguments = vec!["--api-socket".into(), socket.clone().into()];
        arguments.extend(options.iter().map(Into::into));
        Launch::of(arguments).start(scratch, socket)
    }
}

/// Dies with the test, and heeds the signals that nohup or a background job of a shell has us ignore:
/// `volt-vmm` would take that for its user's wish.
fn become_a_child() -> std::io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: the default action is valid for any signal.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}
