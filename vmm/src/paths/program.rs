//! Descriptions of other programs: pagers, children of forks, and passt.
#![allow(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use super::call::PathText;

/// The number that [`Program::descriptor`] has in the program.
pub const DESCRIPTOR: i32 = 3;

/// This process's own program.
#[cfg(any(test, feature = "internal"))]
pub const OWN_PROGRAM: &str = "/proc/self/exe";

/// A standard stream of a program.
#[derive(Debug, Default)]
pub enum Stream {
    /// `/dev/null`.
    #[default]
    Null,
    /// The stream of this process. For standard error only.
    Inherited,
    /// This file.
    File(OwnedFd),
}

/// A program to start.
#[derive(Debug)]
pub struct Program {
    /// A path, or a name to look for in `PATH`.
    pub program: OsString,
    /// Its name for itself, if it is another.
    pub name: Option<OsString>,
    /// Its arguments, without its name.
    pub arguments: Vec<OsString>,
    /// Its standard input.
    pub stdin: Stream,
    /// Its standard output.
    pub stdout: Stream,
    /// Its standard error.
    pub stderr: Stream,
    /// A further descriptor, which gets the number [`DESCRIPTOR`].
    pub descriptor: Option<OwnedFd>,
}

impl Program {
    /// A program whose standard streams are `/dev/null`.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            name: None,
            arguments: Vec::new(),
            stdin: Stream::Null,
            stdout: Stream::Null,
            stderr: Stream::Null,
            descriptor: None,
        }
    }

    /// Adds an argument.
    pub fn argument(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn arguments(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }
}

/// Builds the command. A descriptor that keeps its number must lose its flag to close at exec.
pub(super) fn command(program: Program) -> Command {
    let Program { program, name, arguments, stdin, stdout, stderr, descriptor } = program;
    let stream = |stream| match stream {
        Stream::Null => Stdio::null(),
        Stream::Inherited => Stdio::inherit(),
        Stream::File(file) => Stdio::from(file),
    };
    let mut command = Command::new(program);
    if let Some(name) = name {
        command.arg0(name);
    }
    command.args(arguments).stdin(stream(stdin)).stdout(stream(stdout)).stderr(stream(stderr));
    if let Some(descriptor) = descriptor {
        let place = move || {
            let number = descriptor.as_raw_fd();
            // SAFETY: dup2 and fcntl may be called between fork and exec. In this copy of the process,
            // number 3 belongs to the program, or is closed at exec.
            let done = unsafe {
                match number {
                    DESCRIPTOR => libc::fcntl(DESCRIPTOR, libc::F_SETFD, 0),
                    _ => libc::dup2(number, DESCRIPTOR),
                }
            };
            if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        };
        // SAFETY: the closure makes system calls only.
        unsafe { command.pre_exec(place) };
    }
    command
}

/// Returns a descriptor of a program that was started just now (pidfd_open(2)).
///
/// # Errors
/// The host refuses. The program is then ended: its process has no other owner.
pub(super) fn handle_of(child: &mut Child) -> io::Result<OwnedFd> {
    let handle = pidfd_open(Pid::from_child(child), PidfdFlags::empty());
    Ok(handle.inspect_err(|_| {
        let _ = child.kill().and_then(|()| child.wait());
    })?)
}

/// Programs that may be started while the guest runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramPattern {
    program: PathText,
    name: Option<PathText>,
    /// The first arguments. An absent one may be any.
    arguments: Vec<Option<PathText>>,
    /// Options that may follow, each with a value that may be any.
    options: Vec<PathText>,
}

