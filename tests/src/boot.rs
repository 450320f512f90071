//! Boots: the kernel, machine and devices that a guest is started with.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::faults::Injector;
use crate::guest::Guest;
use crate::held_syncs::HeldSyncs;
use crate::kvm_shim::KvmShim;
use crate::launch::{Input, Launch};
use crate::namespace::Namespace;
use crate::outcome::Outcome;
use crate::patience::in_lab;
use crate::program::binary;
use crate::scratch::Scratch;

/// The values of `--irqchip`: interrupt controllers in the kernel, or split.
pub const IRQCHIPS: [&str; 2] = ["kernel", "split"];

/// A kernel that is about to boot.
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
    faults: Option<&'a Injector>,
    scratch: Scratch,
}

impl<'a> Boot<'a> {
    /// Boots the small guest with 64 MiB and one vCPU. The first word of the command line chooses its
    /// behaviour (guests/guest.c).
    #[must_use]
    pub fn small(cmdline: &str) -> Self {
        Self::kernel(crate::small_guest(), cmdline).memory("64M")
    }

    /// Boots this project's Linux, whose init takes orders ([`Guest::order`]).
    ///
    /// # Panics
    /// `VOLT_KERNEL` is not set: the test must begin with `needs!(linux)`.
    #[must_use]
    pub fn linux() -> Self {
        Self::linux_of("VOLT_KERNEL")
    }

    /// Boots this project's Linux with all kernel messages on the console.
    #[must_use]
    pub fn linux_loud() -> Self {
        Self { cmdline: linux_cmdline(), ..Self::linux() }
    }

    /// Boots the kernel that an environment variable names, with the project's init.
    ///
    /// # Panics
    /// The variable is not set.
    #[must_use]
    pub fn linux_of(variable: &str) -> Self {
        let file =
            |variable| std::env::var_os(variable).map(PathBuf::from).expect("the test began with needs!");
        let boot = Self::kernel(file(variable), &linux_cmdline()).cmdline_words("quiet").memory("256M");
        Self { initrd: Some(file("VOLT_INITRD")), ..boot }
    }

    /// Boots any kernel.
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
            faults: None,
            scratch: Scratch::new(),
        }
    }

    /// Adds an initrd.
    #[must_use]
    pub fn initrd(self, initrd: impl Into<PathBuf>) -> Self {
        Self { initrd: Some(initrd.into()), ..self }
    }

    /// Adds words to the kernel command line.
    #[must_use]
    pub fn cmdline_words(mut self, words: &str) -> Self {
        self.cmdline = format!("{} {words}", self.cmdline);
        self
    }

    /// Sets the memory, in the syntax of `--memory`.
    #[must_use]
    pub fn memory(self, memory: &str) -> Self {
        Self { memory: memory.to_owned(), ..self }
    }

    /// Sets the number of vCPUs.
    #[must_use]
    pub fn vcpus(self, vcpus: u32) -> Self {
        Self { vcpus: vcpus.to_string(), ..self }
    }

    /// Sets the irqchip: one of [`IRQCHIPS`].
    #[must_use]
    pub fn irqchip(self, kind: &str) -> Self {
        self.device(["--irqchip", kind])
    }

    /// Adds options of `volt-vmm run`, such as `--disk` and `path=/root.img`.
    #[must_use]
    pub fn device<S: Into<OsString>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.devices.extend(words.into_iter().map(Into::into));
        self
    }

    /// Sets the console input.
    #[must_use]
    pub fn input(self, input: Input<'a>) -> Self {
        Self { input, ..self }
    }

    /// Runs in this namespace.
    #[must_use]
    pub fn inside(self, namespace: &'a Namespace) -> Self {
        Self { namespace: Some(namespace), ..self }
    }

    /// Runs on another KVM.
    #[must_use]
    pub fn on_kvm(self, shim: &KvmShim) -> Self {
        Self { shim: shim.clone(), ..self }
    }

    /// Lets the test hold the VM's syncs.
    #[must_use]
    pub fn syncs(self, syncs: &'a HeldSyncs) -> Self {
        Self { syncs: Some(syncs), ..self }
    }

    /// Lets the test fail system calls of the VM.
    #[must_use]
    pub fn faults(self, faults: &'a Injector) -> Self {
        Self { faults: Some(faults), ..self }
    }

    /// Uses this scratch directory.
    #[must_use]
    pub fn scratch(self, scratch: &Scratch) -> Self {
        Self { scratch: scratch.clone(), ..self }
    }

    /// Starts the guest.
    #[must_use]
    pub fn start(self) -> Guest {
        let socket = self.scratch.fresh("api");
        let mut arguments = self.arguments();
        arguments.extend(["--api-socket".into(), socket.clone().into_os_string()]);
        let Self { input, namespace, shim, syncs, faults, scratch, .. } = self;
        Launch { input, namespace, shim, syncs, faults, ..Launch::of(arguments) }.start(scratch, socket)
    }

    /// Runs `volt-vmm` to its end, without input.
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

/// Returns the command line of Linux guests. In the lab idle vCPUs keep their timer tick: the emulated
/// processor can lose a wake-up, and without a tick the guest then sleeps on (docs/testing.md).
/// The kernel command line of this project's Linux.
#[must_use]
pub fn linux_cmdline() -> String {
    let tick = if in_lab() { " nohz=off" } else { "" };
    format!("console=ttyS0 reboot=k panic=-1{tick}")
}

impl Guest {
    /// Boots the small guest with 64 MiB and one vCPU.
    #[must_use]
    pub fn boot(cmdline: &str) -> Self {
        Boot::small(cmdline).start()
    }
}
