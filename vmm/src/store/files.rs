//! Two files that appear together: written under other names beside their places, synced, then renamed.
//!
//! ```text
//!   old state set aside ──> old memory set aside ──> new memory ──> new state ──> old files removed
//! ```
//!
//! No rename covers two files. If the process or the host ends between them, the state is missing, so no
//! reader finds a state with another memory.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::reservation::SpaceReservation;
use crate::error::{Error, Result};
use crate::partial;
use crate::paths;

/// Two files that are not published yet. Dropping them before [`NewFiles::publish`] removes them.
#[derive(Debug)]
pub struct NewFiles {
    /// The file without which the other one is of no use.
    pub state: NewFile,
    /// The other one.
    pub memory: NewFile,
}

/// A file that will replace another, if there is one.
#[derive(Debug)]
pub struct NewFile {
    place: PathBuf,
    parent: PathBuf,
    temporary: PathBuf,
    /// Locked, which keeps other processes from removing it.
    file: File,
}

impl NewFiles {
    /// Creates files that will appear at these paths. Removes leftovers of killed writers of them.
    ///
    /// # Errors
    /// Both paths are the same, or something other than a file is there, or a parent directory is missing or
    /// not writable.
    pub fn begin(state: &Path, memory: &Path) -> Result<Self> {
        let absolute = |path: &Path| paths::absolute(path).unwrap_or_else(|_| path.to_owned());
        if absolute(state) == absolute(memory) {
            return Err(Error::snapshot(state, "cannot hold the state and the memory; give two paths"));
        }
        Ok(Self { state: NewFile::begin(state)?, memory: NewFile::begin(memory)? })
    }

    /// Reserves `bytes` of the file system of the memory.
    ///
    /// # Errors
    /// The file system has fewer, or a quota allows fewer.
    pub fn reserve(&self, bytes: u64) -> Result<SpaceReservation> {
        let NewFile { place, parent, .. } = &self.memory;
        let scratch = || {
            let (path, file) = partial::create_file(parent, &self.memory.name(), 0o600)?;
            paths::remove_file(&path).map(|()| file)
        };
        let scratch =
            scratch().map_err(|source| Error::file("create a file beside", place.display(), source))?;
        SpaceReservation::new(place, scratch, bytes)
    }

    /// Syncs and publishes both. Files that were there are removed.
    ///
    /// # Errors
    /// The file system refuses, and what was there before is there again.
    pub fn publish(self) -> Result<()> {
        let mut moves = Moves::default();
        if let Err(error) = self.move_all(&mut moves) {
            moves.undo();
            return Err(error);
        }
        moves.remove_old();
        Ok(())
    }

    fn move_all(&self, moves: &mut Moves) -> Result<()> {
        let Self { state, memory } = self;
        for new in [memory, state] {
            new.file.sync_all().map_err(|source| new.failed_to_write(source))?;
        }
        for new in [state, memory] {
            new.set_aside_old(moves)?;
        }
        for new in [memory, state] {
            moves.rename(&new.temporary, &new.place).map_err(|source| new.failed_to_write(source))?;
            new.sync_parent()?;
        }
        Ok(())
    }
}

impl NewFile {
    fn begin(place: &Path) -> Result<Self> {
        let problem = |text: &str| Err(Error::snapshot(place, text));
        let Some(name) = place.file_name() else { return problem("does not name a file") };
        match paths::metadata_of_link(place) {
            Ok(found) if found.is_file() => {}
            Ok(found) if found.is_symlink() => return problem("is a symbolic link; name the file itself"),
            Ok(_) => return problem("exists already, and is not a regular file"),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(source) => return Err(Error::file("look at", place.display(), source)),
        }
        let parent = match place.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let name = name.to_string_lossy();
        partial::remove_abandoned_files(&parent, &name);
        let (temporary, file) = partial::create_file(&parent, &name, 0o600)
            .map_err(|source| Error::file("create", place.display(), source))?;
        Ok(Self { place: place.to_owned(), parent, temporary, file })
    }

    /// The file, open for reading and writing.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Makes the error for a file that cannot be written.
    #[must_use]
    pub fn failed_to_write(&self, source: io::Error) -> Error {
        Error::file("write", self.place.display(), source)
    }

