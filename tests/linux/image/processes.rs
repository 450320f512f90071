//! The main process: its identity, its surroundings and its end.

use volt_job::Job;
use volt_job::job::{Process, User};
use volt_tests::{Scratch, needs};

use super::{boot, end, job, run, run_job, script};

fn assert_has(lines: &[String], expected: &[&str]) {
    for line in expected {
        assert!(lines.iter().any(|found| found == line), "no line {line:?} in {lines:#?}");
    }
}

#[test]
fn main_process_has_identity_environment_and_surroundings_of_the_job() {
    needs!(linux, agent);
    let text = "id; env | sort; pwd; hostname; cat /etc/hosts /etc/resolv.conf /proc/self/cgroup; \
                cat /sys/class/net/lo/flags; \
                ulimit -n; ulimit -Hn; cat /proc/sys/net/ipv4/ip_unprivileged_port_start; \
                echo to standard output >/dev/stdout; cat /proc/mounts; ls -ld /tmp /run; \
                grep made /etc/passwd; ls -ld /home/made; exit 7";
    let process = Process {
        env: vec!["GIVEN=a b=c".to_owned()],
        user: "app".to_owned(),
        cwd: "/srv/made/here".to_owned(),
        ..script(text)
    };
    let user = User {
        name: "made".to_owned(),
        id: 2000,
        home: "/home/made".to_owned(),
        shell: "/bin/sh".to_owned(),
    };
    let job = Job {
        hostname: Some("web".to_owned()),
        hosts: vec!["10.0.0.2 database".to_owned()],
        resolv_conf: vec!["nameserver 10.0.0.1".to_owned()],
        users: vec![user],
        ..job(process)
    };
    let (ended, lines) = run_job(&job);
    assert_eq!(ended, "exit 7");
    assert_has(
        &lines,
        &[
            "uid=1000(app) gid=100(users) groups=44(video),100(users)",
            "GIVEN=a b=c",
            "HOME=/home/app",
            "HOSTNAME=web",
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "/srv/made/here",
            "web",
            "127.0.0.1\tlocalhost",
            "10.0.0.2 database",
            "nameserver 10.0.0.1",
            "0::/volt/workload/main",
            // IFF_UP and IFF_LOOPBACK.
            "0x9",
            "1024",
            "524288",
            "0",
            "to standard output",
            "made:x:2000:2000::/home/made:/bin/sh",
        ],
    );
    for mount in ["/ overlay", "/proc proc", "/sys sysfs", "/dev devtmpfs", "/dev/pts devpts"] {
        assert!(lines.iter().any(|line| line.contains(&format!(" {mount} "))), "{mount}: {lines:#?}");
    }
    for mount in ["/dev/shm tmpfs", "/dev/mqueue mqueue", "/sys/fs/cgroup cgroup2"] {
        assert!(lines.iter().any(|line| line.contains(&format!(" {mount} "))), "{mount}: {lines:#?}");
    }
    let starts = |start: &str| lines.iter().any(|line| line.starts_with(start));
    assert!(starts("drwxrwxrwt") && starts("drwxr-xr-x"), "{lines:#?}");
}

#[test]
fn program_that_does_not_exist_ends_with_127() {
    needs!(linux, agent);
    let (ended, lines) = run(Process::new(["not-here"]));
    assert_eq!(ended, "exit 127");
    assert_has(&lines, &["volt-init: cannot start not-here: No such file or directory (os error 2)"]);
}

#[test]
fn program_that_may_not_be_executed_ends_with_126() {
    needs!(linux, agent);
    let (ended, lines) = run(Process::new(["/not-executable"]));
    assert_eq!(ended, "exit 126");
    assert_has(&lines, &["volt-init: cannot start /not-executable: Permission denied (os error 13)"]);
}

#[test]
fn death_by_a_signal_is_reported_with_its_number() {
    needs!(linux, agent);
    assert_eq!(run(script("kill -11 $$")).0, "signal 11");
}

#[test]
fn process_killed_for_want_of_memory_is_reported_with_the_cause() {
    needs!(linux, agent);
    let job = job(Process::new(["tail", "/dev/zero"]));
    let (ended, _) = end(&mut boot(&Scratch::new(), &job).memory("96M").start());
    assert_eq!(ended, "signal 9, out of memory");
}

#[test]
fn orphans_are_reaped_and_signals_reach_the_main_process() {
    needs!(linux, agent);
    let text = "(sleep 0.2 & sleep 0.3 &); sleep 1; \
                echo zombies $(cat /proc/[0-9]*/status | grep -c 'State:.Z'); \
                trap 'echo terminated; exit 3' TERM; kill -TERM 1; while :; do sleep 0.1; done";
    let (ended, lines) = run(script(text));
    assert_eq!(ended, "exit 3");
    assert_has(&lines, &["zombies 0", "terminated"]);
}

#[test]
fn unknown_user_ends_with_125_and_the_reason() {
    needs!(linux, agent);
    let (ended, lines) = run(Process { user: "nobody".to_owned(), ..script("true") });
    assert_eq!(ended, "exit 125");
    assert_has(&lines, &["volt-init: /etc/passwd of the image has no user nobody"]);
}

#[test]
fn console_is_the_controlling_terminal_if_the_job_says_so() {
    needs!(linux, agent);
    let text = "[ -t 0 ] && echo on a terminal; echo controlling >/dev/tty; read line; echo got $line; env";
    let job = job(Process { terminal: true, ..script(text) });
    let mut guest = boot(&Scratch::new(), &job).start();
    guest.wait_for("on a terminal").wait_for("controlling").type_in("words\n").wait_for("got words");
    let (ended, lines) = end(&mut guest);
    assert_eq!(ended, "exit 0");
    assert_has(&lines, &["TERM=xterm"]);
}
