//! The location of an opened snapshot, for errors.

use std::path::{Path, PathBuf};

use crate::snapshot::STATE_FILE;

/// A snapshot in memory, in errors after the word "snapshot".
const IN_MEMORY: &str = "of a running VM";

/// The location of an opened snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// A directory of files.
    Directory(PathBuf),
    /// A state file, and memory elsewhere.
    Files(PathBuf),
    /// Memory of a process. It has no files.
    Memory,
}

impl Location {
    /// The snapshot.
    pub fn path(&self) -> &Path {
        match self {
            Self::Directory(path) | Self::Files(path) => path,
            Self::Memory => Path::new(IN_MEMORY),
        }
    }

    /// The file of its state, or the snapshot if it has none.
    pub fn state_file(&self) -> PathBuf {
        match self {
            Self::Directory(path) => path.join(STATE_FILE),
            Self::Files(path) => path.clone(),
            Self::Memory => PathBuf::from(IN_MEMORY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, problem};

    #[test]
    fn errors_name_a_file_only_for_a_snapshot_on_disk() {
        let refused = |location: &Location| {
            let source = Box::new(Error::config("vcpus", "0"));
            problem(&Error::Restore { path: location.state_file(), source })
        };
        let on_disk = refused(&Location::Directory("/s".into()));
        assert!(on_disk.starts_with("cannot restore snapshot /s/state.json: "), "{on_disk}");
        let in_memory = refused(&Location::Memory);
        assert!(in_memory.starts_with("cannot restore snapshot of a running VM: "), "{in_memory}");
    }
}
