//! Needs of tests that a host may not meet. The runner asks for them before it runs any test, and skips
//! the tests whose needs are not met.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

// For a lack that only the test itself can find.
pub use volt_test_runner::skip;

use crate::network::Network;

/// Names what the host must have for this test: `needs!(kvm, root);`, as the first statement of a
/// `#[test]` function. The attribute reads it.
#[macro_export]
macro_rules! needs {
    ($($need:ident),+) => {
        $($crate::need::assert_registered(stringify!($need), $crate::need::$need);)+
    };
}

/// Panics if the running test was not registered with this need.
///
/// # Panics
/// It was not: `needs!` is in a function that is no test.
pub fn assert_registered(name: &str, _need: fn() -> Option<String>) {
    assert!(volt_test_runner::needs().contains(&name), "needs!({name}) is not at the head of this test");
}

/// `/dev/kvm`.
#[must_use]
pub fn kvm() -> Option<String> {
    let opened = File::options().read(true).write(true).open("/dev/kvm");
    opened.err().map(|error| format!("no /dev/kvm here ({error})"))
}

/// A KVM under which the instruction CPUID exits to it.
#[must_use]
pub fn cpuid() -> Option<String> {
    let is_pvm = std::path::Path::new("/sys/module/kvm_pvm").exists();
    is_pvm.then(|| "this host's KVM lets guests execute CPUID themselves (kvm_pvm)".to_owned())
}

/// A KVM that keeps page tables of its own for its guests.
#[must_use]
pub fn shadow_paging() -> Option<String> {
    let nested = ["/sys/module/kvm_intel/parameters/ept", "/sys/module/kvm_amd/parameters/npt"];
    let is_on = |path: &&&str| std::fs::read_to_string(path).is_ok_and(|set| matches!(set.trim(), "Y" | "1"));
    nested.iter().find(is_on).map(|path| format!("this host's KVM uses nested paging ({path})"))
}

/// The directory of the programs that `scripts/clients.sh` builds.
#[must_use]
pub fn clients_directory() -> PathBuf {
    std::env::var_os("VOLT_CLIENTS").map_or_else(PathBuf::new, PathBuf::from)
}

/// Programs that use clients of Firecracker.
#[must_use]
pub fn clients() -> Option<String> {
    let missing = ["go-sdk", "volt-fctools", "schemathesis"]
        .into_iter()
        .find(|name| !clients_directory().join(name).exists());
    missing.map(|name| format!("no {name} in VOLT_CLIENTS: scripts/clients.sh builds it"))
}

/// Distribution's registry of images.
#[must_use]
pub fn registry() -> Option<String> {
    let is_built = clients_directory().join("registry").exists();
    (!is_built).then(|| "no registry in VOLT_CLIENTS: scripts/clients.sh --registry builds it".to_owned())
}

/// Python with the clients that are written in it.
#[must_use]
pub fn clients_python() -> PathBuf {
    clients_directory().join("../python/bin/python")
}

/// The agent of guests, and E2B's client.
#[must_use]
pub fn e2b() -> Option<String> {
    let missing =
        [clients_directory().join("volt-agent"), clients_python()].into_iter().find(|path| !path.exists());
    missing.map(|path| format!("no {}: scripts/clients.sh builds it, and sets VOLT_CLIENTS", path.display()))
}

/// A program that uses firecracker-go-sdk.
#[must_use]
pub fn go_sdk() -> Option<String> {
    let is_built = clients_directory().join("go-sdk").exists();
    (!is_built).then(|| "no go-sdk in VOLT_CLIENTS: scripts/clients.sh builds it".to_owned())
}

/// Control groups of version 2 that limit memory, CPU time and threads.
#[must_use]
pub fn control_groups() -> Option<String> {
    const LISTED: &str = "/sys/fs/cgroup/cgroup.controllers";
    let listed = std::fs::read_to_string(LISTED).unwrap_or_default();
    let missing = ["memory", "cpu", "pids"]
        .into_iter()
        .find(|name| listed.split_whitespace().all(|found| found != *name));
    missing.map(|name| format!("this host's control groups lack the controller {name} ({LISTED})"))
}

/// Root, with the right to make mount namespaces.
#[must_use]
pub fn root() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root, to mount file systems".to_owned());
    }
    crate::namespace::unavailable().map(|error| format!("no mount namespaces here ({error})"))
}

/// The right to handle page faults of KVM, for memory that is filled on touch.
#[must_use]
pub fn page_faults() -> Option<String> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let allowed = rustix::process::geteuid().is_root()
        || read("/proc/sys/vm/unprivileged_userfaultfd").trim() == "1"
        || File::options().read(true).write(true).open("/dev/userfaultfd").is_ok();
    (!allowed).then(|| "this user may not handle page faults of KVM".to_owned())
}

