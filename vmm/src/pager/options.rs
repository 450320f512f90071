//! Options for finding and starting the pager of a VM.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::place::{check_group, default_directory};
use crate::error::Result;

/// Longest patience with a pager or a memory handler. A clock has no later time than some longer ones.
const LONGEST_PATIENCE: Duration = Duration::from_secs(1 << 32);

/// The end of a wait of so much patience that starts now.
pub(super) fn deadline_after(patience: Duration) -> Instant {
    Instant::now() + patience.min(LONGEST_PATIENCE)
}

/// The pager of a VM, and the way to start it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
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

    /// The directory of the pagers' sockets.
    #[must_use]
    pub fn directory(self, directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), ..self }
    }

    /// Trust group.
    #[must_use]
    pub fn group(self, group: impl Into<String>) -> Self {
        Self { group: Some(group.into()), ..self }
    }

    /// Longest wait for a pager.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Checks the fields.
    ///
    /// # Errors
    /// [`Error::Config`](crate::error::Error::Config) if no trust group can have that name.
    pub fn validate(&self) -> Result<()> {
        self.group.as_deref().map_or(Ok(()), check_group)
    }
}
