//! Examines the machine and its kernel: CPU, settings that slow KVM down, and requirements of features.
#![allow(unsafe_code)]

use std::fs::{self, OpenOptions};
use std::path::Path;

use rustix::mm::{UserfaultfdFlags, userfaultfd};
use serde::Serialize;

use super::{Finding, Level};

/// The first kernel that does not move KVM's huge page recovery thread between cgroups.
const CHEAP_RECOVERY_THREAD: (u32, u32) = (6, 13);

/// The machine and its kernel.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Host {
    /// Model name of the CPU.
    pub cpu: String,
    /// Revision of its microcode.
    pub microcode: String,
    /// CPUs online.
    pub cpus: usize,
    /// Release of the kernel.
    pub kernel: String,
    /// The CPU offers VMX or SVM.
    pub has_virtualization: bool,
    /// The machine is itself virtual.
    pub is_virtual: bool,
    /// Memory available now, in MiB.
    pub memory_available_mib: u64,
    /// Huge pages reserved.
    pub huge_pages: u64,
}

impl Host {
    pub(super) fn examine() -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let meminfo = read("/proc/meminfo");
        let cpu = |key| field(&cpuinfo, key).unwrap_or("unknown").to_owned();
        let memory = |key| {
            let value = field(&meminfo, key).and_then(|value| value.split_whitespace().next());
            value.and_then(|value| value.parse().ok()).unwrap_or(0)
        };
        let flags: Vec<_> = field(&cpuinfo, "flags").unwrap_or_default().split_whitespace().collect();
        Self {
            cpu: cpu("model name"),
            microcode: cpu("microcode"),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            has_virtualization: flags.contains(&"vmx") || flags.contains(&"svm"),
            is_virtual: flags.contains(&"hypervisor"),
            memory_available_mib: memory("MemAvailable") >> 10,
            huge_pages: memory("HugePages_Total"),
        }
    }
}

/// Reads a file under /proc or /sys. Returns an empty text if it is missing.
pub(super) fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default().trim_end().to_owned()
}

/// Returns the value of the first line `key : value`.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .map(|(name, value)| (name.trim(), value.trim()))
        .find(|(name, _)| *name == key)
        .map(|(_, value)| value)
}

/// Returns the major and minor version of a kernel release.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Examines the setting that slows VM creation on older kernels. KVM moves a thread of each VM into the
/// caller's cgroups, and waits for every cgroup change of the machine.
pub(super) fn nx_huge_pages(host: &Host, create_vm_us: Option<u64>) -> Finding {
    let setting = read("/sys/module/kvm/parameters/nx_huge_pages");
    judge_nx_huge_pages(&setting, version(&host.kernel), &read("/proc/mounts"), create_vm_us)
}

fn judge_nx_huge_pages(
    setting: &str,
    kernel: (u32, u32),
    mounts: &str,
    create_vm_us: Option<u64>,
) -> Finding {
    let (v1, v2) = (mounts_of_type(mounts, "cgroup"), mounts_of_type(mounts, "cgroup2"));
    let versions = match (v1.is_empty(), v2.is_empty()) {
        (true, true) => "none mounted",
        (true, false) => "v2",
        (false, true) => "v1",
        (false, false) => "v1 and v2",
    };
    let favoured =
        v1.iter().chain(&v2).any(|options| options.split(',').any(|option| option == "favordynmods"));
    let shown = if setting.is_empty() { "absent" } else { setting };
    let facts = format!(
        "nx_huge_pages: {shown}; cgroups: {versions}{}",
        if favoured { ", favordynmods" } else { "" }
    );
    if setting.is_empty() || setting == "never" || favoured || kernel >= CHEAP_RECOVERY_THREAD {
        return Finding::ok(format!("{facts}: does not slow down the creation of VMs"));
    }
    let cost = create_vm_us.map_or_else(String::new, |us| format!(" (KVM_CREATE_VM: {us} us here)"));
    let level = if create_vm_us.is_some_and(|us| us >= 1000) { Level::Warning } else { Level::Note };
    Finding::new(
        level,
        format!(
            "{facts}: this kernel moves a thread of each new VM between cgroups, which may take \
             milliseconds{cost}"
        ),
        "mount cgroups with favordynmods (`sudo mount -o remount,favordynmods /sys/fs/cgroup`), or load kvm \
         with nx_huge_pages=never if the CPU does not have the iTLB multihit bug (see \
         /sys/devices/system/cpu/vulnerabilities)",
    )
}

/// Returns the options of every mount of this type.
pub(super) fn mounts_of_type<'a>(mounts: &'a str, wanted: &str) -> Vec<&'a str> {
    let options = |line: &'a str| {
        let mut fields = line.split(' ').skip(2);
        (fields.next() == Some(wanted)).then(|| fields.next()).flatten()
    };
    mounts.lines().filter_map(options).collect()
}

/// Examines the requirements of features other than KVM.
pub(super) fn findings() -> Vec<Finding> {
    vec![page_faults(), tun(), landlock(), seccomp(), overcommit(), huge_pages()]
}

