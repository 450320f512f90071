//! The confinement of a process, as the command line and a fork's parent give it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use volt_vmm::sandbox::Bounds;

use crate::failure::Failure;
use crate::process::log::LogChange;

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
    /// The log that the process has when it is confined. A fork's child opens the same one, before it is
    /// confined: the starter checks its place with the rest.
    #[serde(default)]
    pub(crate) log: LogChange,
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
            log: LogChange::default(),
        }
    }
}

impl ConfinementChoice {
    /// Lets the process remove this socket at its end.
    pub(crate) fn add_socket(&mut self, path: &Path) {
        self.strict.iter_mut().for_each(|strict| strict.bounds.sockets.push(path.to_owned()));
    }

    /// Checks that a process of this confinement may take over a run directory before it is confined: the
    /// fork's parent that names the directory may be its guest's. Returns the directory without links.
    ///
    /// # Errors
    /// The process has bounds, and the directory lies outside of them; or the host cannot find it.
    pub(crate) fn check_run_dir(&self, directory: &Path) -> Result<PathBuf, Failure> {
        let Some(strict) = &self.strict else { return Ok(directory.to_owned()) };
        let real = directory.canonicalize();
        let real = real.map_err(|error| Failure::run_dir(directory, format!("cannot find it: {error}")))?;
        let mut allowed = strict.bounds.directories.iter().filter_map(|allowed| allowed.canonicalize().ok());
        match allowed.any(|allowed| real.starts_with(allowed)) {
            true => Ok(real),
            false => {
                let problem = "a strictly confined VM may not use it; start the VM with --allow-path for it";
                Err(Failure::run_dir(directory, problem))
            }
        }
    }

    /// The confinement of a fork's child, which takes its VM from this process. Its bounds hold from the
    /// start, because this process may be its guest's.
    pub(crate) fn of_child(&self) -> Self {
        let mut choice = Self { is_child: true, ..self.clone() };
        choice.strict.iter_mut().for_each(|strict| strict.bounds.from_start = true);
        choice
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::rest::testing::Dir;

    #[test]
    fn strict_child_enters_run_directories_within_its_bounds_alone() {
        let dir = Dir::new();
        let [allowed, own, other] = ["allowed", "allowed/own", "other"].map(|name| dir.path(name));
        [&allowed, &own, &other].iter().for_each(|path| fs::create_dir(path).unwrap());
        symlink(&other, allowed.join("link")).unwrap();
        let bounds = Bounds { directories: vec![allowed.clone()], ..Bounds::default() };
        let strict = Some(StrictChoice { bounds, ..StrictChoice::default() });
        let choice = ConfinementChoice { strict, ..ConfinementChoice::default() };
        let real = |path: &Path| path.canonicalize().unwrap();
        assert_eq!(choice.check_run_dir(&own).unwrap(), real(&own));
        for outside in [&other, &allowed.join("link"), &allowed.join("own/../../other")] {
            let error = choice.check_run_dir(outside).unwrap_err().to_string();
            assert!(error.contains("--allow-path"), "{error}");
        }
        choice.check_run_dir(&allowed.join("none")).unwrap_err();
        assert_eq!(ConfinementChoice::default().check_run_dir(&other).unwrap(), other);
    }
}
