//! Frozen file systems: writes wait for the thaw, and the end of the VM for nobody.

use volt_job::Job;
use volt_job::job::{Root, Upper};
use volt_job::quiet;
use volt_tests::{Scratch, needs, wait_until};

use super::main_process::Vm;
use super::upper::assert_clean;
use super::{end, upper_disk};

/// Starts to make a file, and prints the letter of that process's state after a while (proc_pid_stat(5)).
const MAKE: &str = "touch /dir/new >/dev/null 2>&1 & sleep 0.5; read pid name state rest 2>/dev/null \
                    </proc/$!/stat; echo $state";

#[test]
fn writes_wait_for_the_thaw_and_the_end_thaws_by_itself() {
    needs!(linux, agent);
    let scratch = Scratch::new();
    let (disk, words) = upper_disk(&scratch);
    let root = Root { lower: "root".to_owned(), upper: Upper::Disk("upper".to_owned()) };
    let mut vm = Vm::start_job(&scratch, &Job::new(root, None), words);
    let control = |path: &str| assert_eq!(vm.ask_port(quiet::PORT, path, &[], b"").0, 204, "{path}");
    let make = || String::from_utf8(vm.run(MAKE).stdout).unwrap();
    vm.run("mkdir /dir");
    control("/fsfreeze");
    control("/fsfreeze");
    assert_eq!(make(), "D\n");
    control("/fsthaw");
    control("/fsthaw");
    wait_until("it is made", || vm.run("ls /dir").stdout == b"new\n");
    assert_eq!(make(), "\n", "it has ended");
    control("/fsfreeze");
    let (status, body) = vm.main("echo late >/dir/late & sleep 1; exit 4", serde_json::json!({}));
    assert_eq!(status, 200, "{body}");
    assert_eq!(end(&mut vm.guest).0, "exit 4");
    assert_clean(&disk);
}
