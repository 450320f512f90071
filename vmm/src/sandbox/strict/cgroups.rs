//! Control groups, version 2 (cgroups(7)), that limit a VM.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::partial::random_hex;

/// Processes and threads of a VM. Packing, prefetching and requests have some for each processor.
const MOST_THREADS: u32 = 1024;
/// Memory of a VM's process besides that of its guest, in bytes.
const MEMORY_OVERHEAD: u64 = 128 << 20;
/// Length of a period of CPU time, in microseconds.
const PERIOD: u64 = 100_000;

/// Limits of one VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupLimits {
    /// Control group, from the root of all, in which the VM's is made. Without it, the parent of this
    /// process's.
    pub parent: Option<PathBuf>,
    /// Memory of the guest, in bytes. Without it, memory is not limited.
    pub guest_memory: Option<u64>,
    /// Number of vCPUs. Without it, CPU time is not limited.
    pub vcpus: Option<u64>,
    /// Lines of `io.max`, such as `8:0 wbps=1048576`.
    pub io: Vec<String>,
}

impl CgroupLimits {
    /// Returns controller, file and content of each limit.
    fn files(&self) -> Vec<(&'static str, &'static str, String)> {
        let mut files = vec![("pids", "pids.max", MOST_THREADS.to_string())];
        // A VM holds its memory twice after a snapshot.
        let memory = self.guest_memory.map(|guest| 2 * guest + MEMORY_OVERHEAD);
        files.extend(memory.map(|bytes| ("memory", "memory.max", bytes.to_string())));
        // One more for devices and the API.
        let cpu = self.vcpus.map(|vcpus| format!("{} {PERIOD}", (vcpus + 1) * PERIOD));
        files.extend(cpu.map(|cpu| ("cpu", "cpu.max", cpu)));
        files.extend(self.io.iter().map(|line| ("io", "io.max", line.clone())));
        files
    }
}

/// A control group that this process made. Drop leaves it.
#[derive(Debug)]
pub struct Cgroup {
    /// Its directory.
    pub directory: PathBuf,
    /// Limits that the host refuses, each with the reason.
    pub refused: Vec<String>,
}

impl Cgroup {
    /// Makes a control group of this name with limits, without a process. Makes none if the host refuses all
    /// of them.
    ///
    /// # Errors
    /// The host has no control groups of version 2, or refuses this user a group or all limits.
    pub fn create(name: &str, limits: &CgroupLimits) -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let parent = parent_of(&mounts, &own, limits.parent.as_deref())
            .ok_or_else(|| io::Error::other("no control groups of version 2 are mounted"))?;
        Self::create_in(&parent, name, limits)
    }

    fn create_in(parent: &Path, name: &str, limits: &CgroupLimits) -> io::Result<Self> {
        let files = limits.files();
        let mut refused = Vec::new();
        let enabled = |controller| delegate(parent, controller).map_err(|error| (controller, error));
        let mut usable = Vec::new();
        for controller in ["pids", "memory", "cpu", "io"] {
            if files.iter().any(|(of, ..)| *of == controller) {
                match enabled(controller) {
                    Ok(()) => usable.push(controller),
                    Err((controller, error)) => refused.push(format!("{controller} ({error})")),
                }
            }
        }
        if usable.is_empty() {
            return Err(io::Error::other(refused.join(", ")));
        }
        let directory = make_directory(parent, name)?;
        let mut group = Self { directory, refused };
        let mut is_limited = false;
        for (_, file, limit) in files.iter().filter(|(controller, ..)| usable.contains(controller)) {
            match fs::write(group.directory.join(file), limit) {
                Ok(()) => is_limited = true,
                Err(error) => group.refused.push(format!("{file} ({error})")),
            }
        }
        if is_limited {
            return Ok(group);
        }
        let refused = io::Error::other(group.refused.join(", "));
        group.remove()?;
        Err(refused)
    }

    /// Moves this process into the group.
    ///
    /// # Errors
    /// The host refuses.
    pub fn join(&self) -> io::Result<()> {
        fs::write(self.directory.join("cgroup.procs"), "0")
    }

    /// Removes the group, which has no process.
    ///
    /// # Errors
    /// The host refuses.
    pub fn remove(self) -> io::Result<()> {
        fs::remove_dir(&self.directory)
    }
}

/// Makes the directory of a group. The name gets an addition if it is taken: an earlier process may have left
/// the group, or another process with this number, in another pid namespace, is about to enter it.
fn make_directory(parent: &Path, name: &str) -> io::Result<PathBuf> {
    let directory = parent.join(name);
    match fs::create_dir(&directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let other = parent.join(format!("{name}-{}", random_hex().map_err(io::Error::other)?));
            fs::create_dir(&other).map(|()| other)
        }
        made => made.map(|()| directory),
    }
}

