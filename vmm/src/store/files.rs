//! Two files that appear together: written under other names beside their places, synced, then renamed.
//!
//! ```text
//!   old state set aside ──> old memory set aside ──> new memory ──> new state ──> old files removed
//! ```
//!
//! No rename covers two files. If the process or the host ends between them, the state is missing, so no
//! reader finds a state with another memory. The old files wait beside their places ([`super::aside`]), and
//! the next writer brings them back before anything else.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::aside;
use super::aside::SetAside;
use super::parent_of;
use super::reservation::SpaceReservation;
use crate::error::{Error, Result};
use crate::partial;
use crate::partial::random_hex;
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
    /// Creates files that will appear at these paths. Removes leftovers of killed writers of them, and brings
    /// back files that one of them set aside.
    ///
    /// # Errors
    /// Both paths are the same, or something other than a file is there, or a parent directory is missing or
    /// not writable.
    pub fn begin(state: &Path, memory: &Path) -> Result<Self> {
        let absolute = |path: &Path| paths::absolute(path).unwrap_or_else(|_| path.to_owned());
        if absolute(state) == absolute(memory) {
            return Err(Error::snapshot(state, "cannot hold the state and the memory; give two paths"));
        }
        aside::recover(state, memory);
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
        let mut old = Vec::new();
        let mut placed = Vec::new();
        if let Err(error) = self.move_all(&mut old, &mut placed) {
            placed.into_iter().rev().for_each(NewFile::take_back);
            old.into_iter().rev().for_each(SetAside::bring_back);
            return Err(error);
        }
        old.into_iter().for_each(SetAside::remove);
        Ok(())
    }

    fn move_all<'a>(&'a self, old: &mut Vec<SetAside>, placed: &mut Vec<&'a NewFile>) -> Result<()> {
        let Self { state, memory } = self;
        for new in [memory, state] {
            new.file.sync_all().map_err(|source| new.failed_to_write(source))?;
        }
        let id = random_hex()?;
        for new in [state, memory] {
            let failed = |source| Error::file("replace", new.place.display(), source);
            old.extend(SetAside::of(&new.place, &id).map_err(failed)?);
            new.sync_parent()?;
        }
        for new in [memory, state] {
            paths::rename(&new.temporary, &new.place, false).map_err(|source| new.failed_to_write(source))?;
            placed.push(new);
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
        let (parent, name) = (parent_of(place), name.to_string_lossy());
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

    /// The file that it will replace, open for reading, and its length, if there is one.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn old(&self) -> Result<Option<(File, u64)>> {
        let failed = |source| Error::file("open", self.place.display(), source);
        match paths::open_to_read(&self.place) {
            Ok(file) => file.metadata().map(|found| Some((file, found.len()))).map_err(failed),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(failed(source)),
        }
    }

    /// Makes the error for a file that cannot be written.
    #[must_use]
    pub fn failed_to_write(&self, source: io::Error) -> Error {
        Error::file("write", self.place.display(), source)
    }

    fn name(&self) -> String {
        self.place.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Gives the file its former name.
    fn take_back(&self) {
        if let Err(error) = paths::rename(&self.place, &self.temporary, false) {
            log::error!("cannot take back {}: {error}", self.place.display());
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

    /// As after a kill: the old files are aside, and maybe the new memory is in its place.
    #[test]
    fn interrupted_publication_is_undone_by_the_next_writer() {
        for with_new_memory in [false, true] {
            let place = ScratchDir::new();
            fs::write(place.join("state"), "old state").unwrap();
            fs::write(place.join("memory"), "old memory").unwrap();
            let id = random_hex().unwrap();
            for name in ["state", "memory"] {
                fs::rename(place.join(name), place.join(format!(".{name}.{id}.replaced"))).unwrap();
            }
            if with_new_memory {
                fs::write(place.join("memory"), "new memory").unwrap();
            }
            drop(begun(&place));
            assert_eq!(names(&place), ["memory", "state"], "{with_new_memory}");
            assert_eq!(fs::read_to_string(place.join("state")).unwrap(), "old state");
            assert_eq!(fs::read_to_string(place.join("memory")).unwrap(), "old memory");
        }
    }

    #[test]
    fn files_set_aside_are_removed_once_their_successors_are_complete() {
        let place = ScratchDir::new();
        for name in ["state", "memory"] {
            fs::write(place.join(name), "new").unwrap();
            let old = place.join(format!(".{name}.{}.replaced", "a".repeat(32)));
            fs::write(&old, "old").unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
            fs::set_permissions(&old, mode).unwrap();
        }
        drop(begun(&place));
        assert_eq!(names(&place), ["memory", "state"]);
        assert_eq!(fs::read_to_string(place.join("memory")).unwrap(), "new");
    }

    #[test]
    fn files_that_a_living_writer_set_aside_stay() {
        let place = ScratchDir::new();
        fs::write(place.join("state"), "old state").unwrap();
        let held = SetAside::of(&place.join("state"), &"b".repeat(32)).unwrap().unwrap();
        let other = begun(&place);
        assert!(names(&place).iter().any(|name| name.ends_with(".replaced")), "{:?}", names(&place));
        drop(other);
        held.bring_back();
        assert_eq!(fs::read_to_string(place.join("state")).unwrap(), "old state");
        assert_eq!(names(&place), ["state"]);
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
