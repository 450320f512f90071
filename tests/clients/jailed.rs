//! A client of Firecracker starts `volt-vmm jailer`, finds the API, boots a VM with files that it linked into
//! the jail, ends it and removes the jail.

use std::borrow::Cow;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use volt_tests::jails::{GROUP, USER};
use volt_tests::program::binary;
use volt_tests::scratch::list;
use volt_tests::{Scratch, needs, output, small_guest, wait_until};

/// The programs of both versions of firecracker-go-sdk.
pub const GO_CLIENTS: [&str; 2] = ["go-sdk", "go-sdk-main"];
/// The user of another jail.
const OTHER: u32 = 61_236;
/// The hierarchy of version 1 that has cpusets.
const CPUSET: &str = "/sys/fs/cgroup/cpuset";
/// Processors of the first NUMA node.
const NODE: &str = "/sys/devices/system/node/node0/cpulist";

/// The files of one VM, and the directory of its jail.
pub struct Files {
    pub scratch: Scratch,
    id: String,
}

impl Files {
    pub fn new() -> Self {
        let scratch = Scratch::new();
        fs::create_dir(scratch.path("jails")).unwrap();
        fs::copy(small_guest(), scratch.path("vmlinux")).unwrap();
        File::create(scratch.path("disk.img")).unwrap().set_len(1 << 20).unwrap();
        // The clients link the image as it is.
        std::os::unix::fs::chown(scratch.path("disk.img"), Some(USER), Some(GROUP)).unwrap();
        symlink(binary(), scratch.path("jailer")).unwrap();
        let name = scratch.directory().file_name().unwrap().to_str().unwrap();
        let id = name.chars().filter(char::is_ascii_alphanumeric).collect();
        Self { scratch, id }
    }

    /// Runs a client to its end. Returns what it wrote to its standard output.
    pub fn run(&self, client: &str, arguments: &[&str], variables: &[(&str, &str)]) -> String {
        let [told, _] = self.run_shown(client, arguments, variables);
        told
    }

    /// Runs a client to its end. Returns its standard output, and its standard error, where the SDK's
    /// programs send the output of their VMs.
    fn run_shown(&self, client: &str, arguments: &[&str], variables: &[(&str, &str)]) -> [String; 2] {
        let mut command = Command::new(volt_tests::need::clients_directory().join(client));
        command.args(arguments).envs(variables.iter().copied());
        command.env("VOLT_VMM", binary()).env("VOLT_JAILER", self.scratch.path("jailer"));
        command.env("VOLT_BASE", self.jails()).env("VOLT_ID", &self.id);
        command.env("VOLT_USER", USER.to_string()).env("VOLT_GROUP", GROUP.to_string());
        command
            .env("VOLT_KERNEL", self.scratch.path("vmlinux"))
            .env("VOLT_DISK", self.scratch.path("disk.img"));
        // The SDK shuffles words.
        command.env("VOLT_BOOT_ARGS", "disk");
        let done = output(&mut command);
        let (out, error) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        // A summary shows the first line alone.
        let why = error.lines().last().unwrap_or_default();
        assert!(done.status.success(), "{client} {arguments:?}: {}: {why}\n{out}\n{error}", done.status);
        [out, error].map(Cow::into_owned)
    }

    fn jails(&self) -> PathBuf {
        self.scratch.path("jails")
    }

    /// Checks that the VM worked, and that neither its process nor its jail is left.
    fn are_as_after_a_vm(&self) {
        assert!(fs::read(self.scratch.path("disk.img")).unwrap()[..512].iter().any(|byte| *byte != 0));
        wait_until("the jail's processes end", || processes_in(&self.jails()).is_empty());
        let left = list(&self.jails().join(binary().file_name().unwrap()));
        assert!(left.is_empty(), "left: {left:?}");
    }
}

/// Whether a program is built. One needs a newer Go than some distributions have.
pub fn has(client: &str) -> bool {
    let is_built = volt_tests::need::clients_directory().join(client).exists();
    if !is_built {
        eprintln!("{client} is not built here: scripts/clients.sh says why");
    }
    is_built
}

/// Processes whose root directory lies in this one.
fn processes_in(directory: &Path) -> Vec<String> {
    let is_in =
        |id: &String| fs::read_link(format!("/proc/{id}/root")).is_ok_and(|root| root.starts_with(directory));
    list("/proc".as_ref()).into_iter().filter(is_in).collect()
}

#[test]
fn fctools_boots_and_ends_a_vm_in_each_kind_of_jail() {
    needs!(kvm, root, clients);
    let jails: [&[&str]; 4] =
        [&[], &["daemonize"], &["new-pid-ns"], &["daemonize", "new-pid-ns", "files=500"]];
    for options in jails {
        let files = Files::new();
        let told = files.run("volt-fctools", options, &[]);
        let info = format!("info: id={} paused=false running=true\n", files.id);
        assert!(told.contains(&info) && told.contains("ended: "), "{options:?}: {told}");
        files.are_as_after_a_vm();
    }
}

#[test]
fn go_sdk_boots_and_ends_a_vm_in_a_jail() {
    needs!(kvm, root, clients);
    let clients = GO_CLIENTS.into_iter().filter(|client| has(client));
    for (client, seccomp) in clients.flat_map(|client| [(client, "off"), (client, "on")]) {
        let files = Files::new();
        let variables = [("VOLT_SECCOMP", seccomp), ("VOLT_CGROUP_VERSION", "2")];
        let [told, shown] = files.run_shown(client, &["-1"], &variables);
        let info = format!("info: id={} state=Running pid=", files.id);
        assert!(told.contains(&info) && told.contains("exit status 143"), "{client} {seccomp}: {told}");
        assert!(shown.contains("ready\n"), "the jailer's streams are not the guest's: {shown}");
        files.are_as_after_a_vm();
    }
}

#[test]
fn fctools_loads_the_snapshot_of_a_jail_in_that_of_another_user() {
    needs!(kvm, root, clients);
    let files = Files::new();
    let told = files.run("volt-fctools", &["moved"], &[("VOLT_OTHER_USER", &OTHER.to_string())]);
    let info = format!("info: id={}-second paused=false\n", files.id);
    assert!(told.contains(&info) && told.matches("ended: ").count() == 2, "{told}");
    files.are_as_after_a_vm();
}

#[test]
fn go_sdk_keeps_a_jail_on_a_numa_node() {
    needs!(kvm, root, clients);
    let (Ok(processors), true) = (fs::read_to_string(NODE), Path::new(CPUSET).join("cpuset.cpus").exists())
    else {
        return volt_tests::need::skip("no NUMA node, or no cpusets of version 1 here");
    };
    let files = Files::new();
    // Without a version, the module leaves it to the jailer.
    files.run("go-sdk", &["0"], &[("VOLT_SECCOMP", "on"), ("VOLT_CGROUP_VERSION", "")]);
    let group = Path::new(CPUSET).join(binary().file_name().unwrap()).join(&files.id);
    let found = ["cpuset.cpus", "cpuset.mems"].map(|name| fs::read_to_string(group.join(name)));
    wait_until("the group is removed", || fs::remove_dir(&group).is_ok() || !group.exists());
    let [cpus, nodes] = found.map(|text| text.unwrap().trim().to_owned());
    assert_eq!((cpus.as_str(), nodes.as_str()), (processors.trim(), "0"));
    files.are_as_after_a_vm();
}
