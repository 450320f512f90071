//! Options of a restore: when packed memory is unpacked, and by which process.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use volt_vmm::{Error, Unpack};

use crate::process::shared_pager::SharedPager;

/// The pager of packed memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum PagerKind {
    /// A thread of this process
    #[default]
    Own,
    /// A process for all VMs of this snapshot on this host; started if none runs
    Shared,
}

#[derive(Clone, Debug, Default, Args)]
pub(super) struct UnpackArgs {
    /// Unpack and verify all packed memory before the guest runs, instead of each chunk at its first access
    #[arg(long, conflicts_with_all = ["pager", "pager_dir", "pager_group", "pager_patience"])]
    unpack: bool,

    /// Pager that unpacks chunks of memory at their first access
    #[arg(long, value_name = "PAGER", default_value = "own", value_enum)]
    pager: PagerKind,

    /// Directory of the shared pagers' sockets [default: VOLT_RUN_DIR, or else volt-vmm in
    /// XDG_RUNTIME_DIR or in /run; for root /run/volt-vmm]
    #[arg(long, value_name = "DIR")]
    pager_dir: Option<PathBuf>,

    /// Trust group: share a pager only with this user's VMs of the same group [default: VMs without a group]
    #[arg(long, value_name = "NAME")]
    pager_group: Option<String>,

    /// Time to wait for a shared pager at the start, after its death and for each answer, before the VM ends
    /// [default: 10]
    #[arg(long, value_name = "SECONDS")]
    pager_patience: Option<u64>,
}

impl UnpackArgs {
    /// Says whether the restore waits for another process.
    pub(super) fn may_wait(&self) -> bool {
        self.pager == PagerKind::Shared
    }
}

impl UnpackArgs {
    /// Returns when and by which process memory is unpacked.
    pub(super) fn unpack(self) -> Result<Unpack, Error> {
        let Self { unpack, pager, pager_dir, pager_group, pager_patience } = self;
        let shared = SharedPager { directory: pager_dir, group: pager_group, patience: pager_patience };
        Unpack::from_options(unpack, (pager == PagerKind::Shared).then(|| shared.into()))
    }
}
