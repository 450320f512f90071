//! `--rm`: a VM that leaves nothing once it has ended.

use std::ffi::OsString;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use volt_tests::names::small;
use volt_tests::scratch::list;
use volt_tests::{Input, Names, Outcome, Terminal, needs, wait_until};

fn removed(cmdline: &str, options: &[&str]) -> Vec<OsString> {
    let mut words = small(cmdline);
    words.push("--rm".into());
    words.extend(options.iter().map(Into::into));
    words
}

fn boot(names: &Names, cmdline: &str, options: &[&str]) {
    Outcome::of_command(&mut names.command(removed(cmdline, options))).succeeded();
}

#[test]
fn detached_vm_is_removed_at_its_end() {
    needs!(kvm);
    let names = Names::new();
    boot(&names, "echo", &["-d", "--name", "web"]);
    assert_eq!(names.ok("ps -q"), "web\n");
    let mut waiting = names.start(["wait", "web"].map(Into::into).to_vec(), Input::Null);
    let mut logs = names.start(["logs", "-f", "web"].map(Into::into).to_vec(), Input::Null);
    logs.wait_for("ready\n");
    let lock = names.of("web").join("lock");
    wait_until("the command waits", || has_open(waiting.pid(), &lock));
    names.ok("stop -t 0 web");
    wait_until("the directory is gone", || !names.of("web").exists());
    assert_eq!(names.ok("ps -aq"), "");
    assert_eq!((waiting.wait_exit().status, logs.wait_exit().status), (0, 0));
    boot(&names, "echo", &["-d", "--name", "web"]);
    let pid = Pid::from_raw(names.pid("web").try_into().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    wait_until("the directory of a killed VM is gone", || !names.of("web").exists());
}

/// Whether a process has a file open.
fn has_open(pid: u32, path: &Path) -> bool {
    let directory = format!("/proc/{pid}/fd");
    list(directory.as_ref())
        .iter()
        .any(|name| std::fs::read_link(format!("{directory}/{name}")).is_ok_and(|found| found == path))
}

#[test]
fn foreground_vm_is_gone_when_its_client_ends() {
    needs!(kvm);
    let names = Names::new();
    let mut client = names.start(removed("echo", &[]), Input::Test);
    client.wait_for("ready");
    let name = names.ok("ps -q").trim().to_owned();
    assert!(names.of(&name).exists(), "a name is made up: {name:?}");
    names.ok(&format!("stop -t 0 {name}"));
    assert_eq!(client.wait_exit().status, 0);
    assert_eq!(list(&names.root()), [".lock"]);
    let ended = names.start(removed("reboot", &["--name", "web"]), Input::Null).wait_exit();
    assert!(ended.status == 3 && ended.stdout.contains("rebooting"), "{ended:?}");
    assert_eq!(list(&names.root()), [".lock"]);
}

#[test]
fn vm_that_its_client_left_is_removed_at_its_end() {
    needs!(kvm);
    let names = Names::new();
    let terminal = Terminal::open();
    let found = terminal.modes();
    let mut client = names.start(removed("echo", &["--name", "web"]), Input::Terminal(&terminal));
    client.wait_for("ready");
    wait_until("the terminal is raw", || terminal.modes() != found);
    client.type_in("\x01d");
    assert_eq!(client.wait_exit().status, 0);
    assert_eq!(names.state("web").as_deref(), Some("running"));
    names.ok("kill web");
    wait_until("the directory is gone", || !names.of("web").exists());
}

#[test]
fn confined_and_restored_vms_are_removed_too() {
    needs!(kvm, root);
    let names = Names::new();
    names.boot("web", "echo");
    names.ok("snapshot create web warm");
    for confinement in ["strict", "off"] {
        boot(&names, "echo", &["-d", "--name", "confined", "--confine", confinement]);
        names.ok(&format!("restore -d --rm --name clone --confine {confinement} warm"));
        names.ok("stop -t 0 confined clone");
        for name in ["confined", "clone"] {
            wait_until("the directory is gone", || !names.of(name).exists());
        }
    }
    assert_eq!(names.ok("ps -aq"), "web\n");
}

#[test]
fn name_is_free_at_the_end_and_after_a_failed_start() {
    needs!(kvm);
    let names = Names::new();
    for _ in 0..5 {
        boot(&names, "echo", &["-d", "--name", "web"]);
        // The removal may still be under way.
        names.ok("stop -t 0 web");
    }
    names.run("run --rm -d --name none --kernel /no/kernel").refused(&["cannot open kernel /no/kernel"]);
    wait_until("nothing is left", || list(&names.root()) == [".lock"]);
}
