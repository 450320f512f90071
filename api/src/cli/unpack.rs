//! When packed memory is unpacked, and by whom: options of a restore.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use volt_vmm::{Error, Unpack};

use crate::process::start::SharedPager;

/// Who unpacks memory as it is touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Who {
    /// A thread of this process
    #[default]
    Own,
    /// A process that all VMs on this host share that run from the snapshot; it is started if there is none
    Shared,
}

#[derive(Clone, Debug, Default, Args)]
pub(super) struct UnpackArgs {
    /// Unpack packed memory before the guest runs, all of it, and verify it; otherwise a chunk is unpacked and verified when it is
    /// touched
    #[arg(long, conflicts_with_all = ["pager", "pager_dir", "pager_group", "pager_patience"])]
    unpack: bool,

    /// Who unpacks memory as it is touched
    #[arg(long, value_name = "WHO", default_value = "own", value_enum)]
    pager: Who,

    /// Where shared pagers are found [default: volt-vmm in XDG_RUNTIME_DIR or in /run]
    #[arg(long, value_name = "DIR")]
    pager_dir: Option<PathBuf>,

    /// Share memory with the VMs of this user and trust group alone [default: the user's VMs without one]
    #[arg(long, value_name = "NAME")]
    pager_group: Option<String>,

    /// How long to wait for a shared pager, at first, if it dies and if it answers nothing: then the VM ends
    /// [default: 10]
    #[arg(long, value_name = "SECONDS")]
    pager_patience: Option<u64>,
}

impl UnpackArgs {
    /// Whether the restore depends on another process, which may keep it waiting.
    pub(super) fn may_wait(&self) -> bool {
        self.pager == Who::Shared
    }
}

impl UnpackArgs {
    /// Returns when and by which process memory is unpacked.
    pub(super) fn unpack(self) -> Result<Unpack, Error> {
        let Self { unpack, pager, pager_dir, pager_group, pager_patience } = self;
        let shared = SharedPager { directory: pager_dir, group: pager_group, patience: pager_patience };
        Unpack::from_options(unpack, (pager == Who::Shared).then(|| shared.into()))
    }
}
