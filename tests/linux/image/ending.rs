//! Stops, reports to the host, the agent beside the main process, and images with an init of their own.

use std::io::Read;

use volt_job::job::Process;
use volt_job::{Ended, Job, ended};
use volt_tests::streams::await_ready;
use volt_tests::vsock::listen;
use volt_tests::{Scratch, needs};

use super::{boot, end, job, run_job, script};

#[test]
fn power_button_sends_the_stop_signal() {
    needs!(linux, agent);
    let text = "trap 'echo stopping; exit 5' USR1; echo waiting; while :; do sleep 0.1; done";
    let job = job(Process { stop_signal: "SIGUSR1".to_owned(), ..script(text) });
    let mut guest = boot(&Scratch::new(), &job).start();
    guest.wait_for("waiting");
    guest.press_power_button();
    guest.wait_for("stopping");
    assert_eq!(end(&mut guest).0, "exit 5");
}

#[test]
fn process_that_ignores_the_stop_signal_is_killed_after_its_time() {
    needs!(linux, agent);
    must_be_killed("trap '' TERM");
}

/// Checks that a process that goes on after these commands is killed a second after its stop.
fn must_be_killed(commands: &str) {
    let text = format!("{commands}; echo waiting; while :; do sleep 0.1; done");
    let job = job(Process { stop_seconds: 1, ..script(&text) });
    let mut guest = boot(&Scratch::new(), &job).start();
    guest.wait_for("waiting");
    guest.press_power_button();
    assert_eq!(end(&mut guest).0, "signal 9");
}

#[test]
fn process_that_has_left_its_group_is_killed_after_its_time_too() {
    needs!(linux, agent);
    must_be_killed("trap '' TERM; echo $$ >/sys/fs/cgroup/cgroup.procs");
}

#[test]
fn console_that_is_stopped_by_ctrl_s_holds_no_end_back() {
    needs!(linux, agent);
    let job = job(Process { terminal: true, ..script("echo ready; read line; sleep 1; exit 3") });
    let mut guest = boot(&Scratch::new(), &job).start();
    guest.wait_for("ready").type_in("line\n\x13");
    assert_eq!(end(&mut guest).0, "exit 3");
}

#[test]
fn host_gets_the_report_as_json_over_vsock() {
    needs!(linux, agent);
    let scratch = Scratch::new();
    let socket = scratch.fresh("vsock");
    let listener = listen(&socket, ended::PORT);
    let words = ["--vsock".to_owned(), format!("cid=5,socket={}", socket.display())];
    let mut guest = boot(&scratch, &job(script("kill -9 $$"))).device(words).start();
    await_ready("the guest reports", &listener);
    let mut report = String::new();
    listener.accept().unwrap().0.read_to_string(&mut report).unwrap();
    assert_eq!(serde_json::from_str::<Ended>(&report).unwrap(), Ended::signal(9), "{report}");
    assert!(report.ends_with('\n'), "{report:?}");
    assert_eq!(end(&mut guest).0, "signal 9");
}

#[test]
fn agent_that_dies_is_started_again_in_its_own_group() {
    needs!(linux, agent);
    let text = "group=/sys/fs/cgroup/volt/agent/cgroup.procs; old=$(cat $group); \
                tr '\\0' ' ' </proc/$old/cmdline; echo; kill -9 $old; sleep 2; new=$(cat $group); \
                [ $new -gt $old ] && echo a new one";
    let (ended, lines) = run_job(&Job { agent: true, ..job(script(text)) });
    assert_eq!(ended, "exit 0", "{lines:#?}");
    for line in ["volt-agent --set-clock ", "volt-init: the agent has ended, and starts again", "a new one"] {
        assert!(lines.iter().any(|found| found.starts_with(line)), "{line}: {lines:#?}");
    }
}

#[test]
fn agent_takes_little_of_initramfs_and_memory() {
    needs!(linux, agent);
    let text = "agent=$(cat /sys/fs/cgroup/volt/agent/cgroup.procs); \
                echo size $(stat -Lc %s /proc/$agent/exe); \
                echo resident $(busybox sed -n 's/VmRSS:[^0-9]*//p' /proc/$agent/status)";
    let (ended, lines) = run_job(&Job { agent: true, ..job(script(text)) });
    assert_eq!(ended, "exit 0", "{lines:#?}");
    let number = |word: &str| {
        let found =
            lines.iter().find_map(|line| line.strip_prefix(word)?.trim().split(' ').next()?.parse().ok());
        found.unwrap_or_else(|| panic!("{word}: {lines:#?}"))
    };
    let (size, resident_kib): (u64, u64) = (number("size"), number("resident"));
    assert!(size <= 3 << 20 && resident_kib <= 4 << 10, "{size} bytes, {resident_kib} KiB");
}

#[test]
fn init_of_the_image_becomes_process_1_beside_the_agent() {
    needs!(linux, agent);
    // The group has the agent's keeper too.
    let text = "echo process $$; for p in $(cat /sys/fs/cgroup/volt/agent/cgroup.procs); do \
                tr '\\0' ' ' </proc/$p/cmdline; done; echo; poweroff -f";
    let job = Job { agent: true, ..job(Process { is_init: true, ..script(text) }) };
    let mut guest = boot(&Scratch::new(), &job).start();
    guest.wait_for("process 1").wait_for("volt-agent --set-clock");
    assert_eq!(guest.wait_exit().status, 0);
}
