//! Places of snapshots: a name stands for a directory among this user's snapshots, and a path for itself.
//!
//! A word is a name if it could be that of a VM, so it has no slash and no dot. An existing path of the
//! current directory is taken where no snapshot has the name.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::run_dir::data_dir;
use crate::run_dir::name::VmName;

/// The directory of this user's snapshots.
///
/// # Errors
/// The environment names no directory.
pub(crate) fn root() -> Result<PathBuf, Failure> {
    data_dir::of_user("snapshots")
}

/// The directory of an existing snapshot.
pub(crate) fn existing(word: &Path) -> PathBuf {
    let named = name_of(word).and_then(|name| Some(root().ok()?.join(name.as_str())));
    named.filter(|place| place.exists()).unwrap_or_else(|| word.to_owned())
}

/// The directory of a new snapshot. Makes the directory of all snapshots if `word` is a name.
///
/// # Errors
/// The host refuses that directory.
pub(crate) fn new(word: &Path) -> Result<PathBuf, Failure> {
    let Some(name) = name_of(word) else { return Ok(word.to_owned()) };
    let root = root()?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&root);
    made.map_err(|error| {
        Failure::system(format!("create the directory of snapshots {}", root.display()), error)
    })?;
    Ok(root.join(name.as_str()))
}

/// The directory of a snapshot that is made from the one at `word`: a name stands for this user's snapshots
/// only if `word` does.
///
/// # Errors
/// As [`new`].
pub(crate) fn new_beside(word: &Path, new_word: &Path) -> Result<PathBuf, Failure> {
    if existing(word) == *word { Ok(new_word.to_owned()) } else { new(new_word) }
}

/// The names of all snapshots, sorted.
///
/// # Errors
/// Their directory cannot be read.
pub(super) fn names() -> Result<Vec<VmName>, Failure> {
    let root = root()?;
    let entries = match fs::read_dir(&root) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| Failure::system(format!("list {}", root.display()), error))?,
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()?.parse().ok());
    let mut names: Vec<VmName> = names.collect();
    names.sort();
    Ok(names)
}

/// The name that a word is.
pub(crate) fn name_of(word: &Path) -> Option<VmName> {
    word.to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_with_a_slash_or_a_dot_is_a_path() {
        for path in ["/s", "a/b", "./warm", "..", "warm.snap", ""] {
            assert!(name_of(path.as_ref()).is_none(), "{path}");
            assert_eq!(existing(path.as_ref()), Path::new(path));
            assert_eq!(new(path.as_ref()).unwrap(), Path::new(path));
        }
        assert_eq!(name_of("warm".as_ref()).unwrap().as_str(), "warm");
    }
}
