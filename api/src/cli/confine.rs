//! Options for the confinement of the process.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use volt_vmm::sandbox::Bounds;

use crate::process::confinement_choice::{ConfinementChoice, StrictChoice};

/// Options for the confinement of the process.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ConfineArgs {
    /// Confine the process against its guest: default (threads that the guest reaches have few system calls,
    /// and no files but open ones), strict (also namespaces and a control group of its own, and no files but
    /// those of the configuration and --allow-path; a warning names what the host refuses) or off
    #[arg(long, value_name = "MODE", default_value = "default")]
    confine: ConfineMode,

    /// Filter no system calls. A guest that takes over a thread then reaches every system call of this user.
    /// For debugging
    #[arg(long)]
    no_seccomp: bool,

    /// Use the filters in this file in place of the built-in ones: JSON of seccompiler, with an entry for
    /// each kind of thread (vcpu, device, block, starter, pager, opener, worker)
    #[arg(long, value_name = "FILE", conflicts_with = "no_seccomp")]
    seccomp_filter: Option<PathBuf>,

    /// With --confine strict: make the VM's control group (version 2) in this one, from the root of all
    /// [default: beside the group of this process]
    #[arg(long, value_name = "PATH")]
    cgroup_parent: Option<PathBuf>,

    /// With --confine strict: limit the disk at a device, by a line of io.max such as "8:0 wbps=1048576".
    /// Repeatable
    #[arg(long, value_name = "LINE")]
    io_max: Vec<String>,
}

/// Strength of the confinement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ConfineMode {
    #[default]
    Default,
    Strict,
    Off,
}

impl ConfineArgs {
    /// Whether the process may open no files but those of the configuration.
    pub(super) fn is_strict(&self) -> bool {
        self.confine == ConfineMode::Strict
    }

    /// The confinement, with these bounds if it is strict.
    pub(super) fn choice(self, bounds: impl FnOnce() -> Bounds) -> ConfinementChoice {
        ConfinementChoice {
            is_on: self.confine != ConfineMode::Off,
            seccomp: !self.no_seccomp,
            filters: self.seccomp_filter,
            strict: (self.confine == ConfineMode::Strict).then(|| StrictChoice {
                cgroup_parent: self.cgroup_parent,
                io_max: self.io_max,
                bounds: bounds(),
            }),
            ..ConfinementChoice::default()
        }
    }
}
