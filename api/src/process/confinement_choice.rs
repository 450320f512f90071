//! The confinement of a process, as the command line and a fork's parent give it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use volt_vmm::sandbox::Bounds;

/// The confinement that the command line asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConfinementChoice {
    /// Whether the process is confined at all.
    pub(crate) is_on: bool,
    /// Whether system calls are filtered.
    pub(crate) seccomp: bool,
    /// The file of filters in place of the built-in ones.
    pub(crate) filters: Option<PathBuf>,
    /// The SHA-256 of that file, once it was read.
    #[serde(default)]
    pub(crate) filters_digest: Option<String>,
    /// Whether the process is a fork's child.
    #[serde(default)]
    pub(crate) is_child: bool,
    /// Isolation by namespaces and a control group, if it is asked for.
    pub(crate) strict: Option<StrictChoice>,
}

/// The isolation that the command line asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StrictChoice {
    /// The control group in which that of the VM is made.
    pub(crate) cgroup_parent: Option<PathBuf>,
    /// Lines of `io.max`.
    pub(crate) io_max: Vec<String>,
    /// The files that the process may open.
    pub(crate) bounds: Bounds,
}

impl Default for ConfinementChoice {
    fn default() -> Self {
        Self {
            is_on: true,
            seccomp: true,
            filters: None,
            filters_digest: None,
            is_child: false,
            strict: None,
        }
    }
}

impl ConfinementChoice {
    /// Lets the process remove this socket at its end.
    pub(crate) fn add_socket(&mut self, path: &Path) {
        self.strict.iter_mut().for_each(|strict| strict.bounds.sockets.push(path.to_owned()));
    }

    /// The confinement of a fork's child, which takes its VM from this process. Its bounds hold from the
    /// start, because this process may be its guest's.
    pub(crate) fn of_child(&self) -> Self {
        let mut choice = Self { is_child: true, ..self.clone() };
        choice.strict.iter_mut().for_each(|strict| strict.bounds.from_start = true);
        choice
    }
}
