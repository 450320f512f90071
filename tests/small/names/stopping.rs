//! `volt-vmm stop` and `kill`: of VMs without a name, and of one whose start is under way.

use std::os::unix::net::UnixListener;

use rustix::process::Signal;
use volt_tests::{Boot, Guest, Names, needs};

use super::ends::Starting;

/// A guest without a name, and the path of its API socket.
fn unnamed() -> (Guest, String) {
    let mut guest = Boot::small("echo").start();
    guest.wait_for("ready");
    let socket = guest.socket().to_str().unwrap().to_owned();
    (guest, socket)
}

#[test]
fn vm_without_a_name_is_stopped_and_killed_by_its_socket() {
    needs!(kvm);
    let names = Names::new();
    // The small guest has no driver that would obey.
    for (command, status) in [
        ("stop -t 0", 0),
        ("stop -t 1", 0),
        ("kill", -Signal::KILL.as_raw()),
        ("kill --signal TERM", 128 + Signal::TERM.as_raw()),
    ] {
        let (mut guest, socket) = unnamed();
        let pid = guest.pid();
        assert_eq!(names.ok(&format!("{command} {socket}")), "");
        // The test has not reaped it.
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let has_ended = state.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'));
        assert!(has_ended || command.ends_with("TERM"), "{command}: {state}");
        assert_eq!(guest.wait_exit().status, status, "{command}");
    }
}

#[test]
fn socket_without_a_server_is_an_error_and_no_end() {
    let names = Names::new();
    let (missing, stale) = (names.scratch().path("missing"), names.scratch().path("stale"));
    drop(UnixListener::bind(&stale).unwrap());
    for command in ["stop", "stop -t 0", "kill"] {
        names.run(&format!("{command} {}", missing.display())).refused(&["no such file"]);
        names.run(&format!("{command} {}", stale.display())).refused(&["no process listens"]);
    }
}

#[test]
fn guest_that_obeys_powers_off_within_the_limit() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "obey");
    names.wait_for("web", "ready");
    names.ok("stop -t 600 web");
    let ended = names.json("inspect web --json");
    assert_eq!((&ended["end"]["cause"], &ended["end"]["status"]), (&"poweroff".into(), &0.into()), "{ended}");
    assert_eq!(names.ok("logs web"), "ready\nobeying\n");
}

#[test]
fn stop_cancels_a_start() {
    needs!(kvm, page_faults);
    let mut web = Starting::web();
    web.names.ok("stop web");
    assert_eq!(web.client.wait_exit().status, 128 + Signal::TERM.as_raw());
    web.is_over();
}
