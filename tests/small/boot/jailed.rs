//! `volt-vmm jailer` runs a VM as another user, in a root directory of its own.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use volt_tests::jails::{GROUP, ID, Sleeper, USER};
use volt_tests::program::binary;
use volt_tests::{Jails, Network, needs, output, rest, wait_until};

/// Hierarchies of control groups with the controller `pids`, by version.
const PIDS: [(&str, &str); 2] = [("1", "/sys/fs/cgroup/pids"), ("2", "/sys/fs/cgroup")];

/// Returns the words of a field of `/proc/PID/status`.
fn status(pid: u32, field: &str) -> Vec<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
    value.split_whitespace().map(str::to_owned).collect()
}

fn namespace(pid: u32, kind: &str) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap()
}

fn entries(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn jailed_guest_runs_as_another_user_in_a_root_of_its_own() {
    needs!(kvm, root);
    let jails = Jails::new();
    let jailed = jails.boot(&["--resource-limit", "fsize=100000000"]);
    let pid = jailed.pid();
    assert_eq!(jailed.jailer(), pid);
    assert_eq!(status(pid, "Uid"), vec![USER.to_string(); 4]);
    assert_eq!(status(pid, "Gid"), vec![GROUP.to_string(); 4]);
    assert!(status(pid, "Groups").is_empty());
    assert_eq!(status(pid, "CapEff"), ["0000000000000000"]);
    let seen = PathBuf::from(format!("/proc/{pid}/root"));
    let name = binary().file_name().unwrap().to_str().unwrap().to_owned();
    let expected =
        [&name, &format!("{name}.pid"), "guest.elf", "dev", "proc", "run", "tmp"].map(str::to_owned);
    assert_eq!(entries(&seen), expected.into());
    assert_eq!(entries(&jails.root()), entries(&seen));
    for device in ["dev/kvm", "dev/net/tun", "dev/null", "dev/urandom", "dev/userfaultfd"] {
        let Ok(host) = fs::metadata(Path::new("/").join(device)) else { continue };
        let own = fs::metadata(jails.root().join(device)).unwrap();
        assert!(own.file_type().is_char_device() && own.rdev() == host.rdev(), "{device}");
        assert_eq!((own.uid(), own.gid(), own.mode() & 0o7777), (USER, GROUP, 0o600), "{device}");
    }
    for directory in ["", "dev", "dev/net", "run", "tmp"] {
        let own = fs::metadata(jails.root().join(directory)).unwrap();
        assert_eq!((own.uid(), own.gid(), own.mode() & 0o7777), (USER, GROUP, 0o700), "{directory}");
    }
    let copy = fs::metadata(jails.root().join(&name)).unwrap();
    assert_eq!((copy.uid(), copy.mode() & 0o7777), (0, 0o755));
    assert_ne!(copy.ino(), fs::metadata(binary()).unwrap().ino());
    let environment = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    assert_eq!(environment, format!("VOLT_VMM_JAIL={USER}\0"));
    assert_ne!(namespace(pid, "mnt"), namespace(std::process::id(), "mnt"));
    assert_eq!(namespace(pid, "pid"), namespace(std::process::id(), "pid"));
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let limit = |name: &str| limits.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
    let limit = |name| limit(name).split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(limit("Max open files"), ["2048", "2048"]);
    assert_eq!(limit("Max file size"), ["100000000", "100000000"]);
}

#[test]
fn daemon_in_a_pid_namespace_serves_its_api_and_its_pid_file_names_it() {
    needs!(kvm, root, network);
    let jails = Jails::new();
    let network = Network::new();
    // The namespace of a process has a path.
    let sleeper = Sleeper::start(|command| network.namespace().apply(command));
    let path = format!("/proc/{}/ns/net", sleeper.pid());
    let options = ["--netns", &path, "--daemonize", "--new-pid-ns"];
    let daemon = jails.start_daemon(&options, &["--api-sock", "/run/api.socket"]);
    let pid = daemon.pid();
    let socket = jails.path("/run/api.socket");
    wait_until("the API answers", || UnixStream::connect(&socket).is_ok());
    let (code, body) = rest::ask(&socket, "GET", "/", "");
    assert!(code == 200 && body.contains(&format!("\"id\":\"{ID}\"")), "{code} {body}");
    assert_eq!(status(pid, "NSpid"), [pid.to_string(), "1".to_owned()]);
    assert_eq!(namespace(pid, "net"), fs::read_link(&path).unwrap());
    assert_ne!(namespace(pid, "net"), namespace(std::process::id(), "net"));
    for stream in 0..3 {
        assert_eq!(fs::read_link(format!("/proc/{pid}/fd/{stream}")).unwrap(), Path::new("/dev/null"));
    }
    let machine = r#"{"vcpu_count": 1, "mem_size_mib": 64}"#;
    let source = r#"{"kernel_image_path": "/guest.elf", "boot_args": "count"}"#;
    let start = r#"{"action_type": "InstanceStart"}"#;
    for (path, body) in [("/machine-config", machine), ("/boot-source", source), ("/actions", start)] {
        let (code, body) = rest::ask(&socket, "PUT", path, body);
        assert_eq!(code, 204, "{path}: {body}");
    }
    let (_, state) = rest::ask(&socket, "GET", "/", "");
    assert!(state.contains("\"state\":\"Running\""), "{state}");
}

#[test]
fn jailer_whose_session_began_outside_its_pid_namespace_makes_one() {
    needs!(kvm, root);
    let jails = Jails::new();
    let jailer = jails.jailer(&["--new-pid-ns"], &["--api-sock", "/run/api.socket"]);
    // The number of the session is 0 there. The end of the shell, the first process, is that of the others.
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "sh", "-c", "\"$@\"; exit $?", "sh"]);
    command.arg(jailer.get_program()).args(jailer.get_args());
    let done = output(&mut command);
    assert!(done.status.success() && jails.pid_file().exists(), "{done:?}");
}

