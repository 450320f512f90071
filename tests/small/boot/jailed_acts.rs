//! A VM in a jail takes snapshots, forks, tells its memory and meets the host's connections. Its `/proc`
//! shows no process of another user.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Gid, Uid};
use rustix::thread::{
    LinkNameSpaceType, UnshareFlags, move_into_link_name_space, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid, unshare_unsafe,
};
use serde_json::{Value, json};
use volt_tests::jails::{Sleeper, USER};
use volt_tests::{Jails, limited, needs, rest, vsock};

/// Guest and devices of the VM, which a restore needs too.
const RUN: [&str; 13] = [
    "run",
    "--kernel",
    "/guest.elf",
    "--cmdline",
    "vsock",
    "--memory",
    "64M",
    "--vsock",
    "cid=5,socket=/run/vsock",
    "--disk",
    "id=disk,path=/disk.img,layer=/run/disk.layer",
    "--api-socket",
    "/run/vm.sock",
];
/// The options of a jail with and without a pid namespace.
const PID_NAMESPACES: [&[&str]; 2] = [&[], &["--new-pid-ns"]];

/// A jail with a VM.
struct Jailed {
    jails: Jails,
    jailed: volt_tests::jails::Jailed,
}

impl Jailed {
    fn ask(&self, socket: &str, method: &str, path: &str, body: &str) -> String {
        let (code, answer) = rest::ask(&self.jails.path(socket), method, path, body);
        assert!(code < 300, "{method} {path} {body}: {code} {answer}");
        answer
    }

    fn snapshot(&self, socket: &str, fields: &str) {
        self.ask(socket, "PUT", "/snapshot/create", &format!("{{{fields}}}"));
    }

    /// Sends a byte through the guest behind a vsock socket.
    fn meets_guest(&self, socket: &str) {
        let mut stream = vsock::connect(&self.jails.path(socket), 1000);
        let mut answer = [0];
        limited("the guest's echo", || {
            stream.write_all(b"x").unwrap();
            stream.read_exact(&mut answer).unwrap();
        });
        assert_eq!(&answer, b"x");
    }

    /// Forks a child `NAME.sock` in the jail's `/run`, with a vsock socket of its own, and ends it.
    fn forks(&self, name: &str) {
        let overrides = json!({"vsock": {"socket": format!("/run/{name}")}});
        let child = json!({"api_socket": format!("/run/{name}.sock"), "overrides": overrides});
        self.ask("/run/vm.sock", "POST", "/v1/vm/fork", &json!({"children": [child]}).to_string());
        self.meets_guest(&format!("/run/{name}"));
        self.ask(&format!("/run/{name}.sock"), "PUT", "/v1/stop", "");
    }
}

fn boot(options: &[&str], more: &[&str]) -> Jailed {
    let jails = Jails::new();
    File::create(jails.path("/disk.img")).unwrap().set_len(1 << 20).unwrap();
    let jailed = jails.start(options, &[&RUN, more].concat(), "cid 5");
    Jailed { jails, jailed }
}

/// Copies a snapshot of a jail into another one and gives it to its user.
fn carry(from: &Jails, to: &Jails, name: &str) {
    let copied = Command::new("cp").arg("-r").arg(from.path("/run").join(name)).arg(to.root()).status();
    assert!(copied.unwrap().success());
    to.give(name);
}

