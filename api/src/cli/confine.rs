//! Options for the confinement of the process.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::failure::Failure;
use crate::process::confinement::{ConfinementChoice, read_filters};

/// Options for the confinement of the process.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ConfineArgs {
    /// Confine the process against its guest: default (threads that the guest reaches have few system calls,
    /// and no files but open ones) or off
    #[arg(long, value_name = "MODE", default_value = "default")]
    confine: ConfineMode,

    /// Filter no system calls. A guest that takes over a thread then reaches every system call of this user.
    /// For debugging
    #[arg(long)]
    no_seccomp: bool,

    /// Use the filters in this file in place of the built-in ones: JSON of seccompiler, with an entry for
    /// each kind of thread (vcpu, device, block, starter, pager, opener)
    #[arg(long, value_name = "FILE", conflicts_with = "no_seccomp")]
    seccomp_filter: Option<PathBuf>,
}

/// Strength of the confinement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ConfineMode {
    #[default]
    Default,
    Off,
}

impl ConfineArgs {
    /// Reads the file of filters, if one is given.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn choice(self) -> Result<ConfinementChoice, Failure> {
        let filters = self.seccomp_filter.as_deref().map(read_filters).transpose()?;
        Ok(ConfinementChoice {
            is_on: self.confine == ConfineMode::Default,
            seccomp: !self.no_seccomp,
            filters,
        })
    }
}
