//! What a guest is started with.
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
use crate::outcome::Outcome;
use crate::pressure::Pressure;
use crate::scratch::Scratch;
use crate::terminal::Terminal;
use crate::transcript::Transcript;

/// Where a machine's interrupt controllers can be, as `--irqchip` takes it.
pub const IRQCHIPS: [&str; 2] = ["kernel", "split"];

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

/// A boot of a kernel that is about to happen.
#[derive(Debug)]
pub struct Boot<'a> {
    kernel: PathBuf,
    initrd: Option<PathBuf>,
    cmdline: String,
    memory: String,
    vcpus: String,
    devices: Vec<OsString>,
    input: Input<'a>,
    namespace: Option<&'a Namespace>,
    shim: KvmShim,
    syncs: Option<&'a HeldSyncs>,
    scratch: Scratch,
}

impl<'a> Boot<'a> {
    /// The small guest, with 64 MiB and one vCPU. The first word of the command line says what it does (guests/guest.c).
    #[must_use]
    pub fn small(cmdline: &str) -> Self {
        Self::kernel(crate::small_guest(), cmdline).memory("64M")
    }

    /// The Linux of this project, with its init, which takes orders ([`Guest::order`]).
    ///
    /// # Panics
    /// `VOLT_KERNEL` is not set: the test must begin with `needs!(linux)`.
    #[must_use]
    pub fn linux() -> Self {
        Self::linux_of("VOLT_KERNEL")
    }

    /// The same with all of the kernel's messages.
    #[must_use]
    pub fn linux_loud() -> Self {
        Self { cmdline: "console=ttyS0 reboot=k panic=-1".to_owned(), ..Self::linux() }
    }

    /// The kernel that an environment variable names, with the project's init.
    ///
    /// # Panics
    /// The variable is not set.
    #[must_use]
    pub fn linux_of(variable: &str) -> Self {
        let file =
            |variable| std::env::var_os(variable).map(PathBuf::from).expect("the test began with needs!");
        let boot = Self::kernel(file(variable), "console=ttyS0 reboot=k panic=-1 quiet").memory("256M");
        Self { initrd: Some(file("VOLT_INITRD")), ..boot }
    }

    /// Any kernel.
    #[must_use]
    pub fn kernel(kernel: impl Into<PathBuf>, cmdline: &str) -> Self {
        Self {
            kernel: kernel.into(),
            initrd: None,
            cmdline: cmdline.to_owned(),
            memory: "64M".to_owned(),
            vcpus: "1".to_owned(),
            devices: Vec::new(),
            input: Input::Test,
            namespace: None,
            shim: KvmShim::new(),
            syncs: None,
            scratch: Scratch::new(),
        }
    }

    /// With an initrd.
    #[must_use]
    pub fn initrd(self, initrd: impl Into<PathBuf>) -> Self {
        Self { initrd: Some(initrd.into()), ..self }
    }

    /// With more words on the kernel command line.
    #[must_use]
    pub fn and(mut self, words: &str) -> Self {
        self.cmdline = format!("{} {words}", self.cmdline);
        self
    }

    /// With this much memory, as `--memory` takes it.
    #[must_use]
    pub fn memory(self, memory: &str) -> Self {
        Self { memory: memory.to_owned(), ..self }
    }

    /// With this many vCPUs.
    #[must_use]
    pub fn vcpus(self, vcpus: u32) -> Self {
        Self { vcpus: vcpus.to_string(), ..self }
    }

    /// With its interrupt controllers there: one of [`IRQCHIPS`].
    #[must_use]
    pub fn irqchip(self, kind: &str) -> Self {
        self.device(["--irqchip", kind])
    }

    /// With a device, as an option of `volt-vmm run`: its words, such as `--disk` and `path=/root.img`.
    #[must_use]
    pub fn device<S: Into<OsString>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.devices.extend(words.into_iter().map(Into::into));
        self
    }

    /// With this console input.
    #[must_use]
    pub fn input(self, input: Input<'a>) -> Self {
        Self { input, ..self }
    }

    /// In a mount namespace.
    #[must_use]
    pub fn inside(self, namespace: &'a Namespace) -> Self {
        Self { namespace: Some(namespace), ..self }
    }

    /// On another KVM.
    #[must_use]
    pub fn on(self, shim: &KvmShim) -> Self {
        Self { shim: shim.clone(), ..self }
    }

    /// With syncs that the test can hold.
    #[must_use]
    pub fn syncs(self, syncs: &'a HeldSyncs) -> Self {
        Self { syncs: Some(syncs), ..self }
    }

    /// In this scratch directory.
    #[must_use]
    pub fn scratch(self, scratch: &Scratch) -> Self {
        Self { scratch: scratch.clone(), ..self }
    }

    /// Starts it.
    #[must_use]
    pub fn start(self) -> Guest {
        let socket = self.scratch.fresh("api");
        let mut arguments = self.arguments();
        arguments.extend(["--api-socket".into(), socket.clone().into_os_string()]);
        let Self { input, namespace, shim, syncs, scratch, .. } = self;
        Launch { input, namespace, shim, syncs, ..Launch::of(arguments) }.start(scratch, socket)
    }

    /// Runs it to its end, without input.
    #[must_use]
    pub fn outcome(self) -> Outcome {
        let mut command = Command::new(binary());
        command.args(self.arguments());
        if let Some(namespace) = self.namespace {
            namespace.apply(&mut command);
        }
        self.shim.apply(&mut command);
        Outcome::of_command(&mut command)
    }

    fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["run".into(), "--kernel".into(), self.kernel.clone().into()];
        if let Some(initrd) = &self.initrd {
            arguments.extend(["--initrd".into(), initrd.clone().into()]);
        }
        for (option, value) in
            [("--cmdline", &self.cmdline), ("--memory", &self.memory), ("--vcpus", &self.vcpus)]
        {
            arguments.extend([option.into(), value.into()]);
        }
        arguments.extend_from_slice(&self.devices);
        arguments
    }
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

/// Dies with the test, and heeds the signals that nohup or a background job of a shell has us ignore: `volt-vmm` would
/// take that for its user's wish.
fn become_a_child() -> std::io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: the default action is valid for any signal.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// The binary under test.
///
/// # Panics
/// There is none.
#[must_use]
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("VOLT_VMM") {
        return path.into();
    }
    // target/<triple>/debug/deps/<this test> beside target/<triple>/debug/volt-vmm
    let this = std::env::current_exe().expect("this executable has a path");
    let beside = this
        .ancestors()
        .skip(1)
        .take(2)
        .map(|directory| directory.join("volt-vmm"))
        .find(|path| path.is_file());
    beside.expect("no volt-vmm beside the tests: build it first (cargo build), or set VOLT_VMM")
}