    fn name(&self) -> String {
        self.place.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn set_aside_old(&self, moves: &mut Moves) -> Result<()> {
        let failed = |source| Error::file("replace", self.place.display(), source);
        let aside = partial::new_path(&self.parent, &self.name())?;
        match moves.rename(&self.place, &aside) {
            Ok(()) => {
                moves.old.push(aside);
                self.sync_parent()
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(source) => Err(failed(source)),
        }
    }

    fn sync_parent(&self) -> Result<()> {
        let synced = paths::open_to_read(&self.parent).and_then(|parent| parent.sync_all());
        synced.map_err(|source| Error::file("sync", self.parent.display(), source))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // It has another name once it is published.
        let _ = paths::remove_file(&self.temporary);
    }
}

/// The renames so far.
#[derive(Debug, Default)]
struct Moves {
    /// Names before and after, in order.
    done: Vec<(PathBuf, PathBuf)>,
    /// Names of the files that the new ones replace.
    old: Vec<PathBuf>,
}

impl Moves {
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        paths::rename(from, to, false)?;
        self.done.push((from.to_owned(), to.to_owned()));
        Ok(())
    }

    /// Gives all files their former names, as far as the file system allows.
    fn undo(self) {
        for (from, to) in self.done.into_iter().rev() {
            if let Err(error) = paths::rename(&to, &from, false) {
                log::error!("cannot rename {} back to {}: {error}", to.display(), from.display());
            }
        }
    }

    fn remove_old(self) {
        for old in self.old {
            if let Err(error) = paths::remove_file(&old) {
                log::warn!("cannot remove {}, which was replaced: {error}", old.display());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;
    use crate::testing::ScratchDir;

    fn names(place: &Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<_> = fs::read_dir(place).unwrap().map(name).collect();
        names.sort();
        names
    }

    fn begun(place: &Path) -> NewFiles {
        let files = NewFiles::begin(&place.join("state"), &place.join("memory")).unwrap();
        files.state.file().write_all(b"new state").unwrap();
        files.memory.file().write_all(b"new memory").unwrap();
        files
    }

    #[test]
    fn files_appear_together_and_replace_those_that_were_there() {
        let place = ScratchDir::new();
        for round in 0..2 {
            let files = begun(&place);
            drop(files.reserve(1 << 20).unwrap());
            files.publish().unwrap();
            assert_eq!(names(&place), ["memory", "state"], "round {round}");
            assert_eq!(fs::read_to_string(place.join("state")).unwrap(), "new state");
            assert_eq!(fs::read_to_string(place.join("memory")).unwrap(), "new memory");
            fs::write(place.join("state"), "old").unwrap();
            fs::write(place.join("memory"), "old").unwrap();
        }
    }

    #[test]
    fn files_that_are_not_published_leave_the_old_ones() {
        let place = ScratchDir::new();
        fs::write(place.join("state"), "old state").unwrap();
        drop(begun(&place));
        assert_eq!(names(&place), ["state"]);
        assert_eq!(fs::read_to_string(place.join("state")).unwrap(), "old state");
    }

    /// The new state is gone, so the last rename fails.
    #[test]
    fn failure_between_the_renames_brings_the_old_files_back() {
        let place = ScratchDir::new();
        fs::write(place.join("state"), "old state").unwrap();
        fs::write(place.join("memory"), "old memory").unwrap();
        let files = begun(&place);
        fs::remove_file(&files.state.temporary).unwrap();
        let error = files.publish().unwrap_err().to_string();
        assert!(error.contains("write") && error.contains("/state"), "{error}");
        assert_eq!(names(&place), ["memory", "state"]);
        assert_eq!(fs::read_to_string(place.join("state")).unwrap(), "old state");
        assert_eq!(fs::read_to_string(place.join("memory")).unwrap(), "old memory");
    }

    #[test]
    fn paths_that_cannot_be_files_are_refused() {
        let place = ScratchDir::new();
        fs::create_dir(place.join("dir")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", place.join("link")).unwrap();
        let good = place.join("good");
        for (other, why) in [
            (place.join("dir"), "not a regular file"),
            (place.join("link"), "symbolic link"),
            (place.join("missing/file"), "No such file"),
            (place.join("."), "regular file"),
            (PathBuf::from("/"), "does not name a file"),
            (good.clone(), "two paths"),
        ] {
            for (state, memory) in [(&good, &other), (&other, &good)] {
                let error = crate::error::report(&NewFiles::begin(state, memory).unwrap_err());
                assert!(error.contains(why), "{}: {error}", other.display());
            }
        }
        assert_eq!(names(&place), ["dir", "link"], "nothing is left");
    }
}
