//! Control groups of a jail, version 1 or 2 (cgroups(7)).

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use volt_vmm::internal::isolation::delegate;

use crate::failure::Failure;

/// A version of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CgroupVersion {
    /// A hierarchy for each controller.
    One,
    /// One hierarchy for all.
    Two,
}

/// A file of a control group and its content: `cpuset.cpus=0-3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CgroupFile {
    name: String,
    value: String,
}

impl CgroupFile {
    /// Parses `FILE=VALUE`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let fault = || format!("{text} is not FILE=VALUE, such as cpuset.cpus=0-3");
        let (name, value) = text.split_once('=').ok_or_else(fault)?;
        let is_file = name.split_once('.').is_some_and(|(controller, rest)| {
            !controller.is_empty() && !rest.is_empty() && !name.contains('/')
        });
        if !is_file || value.is_empty() {
            return Err(fault());
        }
        Ok(Self { name: name.to_owned(), value: value.to_owned() })
    }

    fn controller(&self) -> &str {
        self.name.split('.').next().unwrap_or_default()
    }
}

/// The place of a process in control groups.
pub(super) struct Placement<'a> {
    pub(super) version: CgroupVersion,
    pub(super) parent: Option<&'a Path>,
    pub(super) program: &'a Path,
    pub(super) id: &'a str,
    pub(super) files: &'a [CgroupFile],
}

impl Placement<'_> {
    /// Creates the groups, writes their files and moves this process into them. Without files, moves it to
    /// the parent that was given, with version 2.
    ///
    /// # Errors
    /// The host has no such group, controller or file, or refuses.
    pub(super) fn apply(&self) -> Result<(), Failure> {
        if self.files.is_empty() && (self.version == CgroupVersion::One || self.parent.is_none()) {
            return Ok(());
        }
        let mounts = fs::read_to_string("/proc/self/mounts");
        let mounts =
            mounts.map_err(|source| Failure::system("read /proc/self/mounts for --cgroup", source))?;
        self.apply_in(&mounts)
    }

    fn apply_in(&self, mounts: &str) -> Result<(), Failure> {
        let parent = self.parent.unwrap_or(self.program);
        let refused = |file: &CgroupFile| {
            let act = format!("apply --cgroup {}={}", file.name, file.value);
            move |source: io::Error| Failure::system(act, source)
        };
        let mut groups = BTreeSet::new();
        for file in self.files {
            let group = self.group(mounts, parent, file).map_err(refused(file))?;
            fs::write(group.join(&file.name), &file.value).map_err(refused(file))?;
            groups.insert(group);
        }
        if self.files.is_empty() {
            let act = || format!("join --parent-cgroup {}", parent.display());
            let mount =
                mount_of(mounts, self.version, "").map_err(|source| Failure::system(act(), source))?;
            groups.insert(mount.join(parent));
        }
        for group in groups {
            fs::write(group.join("cgroup.procs"), "0").map_err(|source| {
                Failure::system(format!("join control group {}", group.display()), source)
            })?;
        }
        Ok(())
    }

    /// Creates the group with this file, and those above it.
    fn group(&self, mounts: &str, parent: &Path, file: &CgroupFile) -> io::Result<PathBuf> {
        let controller = file.controller();
        let mut group = mount_of(mounts, self.version, controller)?;
        for name in parent.iter().chain([self.id.as_ref()]) {
            if self.version == CgroupVersion::Two && controller != "cgroup" {
                delegate(&group, controller)?;
            }
            let above = group.clone();
            group.push(name);
            match fs::create_dir(&group) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => created?,
            }
            if self.version == CgroupVersion::One && controller == "cpuset" {
                inherit(&above, &group)?;
            }
        }
        Ok(group)
    }
}

/// Returns where the hierarchy of a controller is mounted. `mounts` is the content of `/proc/self/mounts`.
fn mount_of(mounts: &str, version: CgroupVersion, controller: &str) -> io::Result<PathBuf> {
    let find = |line: &str| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = match version {
            CgroupVersion::One => kind == "cgroup" && options.split(',').any(|option| option == controller),
            CgroupVersion::Two => kind == "cgroup2",
        };
        is_it.then(|| place.into())
    };
    mounts.lines().find_map(find).ok_or_else(|| {
        io::Error::other(match version {
            CgroupVersion::One => format!("no control groups of version 1 have the controller {controller}"),
            CgroupVersion::Two => "no control groups of version 2 are mounted".to_owned(),
        })
    })
}

/// Gives a new group the CPUs and memory nodes of the one above. Version 1 lets no process into a group
/// without.
fn inherit(above: &Path, group: &Path) -> io::Result<()> {
    for name in ["cpuset.cpus", "cpuset.mems"] {
        let file = group.join(name);
        if fs::read_to_string(&file)?.trim().is_empty() {
            fs::write(file, fs::read_to_string(above.join(name))?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/cpuset cgroup rw,relatime,cpuset 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
";

    #[test]
    fn hierarchy_is_found_by_version_and_controller() {
        let find =
            |version, controller| mount_of(MOUNTS, version, controller).map_err(|error| error.to_string());
        assert_eq!(find(CgroupVersion::One, "cpu"), Ok("/sys/fs/cgroup/cpu,cpuacct".into()));
        assert_eq!(find(CgroupVersion::One, "cpuset"), Ok("/sys/fs/cgroup/cpuset".into()));
        assert_eq!(find(CgroupVersion::Two, "cpu"), Ok("/sys/fs/cgroup/unified".into()));
        assert!(find(CgroupVersion::One, "memory").unwrap_err().contains("the controller memory"));
        assert!(mount_of("", CgroupVersion::Two, "cpu").is_err());
    }

    #[test]
    fn file_without_controller_or_value_is_refused() {
        let file = CgroupFile::parse("io.max=8:0 rbps=1").unwrap();
        assert_eq!((file.controller(), &*file.name, &*file.value), ("io", "io.max", "8:0 rbps=1"));
        for text in ["cpus=1", "cpuset.cpus", "cpuset.cpus=", ".cpus=1", "cpuset.=1", "../cpuset.cpus=1"] {
            assert!(CgroupFile::parse(text).unwrap_err().contains(text), "{text}");
        }
    }
}