impl ProgramPattern {
    /// A program with these arguments, of which an absent one may be any.
    pub fn new<'a>(
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = Option<&'a OsStr>>,
    ) -> Self {
        let arguments = arguments.into_iter().map(|argument| argument.map(text)).collect();
        Self { program: text(program.as_ref()), name: None, arguments, options: Vec::new() }
    }

    /// Gives the program this name for itself. Some programs act by it.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: Some(text(name.as_ref())), ..self }
    }

    /// Allows these options after the arguments, any number of times and each with any value.
    #[must_use]
    pub fn with_options(self, options: &[&str]) -> Self {
        Self { options: options.iter().map(|option| text(option.as_ref())).collect(), ..self }
    }

    /// This program alone.
    pub(super) fn of(program: &Program) -> Self {
        let arguments = program.arguments.iter().map(|argument| Some(argument.as_os_str()));
        Self { name: program.name.as_deref().map(text), ..Self::new(&program.program, arguments) }
    }

    /// The program of a message alone.
    pub(super) fn of_start(start: &ProgramStart) -> Self {
        Self {
            program: start.program.clone(),
            name: start.name.clone(),
            options: Vec::new(),
            arguments: start.arguments.iter().cloned().map(Some).collect(),
        }
    }

    pub(super) fn allows(&self, start: &ProgramStart) -> bool {
        let same = |(allowed, argument): (&Option<PathText>, &PathText)| {
            allowed.as_ref().is_none_or(|allowed| allowed == argument)
        };
        let Some((first, rest)) = start.arguments.split_at_checked(self.arguments.len()) else {
            return false;
        };
        let allowed = |pair: &[PathText]| pair.len() == 2 && self.options.contains(&pair[0]);
        (&self.program, &self.name) == (&start.program, &start.name)
            && self.arguments.iter().zip(first).all(same)
            && rest.chunks(2).all(allowed)
    }
}

fn text(text: &OsStr) -> PathText {
    PathText::from(Path::new(text))
}

/// A [`Program`] as a message. Its files lie beside it, in the order of the fields.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ProgramStart {
    pub program: PathText,
    name: Option<PathText>,
    pub arguments: Vec<PathText>,
    stdin: StreamKind,
    stdout: StreamKind,
    stderr: StreamKind,
    descriptor: bool,
    /// The signals that the calling thread blocks, which the program inherits.
    pub blocked: Vec<i32>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum StreamKind {
    Null,
    Inherited,
    File,
}

impl ProgramStart {
    pub fn split(program: &Program) -> (Self, Vec<BorrowedFd<'_>>) {
        let Program { program, name, arguments, stdin, stdout, stderr, descriptor } = program;
        let mut beside = Vec::new();
        let [stdin, stdout, stderr] = [stdin, stdout, stderr].map(|stream| match stream {
            Stream::Null => StreamKind::Null,
            Stream::Inherited => StreamKind::Inherited,
            Stream::File(file) => {
                beside.push(file.as_fd());
                StreamKind::File
            }
        });
        beside.extend(descriptor.as_ref().map(AsFd::as_fd));
        let (name, arguments) =
            (name.as_deref().map(text), arguments.iter().map(|argument| text(argument)).collect());
        let descriptor = descriptor.is_some();
        let (program, blocked) = (text(program), blocked_signals());
        (Self { program, name, arguments, stdin, stdout, stderr, descriptor, blocked }, beside)
    }

    pub fn join(self, beside: Vec<OwnedFd>) -> io::Result<Program> {
        let mut files = beside.into_iter();
        let mut next = || files.next().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData));
        let mut stream = |kind| {
            Ok::<_, io::Error>(match kind {
                StreamKind::Null => Stream::Null,
                StreamKind::Inherited => Stream::Inherited,
                StreamKind::File => Stream::File(next()?),
            })
        };
        let (stdin, stdout, stderr) = (stream(self.stdin)?, stream(self.stdout)?, stream(self.stderr)?);
        let descriptor = if self.descriptor { Some(next()?) } else { None };
        let text = |text: PathText| std::path::PathBuf::from(text).into_os_string();
        let (name, arguments) = (self.name.map(text), self.arguments.into_iter().map(text).collect());
        Ok(Program { program: text(self.program), name, arguments, stdin, stdout, stderr, descriptor })
    }
}

/// The signals that the calling thread blocks.
pub(super) fn blocked_signals() -> Vec<i32> {
    // SAFETY: zeroes are a valid set, a null new set only queries, and the numbers are those of signals.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut set);
        (1..=libc::SIGRTMAX()).filter(|signal| libc::sigismember(&raw const set, *signal) == 1).collect()
    }
}

/// Makes the calling thread block these signals and no others.
pub(super) fn block_signals(signals: &[i32]) {
    // SAFETY: sigemptyset initialises the set, and other numbers than those of signals are refused.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}