fn page_faults() -> Finding {
    // SAFETY: the descriptor is closed at once, with no memory registered.
    let opened = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC) };
    if opened.is_ok() {
        return Finding::available("userfaultfd (restoring memory on demand)");
    }
    if can_use("/dev/userfaultfd") {
        return Finding::available("userfaultfd: through /dev/userfaultfd (restoring memory on demand)");
    }
    Finding::new(
        Level::Note,
        "userfaultfd: not allowed for this user; memory cannot be restored on demand from compressed or \
         remote snapshots",
        "give this user access to /dev/userfaultfd (Linux 6.1 and later), or \
         `sudo sysctl -w vm.unprivileged_userfaultfd=1`",
    )
}

fn tun() -> Finding {
    if can_use("/dev/net/tun") {
        return Finding::available("/dev/net/tun: opens (guest networking)");
    }
    let advice = "`sudo modprobe tun`, and give this user access to /dev/net/tun (in a container: pass \
                  --device /dev/net/tun)";
    Finding::new(Level::Note, "/dev/net/tun: cannot be opened; guests get no network through a tap", advice)
}

fn can_use(device: &str) -> bool {
    OpenOptions::new().read(true).write(true).open(device).is_ok()
}

/// Returns the version of Landlock's ABI; 0 or less if the kernel has none.
pub(super) fn landlock_abi() -> i64 {
    const CREATE_RULESET_VERSION: libc::c_ulong = 1;
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag, a null pointer and size 0 the call only returns the version of the ABI.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0_usize, CREATE_RULESET_VERSION) }
}

fn landlock() -> Finding {
    let abi = landlock_abi();
    if abi > 0 {
        return Finding::available(format!("Landlock: ABI {abi} (confinement)"));
    }
    let advice = "boot a kernel with Landlock, and with `landlock` in its lsm= list";
    Finding::new(Level::Note, "Landlock: not in this kernel; it cannot confine a VMM's files", advice)
}

fn seccomp() -> Finding {
    let actions = read("/proc/sys/kernel/seccomp/actions_avail");
    if actions.split(' ').any(|action| action == "kill_process") {
        return Finding::available("seccomp: filters (confinement)");
    }
    let advice = "boot a kernel with CONFIG_SECCOMP_FILTER";
    Finding::new(Level::Note, "seccomp: no filters; a VMM's system calls cannot be confined", advice)
}

fn overcommit() -> Finding {
    match read("/proc/sys/vm/overcommit_memory").as_str() {
        "2" => Finding::new(
            Level::Warning,
            "vm.overcommit_memory is 2: the kernel counts all memory of each restored guest, touched or not",
            "`sudo sysctl -w vm.overcommit_memory=0` (or 1), so that clones of a snapshot share the pages \
             that they do not write",
        ),
        setting => {
            Finding::ok(format!("vm.overcommit_memory: {setting} (guests use only memory that they touch)"))
        }
    }
}

fn huge_pages() -> Finding {
    let chosen = |policy: &str| {
        let text = read(format!("/sys/kernel/mm/transparent_hugepage/{policy}"));
        text.split(['[', ']']).nth(1).unwrap_or("absent").to_owned()
    };
    let (shared, others) = (chosen("shmem_enabled"), chosen("enabled"));
    let reserved = read("/proc/sys/vm/nr_hugepages");
    Finding::available(format!(
        "huge pages: {reserved} reserved, transparent ones for shared memory: {shared}, for holes of \
         restored VMs: {others} (optional)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: &str = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";

    #[test]
    fn slow_vm_creation_is_found_on_affected_hosts() {
        let level = |setting, kernel, mounts, us| judge_nx_huge_pages(setting, kernel, mounts, us).level;
        assert_eq!(level("Y", (6, 1), V2, Some(20_000)), Level::Warning);
        assert_eq!(level("N", (6, 1), V2, Some(100)), Level::Note);
        assert_eq!(level("Y", (6, 13), V2, Some(20_000)), Level::Ok);
        assert_eq!(level("never", (6, 1), V2, Some(20_000)), Level::Ok);
        assert_eq!(level("Y", (6, 1), "c /c cgroup2 rw,favordynmods 0 0", Some(20_000)), Level::Ok);
    }

    #[test]
    fn mounts_and_fields_are_parsed() {
        let mounts = format!("tmpfs /x tmpfs rw 0 0\ncgroup /y cgroup rw,cpu 0 0\n{V2}");
        assert_eq!(mounts_of_type(&mounts, "cgroup"), ["rw,cpu"]);
        assert_eq!(mounts_of_type(&mounts, "cgroup2"), ["rw,nosuid"]);
        assert_eq!(field("a : b\nmodel name\t: X: Y\n", "model name"), Some("X: Y"));
        assert_eq!(field("", "x"), None);
    }

    #[test]
    fn kernel_releases_are_parsed() {
        assert_eq!(version("6.1.0-18-cloud-amd64"), (6, 1));
        assert_eq!(version("6.18.5+"), (6, 18));
        assert_eq!(version(""), (0, 0));
    }
}