#[test]
fn jailed_guest_is_in_the_control_group_with_the_given_limit() {
    needs!(kvm, root);
    let has_pids = |(_, mount): &&(&str, &str)| {
        let listed = fs::read_to_string(Path::new(mount).join("cgroup.controllers")).unwrap_or_default();
        Path::new(mount).join("cgroup.procs").exists() && !mount.ends_with("cgroup")
            || listed.split_whitespace().any(|name| name == "pids")
    };
    let Some((version, mount)) = PIDS.iter().find(has_pids) else {
        return volt_tests::need::skip("no control groups that limit processes here");
    };
    let parent = format!("volt-jailed-{}/vms", std::process::id());
    let jails = Jails::new();
    let options = ["--cgroup-version", version, "--parent-cgroup", &parent, "--cgroup", "pids.max=77"];
    let jailed = jails.boot(&options);
    let group = Path::new(mount).join(&parent).join(ID);
    let held = fs::read_to_string(group.join("cgroup.procs")).unwrap();
    let limit = fs::read_to_string(group.join("pids.max")).unwrap();
    let pid = jailed.pid().to_string();
    drop(jailed);
    // An ended process can stay in its group for a moment.
    wait_until("the groups are removed", || {
        group.ancestors().take(3).all(|group| fs::remove_dir(group).is_ok() || !group.exists())
    });
    assert!(held.lines().any(|line| line == pid), "{held:?}");
    assert_eq!(limit.trim(), "77");
}

#[test]
fn refused_jail_names_the_option() {
    needs!(kvm, root);
    let jails = Jails::new();
    let exec = binary();
    for (options, words) in [
        (&["--netns", "/no/such"][..], "cannot open --netns /no/such"),
        (&["--cgroup", "cpus=1"], "--cgroup <FILE=VALUE>': cpus=1 is not FILE=VALUE"),
        (&["--cgroup", "none.max=1"], "cannot apply --cgroup none.max=1"),
        (&["--cgroup-version", "3"], "--cgroup-version <1|2>': it is 1 or 2"),
        (&["--parent-cgroup", "../up"], "--parent-cgroup <PATH>': it is a path below"),
        (&["--resource-limit", "cpu=1"], "--resource-limit <NAME=NUMBER>': it is no-file"),
    ] {
        let failed = output(&mut jails.jailer(options, &["run"]));
        let error = String::from_utf8(failed.stderr).unwrap();
        assert!(!failed.status.success() && error.contains(words), "{options:?}: {error}");
        let _ = fs::remove_file(jails.root().join(exec.file_name().unwrap()));
    }
    let mut command = Command::new(binary());
    let options = ["jailer", "--id", "a/b", "--exec-file", "/no/such", "--uid", "1", "--gid", "1"];
    let failed = output(command.args(options));
    let error = String::from_utf8(failed.stderr).unwrap();
    assert!(error.contains("'a/b' for '--id <NAME>'"), "{error}");
    let mut command = Command::new(binary());
    let options = ["jailer", "--id", "a", "--exec-file", "/no/such", "--uid", "1", "--gid", "1"];
    let error = String::from_utf8(output(command.args(options)).stderr).unwrap();
    assert!(error.contains("cannot use --exec-file /no/such"), "{error}");
}

#[test]
fn used_id_is_refused_and_a_link_in_the_jail_is_not_followed() {
    needs!(kvm, root);
    let jails = Jails::new();
    let target = jails.base().join("target");
    fs::write(&target, "of the host").unwrap();
    std::os::unix::fs::symlink(&target, jails.root().join(binary().file_name().unwrap())).unwrap();
    let failed = output(&mut jails.jailer(&[], &["run"]));
    let error = String::from_utf8(failed.stderr).unwrap();
    assert!(!failed.status.success() && error.contains("a jail of this --id exists"), "{error}");
    assert_eq!(fs::read_to_string(&target).unwrap(), "of the host");
    fs::remove_file(jails.root().join(binary().file_name().unwrap())).unwrap();
    let directory = jails.base().join("directory");
    fs::create_dir(&directory).unwrap();
    std::os::unix::fs::symlink(&directory, jails.path("/proc")).unwrap();
    let before = fs::metadata(&directory).unwrap();
    let failed = output(&mut jails.jailer(&[], &["run"]));
    let error = String::from_utf8(failed.stderr).unwrap();
    assert!(!failed.status.success() && error.contains("cannot mount /proc in the jail"), "{error}");
    assert_eq!(fs::metadata(&directory).unwrap().mode(), before.mode());
}