/// Free huge pages in the host's pool, as many as a test here needs.
#[must_use]
pub fn huge_pages() -> Option<String> {
    const LEAST: u64 = 48;
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = meminfo.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    let free = free.and_then(|count| count.trim().parse().ok()).unwrap_or(0);
    let lack = format!("{free} huge pages are free, and {LEAST} are needed (/proc/sys/vm/nr_hugepages)");
    (free < LEAST).then_some(lack)
}

/// A KVM that runs Linux, and this project's Linux to run.
#[must_use]
pub fn linux() -> Option<String> {
    // scripts/test.sh leaves the variable empty where kernel/build.sh found no source.
    let has_no_source = std::env::var_os("VOLT_KERNEL").is_some_and(|kernel| kernel.is_empty());
    let no_source = has_no_source.then(|| "no source to build this project's Linux from".to_owned());
    lacks_linux().or(no_source).or_else(|| file("VOLT_KERNEL"))
}

/// A KVM that runs Linux, and Debian's own kernel.
#[must_use]
pub fn stock_kernel() -> Option<String> {
    lacks_linux().or_else(|| file("VOLT_STOCK_KERNEL"))
}

/// Process 1 of VMs that run an image, busybox as the content of images, and passt, the network of such VMs
/// where none is chosen.
#[must_use]
pub fn agent() -> Option<String> {
    file("VOLT_AGENT_INITRD").or_else(|| program("busybox", "--help")).or_else(passt)
}

/// A directory with a Python and its files, for guests.
#[must_use]
pub fn python_tree() -> PathBuf {
    std::env::var_os("VOLT_PYTHON").map_or_else(PathBuf::new, PathBuf::from)
}

/// A Python for guests.
#[must_use]
pub fn python() -> Option<String> {
    let is_there = python_tree().join("usr/bin/python3").exists();
    (!is_there)
        .then(|| "no Python with OpenSSL in VOLT_PYTHON: scripts/test.sh copies the system's".to_owned())
}

/// Archive of an image with systemd.
#[must_use]
pub fn systemd_image() -> PathBuf {
    std::env::var_os("VOLT_SYSTEMD").map_or_else(PathBuf::new, PathBuf::from)
}

/// An image with systemd.
#[must_use]
pub fn systemd() -> Option<String> {
    let lacks = || "no image in VOLT_SYSTEMD: scripts/test.sh --full makes it".to_owned();
    (!systemd_image().exists()).then(lacks)
}

/// The directory with `data`, volt-vmm's own with an image of network clients, and `site.tar`, the site that
/// they get files from.
#[must_use]
pub fn net_clients_directory() -> PathBuf {
    std::env::var_os("VOLT_NET_CLIENTS").map_or_else(PathBuf::new, PathBuf::from)
}

/// An image with curl, apt, pip, git and node.
#[must_use]
pub fn net_clients() -> Option<String> {
    let lacks = || "no image in VOLT_NET_CLIENTS: scripts/test.sh --full makes it".to_owned();
    (!net_clients_directory().join("site.tar").exists()).then(lacks)
}

/// Why no Linux can run, whichever kernel it has.
fn lacks_linux() -> Option<String> {
    let runs_linux = ["kvm_intel", "kvm_amd"]
        .iter()
        .any(|name| std::fs::exists(format!("/sys/module/{name}")).unwrap_or(false));
    if !runs_linux {
        return Some("this host's KVM does not run Linux guests".to_owned());
    }
    kvm().or_else(|| file("VOLT_INITRD"))
}

/// A kvm_amd that nobody else uses, and its file, so that it can be loaded again: the lab's.
#[must_use]
pub fn kvm_module() -> Option<String> {
    let is_loaded = std::fs::exists("/sys/module/kvm_amd").unwrap_or(false);
    if is_loaded { file("VOLT_KVM_MODULE") } else { Some("this host's KVM is not kvm_amd".to_owned()) }
}

/// A KVM whose guests have TSCs of their own: kvm_pvm takes a written TSC without an error and ignores it.
#[must_use]
pub fn tsc() -> Option<String> {
    let gives_none = std::fs::exists("/sys/module/kvm_pvm").unwrap_or(false);
    gives_none.then(|| "this host's KVM ignores a written TSC".to_owned())
}

/// Files for scratch that take no memory: those of a tmpfs count for the memory of whoever writes them.
#[must_use]
pub fn scratch_on_disk() -> Option<String> {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    let found = rustix::fs::statfs(std::env::temp_dir()).map(|found| found.f_type);
    let in_memory = found.is_ok_and(|kind| [TMPFS, RAMFS].contains(&kind));
    in_memory.then(|| format!("{} is in memory", std::env::temp_dir().display()))
}

