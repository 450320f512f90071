//! A strictly confined VM is limited by a control group of its own.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use volt_tests::host::LoopDevice;
use volt_tests::injected::vm_of;
use volt_tests::{Boot, Guest, Scratch, needs};

/// Returns the directory of a process's control group.
fn group_of(pid: u32) -> PathBuf {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
    Path::new("/sys/fs/cgroup").join(group)
}

fn read(group: &Path, file: &str) -> String {
    fs::read_to_string(group.join(file)).unwrap().trim().to_owned()
}

/// A control group for those of VMs. A keeper has no capability, and cannot write to the root of all groups.
struct Parent(PathBuf);

impl Parent {
    fn new(test: &str) -> Self {
        let parent = Path::new("/sys/fs/cgroup").join(format!("volt-test-{test}-{}", std::process::id()));
        fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory +cpu +pids +io").unwrap();
        fs::create_dir(&parent).unwrap();
        Self(parent)
    }

    /// Starts a guest whose group lies in this one.
    fn start(&self, more: &[&str]) -> Guest {
        let options =
            ["--confine", "strict", "--cgroup-parent", self.0.file_name().unwrap().to_str().unwrap()];
        let mut guest = Boot::small("count").vcpus(2).device([&options, more].concat()).start();
        guest.next_number("count");
        guest
    }

    /// Ends a guest, and checks that its group is gone.
    fn remove(self, mut guest: Guest) {
        let group = group_of(vm_of(guest.pid()));
        guest.signal(Signal::TERM);
        assert_eq!(guest.wait_exit().status, 143);
        assert!(!group.exists());
        fs::remove_dir(&self.0).unwrap();
    }
}

#[test]
fn strict_guest_is_limited_and_its_group_is_removed() {
    needs!(kvm, root, control_groups);
    let parent = Parent::new("all");
    let guest = parent.start(&[]);
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
    parent.remove(guest);
}

#[test]
fn disk_of_a_strict_guest_is_limited() {
    needs!(kvm, root, control_groups, loop_device);
    let scratch = Scratch::new();
    let image = scratch.path("image");
    fs::write(&image, [0; 1 << 16]).unwrap();
    let disk = LoopDevice::over(&image);
    let name = Path::new(disk.path()).file_name().unwrap();
    let number = read(&Path::new("/sys/class/block").join(name), "dev");
    let line = format!("{number} rbps=1048576 wiops=100");
    let parent = Parent::new("io");
    let guest = parent.start(&["--io-max", &line]);
    let limits = read(&group_of(vm_of(guest.pid())), "io.max");
    assert_eq!(limits, format!("{number} rbps=1048576 wbps=max riops=max wiops=100"));
    assert!(!guest.stderr().contains("lacks"), "{}", guest.stderr());
    parent.remove(guest);
}
