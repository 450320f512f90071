//! A control group for each command, so that a kill reaches descendants that left its process group.

use std::cell::{Cell, RefCell};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::COMMANDS;

/// The groups of commands. Without process 1 of a VM of ours there are none.
#[derive(Debug, Default)]
pub struct Groups {
    parent: Option<PathBuf>,
    number: Cell<u64>,
    /// Groups of ended commands, whose descendants may live on.
    left: RefCell<Vec<PathBuf>>,
}

impl Groups {
    /// Takes the parent of the groups, if it exists, with the groups that an earlier agent left.
    pub fn below(parent: &Path) -> Self {
        let Ok(entries) = fs::read_dir(parent) else { return Self::default() };
        let left = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
        Self { parent: Some(parent.to_owned()), number: Cell::default(), left: RefCell::new(left) }
    }

    /// Takes the parent that process 1 makes.
    pub fn of_init() -> Self {
        Self::below(Path::new(COMMANDS))
    }

    /// Makes a group for a command.
    pub fn make(&self) -> io::Result<Option<Group>> {
        let Some(parent) = &self.parent else { return Ok(None) };
        loop {
            self.number.set(self.number.get() + 1);
            let path = parent.join(self.number.get().to_string());
            match fs::create_dir(&path) {
                // A command of an earlier agent has left it.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                result => return result.map(|()| Some(Group(path))),
            }
        }
    }

    /// Removes the group of an ended command, and those before it whose last descendants have ended.
    pub fn remove(&self, group: &Group) {
        let mut left = self.left.borrow_mut();
        left.push(group.0.clone());
        left.retain(|path| fs::remove_dir(path).is_err_and(|error| error.kind() != ErrorKind::NotFound));
    }
}

/// The group of a command.
#[derive(Debug)]
pub struct Group(PathBuf);

impl Group {
    /// Opens the file by which a process joins the group.
    pub fn entrance(&self) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.0.join("cgroup.procs"))
    }

    /// Kills all processes of the group. Linux before 5.14 cannot.
    pub fn kill(&self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of its own in place of a control group.
    struct Parent(PathBuf);

    impl Drop for Parent {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn groups_are_made_and_removed_once_they_are_empty() {
        let parent = Parent(std::env::temp_dir().join(format!("volt-groups-{}", std::process::id())));
        // A command of an earlier agent lives on in its group.
        fs::create_dir_all(parent.0.join("1/alive")).unwrap();
        let names = || {
            let mut names: Vec<_> =
                fs::read_dir(&parent.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let groups = Groups::below(&parent.0);
        let [second, third] = [(); 2].map(|()| groups.make().unwrap().unwrap());
        assert_eq!(names(), ["1", "2", "3"]);
        groups.remove(&third);
        assert_eq!(names(), ["1", "2"]);
        fs::remove_dir(parent.0.join("1/alive")).unwrap();
        groups.remove(&second);
        assert!(names().is_empty());
    }

    #[test]
    fn agent_without_process_1_makes_no_groups() {
        assert!(Groups::below(Path::new("/no/such/group")).make().unwrap().is_none());
    }
}
