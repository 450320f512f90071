//! Options for finding and starting the pager of a VM.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::place::default_directory;

/// The pager of a VM, and the way to start it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PagerOptions {
    /// The directory of the pagers' sockets. Only this user can enter it.
    pub directory: PathBuf,
    /// Trust group. The VMs of one user and one group share an incomplete base, into whose holes each of them
    /// could write. VMs of another group have another pager and another base. `None` is a group of its own.
    pub group: Option<String>,
    /// The program of the pager, run as `PROGRAM pager --pack-on-stdin --name FILE --pager-dir DIRECTORY
    /// [--pager-group GROUP]`.
    pub program: PathBuf,
    /// Longest wait for a pager: at the start, after another has died, and while it does not answer. After
    /// that the VM ends.
    pub patience: Duration,
}

impl PagerOptions {
    /// Default options with `program`, a `volt-vmm`.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>) -> Self {
        let (directory, patience) = (default_directory(), Duration::from_secs(10));
        Self { directory, group: None, program: program.into(), patience }
    }
}