/// Allows the groups below `directory` a controller.
///
/// # Errors
/// The group lacks the controller, has processes, or belongs to another user.
pub fn delegate(directory: &Path, controller: &str) -> io::Result<()> {
    let has = |file: &str| {
        let listed = fs::read_to_string(directory.join(file))?;
        io::Result::Ok(listed.split_whitespace().any(|name| name == controller))
    };
    if has("cgroup.subtree_control")? {
        return Ok(());
    }
    if !has("cgroup.controllers")? {
        let error = format!("{} has no controller {controller}", directory.display());
        return Err(io::Error::other(error));
    }
    fs::write(directory.join("cgroup.subtree_control"), format!("+{controller}"))
}

/// Returns the directory of the `wanted` group, or of the parent of this process's. `mounts` and `own` are
/// the contents of `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn parent_of(mounts: &str, own: &str, wanted: Option<&Path>) -> Option<PathBuf> {
    let mount = mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ").then(|| place.split(' ').nth(4))?
    })?;
    let own = Path::new(own.lines().find_map(|line| line.strip_prefix("0::"))?);
    let group = wanted.unwrap_or_else(|| own.parent().unwrap_or(own));
    Some(Path::new(mount).join(group.strip_prefix("/").unwrap_or(group)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ScratchDir;

    const MOUNTS: &str = "\
35 26 0:30 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
36 35 0:31 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw
37 35 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
";

    #[test]
    fn group_is_made_beside_that_of_the_process_unless_another_is_asked_for() {
        let parent = |own: &str, wanted: Option<&str>| {
            parent_of(MOUNTS, own, wanted.map(Path::new)).map(|path| path.display().to_string())
        };
        let own = "5:memory:/other\n0::/user.slice/app.slice/shell.scope\n";
        assert_eq!(parent(own, None).unwrap(), "/sys/fs/cgroup/unified/user.slice/app.slice");
        assert_eq!(parent("0::/\n", None).unwrap(), "/sys/fs/cgroup/unified/");
        assert_eq!(parent(own, Some("/vms")).unwrap(), "/sys/fs/cgroup/unified/vms");
        assert_eq!(parent(own, Some("vms")).unwrap(), "/sys/fs/cgroup/unified/vms");
        assert_eq!(parent("5:memory:/other\n", None), None);
        assert_eq!(parent_of("", own, None), None);
    }

    #[test]
    fn memory_is_limited_to_twice_the_guests_and_cpu_time_to_one_more_than_the_vcpus() {
        let (guest_memory, vcpus) = (Some(512 << 20), Some(2));
        let limits = CgroupLimits { guest_memory, vcpus, io: vec!["8:0 rbps=1".into()], parent: None };
        let files = limits.files();
        let of = |wanted: &str| &files.iter().find(|(_, file, _)| *file == wanted).unwrap().2;
        assert_eq!(of("memory.max"), &((1024_u64 + 128) << 20).to_string());
        assert_eq!(of("cpu.max"), "300000 100000");
        assert_eq!(of("pids.max"), "1024");
        assert_eq!(of("io.max"), "8:0 rbps=1");
        assert_eq!(CgroupLimits::default().files().len(), 1);
    }

    #[test]
    fn host_without_controllers_gets_no_group() {
        let scratch = ScratchDir::new();
        let parent = scratch.join("parent");
        fs::create_dir(&parent).unwrap();
        fs::write(parent.join("cgroup.subtree_control"), "\n").unwrap();
        fs::write(parent.join("cgroup.controllers"), "hugetlb\n").unwrap();
        let error = Cgroup::create_in(&parent, "vm", &CgroupLimits::default()).unwrap_err();
        assert!(error.to_string().contains("has no controller pids"), "{error}");
        assert!(!parent.join("vm").exists());
        fs::write(parent.join("cgroup.subtree_control"), "hugetlb pids\n").unwrap();
        let limits = CgroupLimits { guest_memory: Some(1), ..CgroupLimits::default() };
        let group = Cgroup::create_in(&parent, "vm", &limits).unwrap();
        assert_eq!(fs::read_to_string(parent.join("vm/pids.max")).unwrap(), "1024");
        assert!(matches!(&group.refused[..], [one] if one.starts_with("memory (")), "{:?}", group.refused);
        assert!(!parent.join("vm/memory.max").exists());
    }

    #[test]
    fn taken_name_of_a_group_gets_an_addition() {
        let scratch = ScratchDir::new();
        let parent = scratch.join("parent");
        fs::create_dir_all(&parent).unwrap();
        let first = make_directory(&parent, "vm").unwrap();
        assert_eq!(first, parent.join("vm"));
        // Another process may be about to enter the first one.
        let other = make_directory(&parent, "vm").unwrap();
        let name = other.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("vm-") && first.exists(), "{name}");
    }
}