/// Network namespaces and tap devices, and the right to make them.
#[must_use]
pub fn network() -> Option<String> {
    if let Err(error) = Network::try_new() {
        return Some(format!("no network namespaces here ({error})"));
    }
    let opened = File::options().read(true).write(true).open("/dev/net/tun");
    opened.err().map(|error| format!("no /dev/net/tun here ({error})"))
}

/// Networks by address translation in the kernel: the packet filter, and the right to use it.
#[must_use]
pub fn nat() -> Option<String> {
    let probed = Network::try_new().and_then(|network| network.inside(volt_vmm::internal::probe_nat));
    probed.err().map(|error| format!("no networks by address translation here ({error})"))
}

/// The program tmux.
#[must_use]
pub fn tmux() -> Option<String> {
    program("tmux", "-V")
}

/// The program zsh.
#[must_use]
pub fn zsh() -> Option<String> {
    program("zsh", "--version")
}

/// EROFS and loop devices of the host, and GNU tar, whose archives have extended attributes.
#[must_use]
pub fn erofs() -> Option<String> {
    let version = Command::new("tar").arg("--version").output().map(|told| told.stdout).unwrap_or_default();
    let is_gnu = String::from_utf8_lossy(&version).contains("GNU tar");
    let lack = (!is_gnu).then(|| "no GNU tar here".to_owned());
    file_system("erofs").or_else(loop_device).or(lack)
}

/// Ext4 and loop devices of the host, and the programs of e2fsprogs.
#[must_use]
pub fn ext4() -> Option<String> {
    let lack = ["e2fsck", "dumpe2fs"].into_iter().find_map(|name| program(name, "-V"));
    file_system("ext4").or_else(loop_device).or(lack)
}

/// Overlayfs of the host.
#[must_use]
pub fn overlayfs() -> Option<String> {
    file_system("overlay")
}

/// The right to enlarge mounted file systems, and resize2fs.
#[must_use]
pub fn online_growth() -> Option<String> {
    use rustix::thread::{CapabilitySet, capabilities};
    let held = capabilities(None).map(|sets| sets.effective).unwrap_or(CapabilitySet::empty());
    let lacks = !held.contains(CapabilitySet::SYS_RESOURCE);
    let lack = lacks.then(|| "this user lacks CAP_SYS_RESOURCE, to enlarge mounted file systems".to_owned());
    lack.or_else(|| program("resize2fs", "-h"))
}

fn file_system(name: &str) -> Option<String> {
    let listed = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let has = listed.lines().any(|line| line.split_whitespace().next_back() == Some(name));
    (!has).then(|| format!("no {name} in this host's kernel (/proc/filesystems)"))
}

/// The program bash.
#[must_use]
pub fn bash() -> Option<String> {
    program("bash", "--version")
}

/// The program fish.
#[must_use]
pub fn fish() -> Option<String> {
    program("fish", "--version")
}

fn program(name: &str, version: &str) -> Option<String> {
    let asked = Command::new(name).arg(version).output();
    asked.err().map(|error| format!("no {name} here ({error})"))
}

/// The program passt.
#[must_use]
pub fn passt() -> Option<String> {
    program("passt", "--version")
}

/// Loop devices, and the right to make them.
#[must_use]
pub fn loop_device() -> Option<String> {
    let opened = File::options().read(true).write(true).open("/dev/loop-control");
    opened.err().map(|error| format!("no loop devices here ({error})"))
}

/// Linux's dm-log-writes, by which power cuts are replayed, and the right to use it.
#[must_use]
pub fn log_writes() -> Option<String> {
    if !std::fs::exists("/sys/module/dm_log_writes").unwrap_or(false) {
        return Some("the module dm-log-writes is not loaded".to_owned());
    }
    let programs =
        ["dmsetup", "mke2fs"].into_iter().find(|program| Command::new(program).arg("-V").output().is_err());
    programs.map(|program| format!("no {program} here")).or_else(loop_device).or_else(root)
}

/// Control groups that limit memory, and the right to make one.
#[must_use]
pub fn memory_limit() -> Option<String> {
    crate::pressure::limit_unavailable()
}

/// A host that swaps, and the right to limit what a process takes of its memory.
#[must_use]
pub fn pressure() -> Option<String> {
    crate::pressure::unavailable()
}

fn file(variable: &str) -> Option<String> {
    match std::env::var_os(variable) {
        Some(path) if std::fs::exists(&path).unwrap_or(false) => None,
        Some(path) => Some(format!("there is no {}, which {variable} names", path.display())),
        None => Some(format!("{variable} is not set (scripts/test.sh sets it)")),
    }
}
