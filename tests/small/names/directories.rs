//! Run directories that are damaged, of dead VMs, of other users, or on a full disk.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use volt_tests::names::named;
use volt_tests::{Input, Names, Scratch, needs};

#[test]
fn name_of_a_dead_vm_is_free_after_its_removal() {
    needs!(kvm);
    let names = Names::new();
    let mut client = names.start(named("web", "echo"), Input::Test);
    client.wait_for("ready");
    let pid = rustix::process::Pid::from_raw(names.pid("web").try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    client.wait_exit();
    let again = names.start(named("web", "hello"), Input::Null).wait_exit();
    assert!(again.status == 1 && again.stderr.contains("has ended; remove it"), "{again:?}");
    names.ok("rm web");
    assert_eq!(names.start(named("web", "hello"), Input::Null).wait_exit().status, 0);
}

#[test]
fn damaged_directory_hides_no_other_vm() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "echo");
    for name in ["empty", "torn"] {
        fs::create_dir(names.of(name)).unwrap();
    }
    fs::write(names.of("torn").join("vm.json"), "{\"id\":").unwrap();
    fs::write(names.root().join("file"), "").unwrap();
    symlink("/", names.of("link")).unwrap();
    assert_eq!(names.ok("ps -aq"), "web\n");
    assert_eq!(names.ok("prune"), "");
    // A directory that a killed process began does not keep its name.
    assert_eq!(names.start(named("torn", "hello"), Input::Null).wait_exit().status, 0);
    let refused = names.start(named("link", "hello"), Input::Null).wait_exit();
    assert_eq!(refused.status, 1, "{refused:?}");
    assert!(fs::symlink_metadata(names.of("link")).unwrap().is_symlink());
}

#[test]
fn run_directory_of_another_user_is_refused() {
    needs!(kvm, root);
    let names = Names::new();
    fs::create_dir(names.root()).unwrap();
    chown(names.root(), Some(4711), None).unwrap();
    let refused = ["belongs to user 4711", "VOLT_RUN_DIR"];
    for line in ["ps", "run --detach --kernel /k", "rm web", "prune", "inspect web"] {
        names.run(line).refused(&refused);
    }
    chown(names.root(), Some(0), None).unwrap();
    fs::set_permissions(names.root(), PermissionsExt::from_mode(0o777)).unwrap();
    names.run("ps").refused(&["mode 777", "make it 700"]);
    fs::remove_dir(names.root()).unwrap();
    symlink("/tmp", names.root()).unwrap();
    names.run("ps").refused(&["it is a link or a file"]);
}

/// Commands that only read: they find the host's own VMs and snapshots, if it has some.
#[test]
fn root_uses_no_directory_of_a_users_environment() {
    needs!(root);
    let names = Names::new();
    let users = names.scratch().path("users");
    for directory in ["volt-vmm/web", "volt-vmm/snapshots/warm"] {
        fs::create_dir_all(users.join(directory)).unwrap();
    }
    // Mode 755: a command that looked into it would refuse it.
    let listed = |words: &[&str]| {
        let mut command = names.command(words);
        command.env_remove("VOLT_RUN_DIR").env_remove("VOLT_DATA_DIR");
        command.env("XDG_RUNTIME_DIR", &users).env("XDG_DATA_HOME", &users).output().unwrap()
    };
    let vms = listed(&["ps", "-a"]);
    assert!(vms.status.success(), "{vms:?}");
    let snapshots = listed(&["snapshot", "ls", "-q"]);
    let found = String::from_utf8_lossy(&snapshots.stdout).into_owned();
    assert!(snapshots.status.success() && found.lines().all(|name| name != "warm"), "{snapshots:?}");
}

#[test]
fn relative_path_of_the_run_directory_is_refused() {
    let names = Names::new();
    let refused = names.command(["ps"]).env("VOLT_RUN_DIR", "vms").output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("VOLT_RUN_DIR names it; give an absolute"), "{text}");
}

/// A small tmpfs in this directory, unmounted on drop.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(size: &str, directory: &Path) -> Self {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size},mode=700"), "tmpfs"])
            .arg(directory)
            .status();
        assert!(mounted.expect("run mount").success());
        Self(directory.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn prune_goes_on_after_a_directory_that_cannot_be_removed() {
    needs!(kvm, root);
    let names = Names::new();
    for name in ["a", "b", "c", "d"] {
        names.boot(name, "hello");
        assert_eq!(names.run(&format!("wait {name}")).status, 0);
    }
    let mounts = ["a", "c"].map(|name| {
        let busy = names.of(name).join("busy");
        fs::create_dir(&busy).unwrap();
        SmallDisk::mount("64k", &busy)
    });
    let pruned = names.run("prune");
    assert_eq!((pruned.status, pruned.stdout.as_str()), (1, "b\nd\n"), "{pruned:?}");
    for name in ["a", "c"] {
        let problem = format!("run directory {}: cannot remove it", names.of(name).display());
        assert!(pruned.stderr.contains(&problem), "{pruned:?}");
    }
    drop(mounts);
}

#[test]
fn full_disk_refuses_a_name_and_keeps_no_outcome_out() {
    needs!(kvm, root);
    let scratch = Scratch::new();
    let _disk = SmallDisk::mount("256k", scratch.directory());
    let names = Names::in_scratch(scratch.clone());
    names.boot("web", "echo");
    let filler = scratch.path("filler");
    let _ = fs::write(&filler, vec![1; 1 << 20]);
    let refused = names.start(named("db", "hello"), Input::Null).wait_exit();
    assert_eq!(refused.status, 1, "{refused:?}");
    assert!(
        refused.stderr.contains("run directory") && refused.stderr.contains("No space left"),
        "{refused:?}"
    );
    assert!(!names.of("db").exists(), "nothing of it is left");
    // The guest goes on without its log.
    let mut client = names.start(["attach", "web"].map(Into::into).to_vec(), Input::Test);
    let text = "x".repeat(8000);
    client.type_in(&format!("{text}\nend")).wait_for("\nend");
    drop(client);
    names.ok("stop -t 0 web");
    assert_eq!(names.json("inspect web --json")["end"]["cause"], "stopped");
    fs::remove_file(filler).unwrap();
    names.ok("rm web");
}
