//! A strictly confined VM is limited by a control group of its own.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use volt_tests::injected::vm_of;
use volt_tests::{Boot, needs};

/// Returns the directory of a process's control group.
fn group_of(pid: u32) -> PathBuf {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
    Path::new("/sys/fs/cgroup").join(group)
}

fn read(group: &Path, file: &str) -> String {
    fs::read_to_string(group.join(file)).unwrap().trim().to_owned()
}

#[test]
fn strict_guest_is_limited_and_its_group_is_removed() {
    needs!(kvm, root, control_groups);
    // The keeper has no capability, and could not write to the root of all groups.
    let parent = Path::new("/sys/fs/cgroup").join(format!("volt-test-{}", std::process::id()));
    fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory +cpu +pids").unwrap();
    fs::create_dir(&parent).unwrap();
    let name = parent.file_name().unwrap().to_str().unwrap();
    let options = ["--confine", "strict", "--cgroup-parent", name];
    let mut guest = Boot::small("count").vcpus(2).device(options).start();
    guest.next_number("count");
    let group = group_of(vm_of(guest.pid()));
    assert_eq!(group.file_name().unwrap().to_str().unwrap(), format!("volt-vmm-{}", guest.pid()));
    assert_eq!(read(&group, "memory.max"), ((2 * 64 + 128) << 20).to_string());
    assert_eq!(read(&group, "cpu.max"), "300000 100000");
    assert_eq!(read(&group, "pids.max"), "1024");
    // Older kernels move a thread of KVM's own into the group too.
    let members = read(&group, "cgroup.procs");
    assert!(members.lines().any(|pid| pid == vm_of(guest.pid()).to_string()), "{members}");
    assert_ne!(group_of(guest.pid()), group, "the keeper is outside");
    assert!(!guest.stderr().contains("lacks"), "{}", guest.stderr());
    guest.signal(Signal::TERM);
    assert_eq!(guest.wait_exit().status, 143);
    assert!(!group.exists());
    fs::remove_dir(&parent).unwrap();
}
