//! How a VM finds its pager, and starts one.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::place::default_directory;

/// Which pager, and how one is started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PagerOptions {
    /// Where pagers are found. Only this user can enter it.
    pub directory: PathBuf,
    /// The VMs that share a base with holes, which each of them could fill with what it likes: those of one
    /// user and one group. VMs of another group have another pager and another base. None stands for a group
    /// of its own, that of VMs with no name for theirs.
    pub group: Option<String>,
    /// The program that is one: run as `PROGRAM pager --pack-on-stdin --name FILE --pager-dir DIRECTORY
    /// [--pager-group GROUP]`.
    pub program: PathBuf,
    /// How long one is waited for, at first, after another has died and while it answers nothing: then the
    /// VM ends.
    pub patience: Duration,
}

impl PagerOptions {
    /// With `program`, a `volt-vmm`.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>) -> Self {
        let (directory, patience) = (default_directory(), Duration::from_secs(10));
        Self { directory, group: None, program: program.into(), patience }
    }
}