#[test]
fn jailed_vm_takes_snapshots_forks_and_meets_its_host() {
    needs!(kvm, root);
    let strict: &[&str] = &["--confine", "strict", "--allow-path", "/run"];
    for (options, more) in
        PID_NAMESPACES.into_iter().map(|options| (options, &[][..])).chain([(&[][..], strict)])
    {
        let vm = boot(options, more);
        vm.snapshot("/run/vm.sock", r#""snapshot_path":"/run/full""#);
        vm.snapshot("/run/vm.sock", r#""snapshot_path":"/run/diff","snapshot_type":"Diff""#);
        vm.snapshot("/run/vm.sock", r#""snapshot_path":"/run/live","max_pause_ms":1000"#);
        let memory = vm.ask("/run/vm.sock", "GET", "/v1/vm/memory", "");
        let memory: Value = serde_json::from_str(&memory).unwrap();
        assert!(memory["base_bytes"].as_u64().is_some_and(|base| base > 0), "{memory}");
        vm.meets_guest("/run/vsock");
        vm.forks("child");
        for name in ["full", "diff", "live"] {
            assert!(vm.jails.path(&format!("/run/{name}/state.json")).exists(), "{name}");
        }
        let state = fs::read_to_string(vm.jails.path("/run/full/state.json")).unwrap();
        assert!(!state.contains(r#""cpu_vendor":"unknown""#), "the jail has no cpuinfo: {state}");
    }
}

#[test]
fn snapshot_of_a_jail_restores_in_another_with_each_pager() {
    needs!(kvm, root, page_faults);
    let first = boot(&[], &[]);
    first.snapshot("/run/vm.sock", r#""snapshot_path":"/run/raw""#);
    first.snapshot("/run/vm.sock", r#""snapshot_path":"/run/packed","compress":"lz4""#);
    for (name, pager) in [("raw", "own"), ("packed", "own"), ("packed", "shared")] {
        let jails = Jails::new();
        File::create(jails.path("/disk.img")).unwrap().set_len(1 << 20).unwrap();
        carry(&first.jails, &jails, name);
        let (directory, vsock) = (format!("/{name}"), "socket=/run/vsock");
        let options =
            ["--disk", "id=disk,path=/disk.img,layer=/run/disk.layer,changed=accept", "--vsock", vsock];
        let arguments = ["restore", &directory, "--pager", pager, "--api-socket", "/run/vm.sock"];
        let arguments: Vec<_> = arguments.into_iter().chain(options).collect();
        let jailed = jails.start(&["--new-pid-ns"], &arguments, "reset");
        let vm = Jailed { jails, jailed };
        vm.meets_guest("/run/vsock");
        vm.ask("/run/vm.sock", "PUT", "/v1/vm/rewind", "");
        vm.meets_guest("/run/vsock");
        vm.snapshot("/run/vm.sock", r#""snapshot_path":"/run/diff","snapshot_type":"Diff""#);
        vm.forks("child");
    }
}

#[test]
fn killed_jails_socket_is_replaced_by_the_next_vm_of_the_jail() {
    needs!(kvm, root);
    let Jailed { jails, jailed } = boot(&[], &[]);
    drop(jailed);
    assert!(jails.path("/run/vm.sock").exists() && jails.path("/run/vsock").exists());
    // A client may keep the jail's files, and remove what the jailer made.
    fs::remove_file(jails.root().join(volt_tests::program::binary().file_name().unwrap())).unwrap();
    fs::remove_file(jails.pid_file()).unwrap();
    fs::remove_dir_all(jails.path("/dev")).unwrap();
    fs::remove_file(jails.path("/run/disk.layer")).unwrap();
    let jailed = jails.start(&[], &RUN, "cid 5");
    let vm = Jailed { jails, jailed };
    vm.meets_guest("/run/vsock");
    vm.ask("/run/vm.sock", "GET", "/v1/vm", "");
}

/// Lists the processes in the `/proc` of a jail, as its user if `as_user`. The calling thread ends for that.
fn processes(pid: u32, as_user: bool) -> BTreeSet<u32> {
    let mounts = File::open(format!("/proc/{pid}/ns/mnt")).unwrap();
    let list = move || {
        // SAFETY: the thread has its own root and directory then. No memory is concerned.
        #[allow(unsafe_code)]
        unsafe { unshare_unsafe(UnshareFlags::FS) }.unwrap();
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&mounts), Some(LinkNameSpaceType::Mount)).unwrap();
        if as_user {
            // This group is that of root's procfs, which some options of hidepid let see all.
            let (user, group) = (Uid::from_raw(USER), Gid::ROOT);
            set_thread_groups(&[]).unwrap();
            set_thread_res_gid(group, group, group).unwrap();
            set_thread_res_uid(user, user, user).unwrap();
        }
        let names = fs::read_dir("/proc/processes").unwrap().map(|entry| entry.unwrap().file_name());
        names.filter_map(|name| name.to_str()?.parse().ok()).collect()
    };
    std::thread::spawn(list).join().unwrap()
}

#[test]
fn other_users_processes_and_the_hosts_settings_are_not_in_a_jails_proc() {
    needs!(kvm, root);
    let other = Sleeper::start(|command| {
        command.uid(USER + 1);
    });
    for options in PID_NAMESPACES {
        let jails = Jails::new();
        let jailed = jails.boot(options);
        let (as_root, as_user) = (processes(jailed.pid(), false), processes(jailed.pid(), true));
        // Root sees all of the pid namespace, which shows that the list is one.
        let known = if options.is_empty() { other.pid() } else { 1 };
        assert!(as_root.contains(&known), "{options:?}: {as_root:?}");
        assert_eq!(as_root.contains(&other.pid()), options.is_empty(), "{options:?}: {as_root:?}");
        let hidden = [1, other.pid(), jailed.pid()];
        assert!(hidden.iter().all(|pid| !as_user.contains(pid)), "{options:?}: {as_user:?}");
        let own = std::process::id();
        assert!(as_user.iter().all(|pid| *pid == own), "{options:?}: {as_user:?}");
        let proc = Path::new(&format!("/proc/{}/root/proc", jailed.pid())).to_owned();
        let names = |path: &Path| {
            let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string());
            names.collect::<Result<BTreeSet<_>, _>>().unwrap()
        };
        assert_eq!(names(&proc), ["cpuinfo", "processes", "self", "sys"].map(str::to_owned).into());
        let mut others = names(&proc.join("processes"));
        others.retain(|name| name.parse::<u32>().is_err());
        assert_eq!(others, ["self", "thread-self"].map(str::to_owned).into(), "{options:?}");
        assert_eq!(names(&proc.join("sys/kernel")), ["random".to_owned()].into());
        let mounts = fs::read_to_string(format!("/proc/{}/mounts", jailed.pid())).unwrap();
        let options_of = |path: &str| {
            let line = mounts.lines().find(|line| line.split(' ').nth(1) == Some(path));
            line.unwrap_or_else(|| panic!("{path}: {mounts}")).split(' ').nth(3).unwrap().to_owned()
        };
        for path in ["/proc", "/proc/processes"] {
            let found = options_of(path);
            let has = |name| found.split(',').any(|option| option == name);
            assert!(["nosuid", "nodev", "noexec"].into_iter().all(has), "{path}: {found}");
        }
        let of_host = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!of_host.contains(jails.base().to_str().unwrap()), "the host has the jail's mounts");
        drop(jailed);
    }
}
