//! The files that the checks read, below a root directory.

use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::{Answer, Verdict};

/// A host's files.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
    state: PathBuf,
}

impl Tree {
    pub(super) fn new(root: &Path, state: &Path) -> Self {
        Self { root: root.to_owned(), state: state.to_owned() }
    }

    fn place(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The directory of the user's key, as the host names it.
    pub(super) fn state(&self) -> String {
        self.state.display().to_string()
    }

    /// Reads a file, without white space at its end.
    pub(super) fn read(&self, path: &str) -> io::Result<String> {
        Ok(fs::read_to_string(self.place(path))?.trim_end().to_owned())
    }

    /// Returns a file's metadata. A link is not followed.
    pub(super) fn metadata(&self, path: &str) -> io::Result<Metadata> {
        fs::symlink_metadata(self.place(path))
    }

    /// Returns the names in a directory, sorted.
    pub(super) fn names(&self, path: &str) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(self.place(path))?;
        let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
        let mut names = entries.map(name).collect::<io::Result<Vec<_>>>()?;
        names.sort_unstable();
        Ok(names)
    }

    /// Judges a file's content, or says that it cannot be read.
    pub(super) fn judge(&self, path: &str, judge: impl FnOnce(&str) -> Answer) -> Answer {
        self.read(path).map_or_else(|error| unreadable(path, &error), |text| judge(&text))
    }
}

/// The answer for a file that cannot be read.
pub(super) fn unreadable(path: &str, error: &io::Error) -> Answer {
    let advice = match error.kind() {
        ErrorKind::PermissionDenied => "run `volt-vmm doctor --production` as root",
        _ => "find out why this kernel does not show it; in a container, run this on the host",
    };
    Answer::new(Verdict::Unknown, path, format!("cannot be read: {error}"), advice)
}

/// A directory with files, for tests.
#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use crate::testing::ScratchDir;

    /// Runs a check on a host that has these files alone.
    pub(crate) fn check(check: fn(&Tree) -> Answer, files: &[(&str, &str)]) -> Answer {
        let scratch = ScratchDir::new();
        let root = scratch.join("root");
        for (path, content) in files {
            let path = root.join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        check(&Tree::new(&root, Path::new("/state")))
    }

    /// Returns the verdict of a check that reads one file.
    pub(crate) fn verdict(tried: fn(&Tree) -> Answer, path: &str, content: &str) -> Verdict {
        check(tried, &[(path, content)]).verdict
    }
}
