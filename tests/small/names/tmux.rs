//! A client in a terminal of tmux: keys, the window's size, and the modes that it leaves.

use rustix::process::{Pid, Signal, kill_process};
use volt_tests::tmux::{Tmux, children};
use volt_tests::{Held, Input, Names, needs, wait_until};

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

/// Boots a guest, and attaches to it in a terminal. Returns the modes before.
fn attached(names: &Names) -> (Tmux, String) {
    names.boot("web", "echo");
    let tmux = Tmux::start(names.scratch(), names.environment());
    let found = tmux.modes();
    attach(&tmux, &found);
    (tmux, found)
}

fn attach(tmux: &Tmux, found: &str) {
    tmux.run("volt-vmm attach web");
    wait_until("the terminal is raw", || tmux.modes() != found);
}

/// Returns the process of the client. Its only child is the guardian.
fn client(tmux: &Tmux) -> u32 {
    let children = tmux.children();
    assert_eq!(children.len(), 1, "{children:?}");
    children[0]
}

#[test]
fn keys_reach_the_guest_until_control_a_d() {
    needs!(kvm, tmux);
    let names = Names::new();
    let (tmux, found) = attached(&names);
    tmux.type_in("typed");
    tmux.wait_for("typed");
    tmux.press("C-c");
    names.wait_for("web", "typed\x03");
    tmux.press("C-a");
    tmux.type_in("d");
    wait_until("the terminal is as before", || tmux.modes() == found);
    tmux.run("echo back-$((1 + 1))");
    tmux.wait_for("back-2");
    assert_eq!(names.state("web").as_deref(), Some("running"));
    assert_eq!(names.ok("logs web"), "ready\ntyped\x03");
}

/// A serial line has no size of a window. Programs such as `resize` ask the terminal by escape sequences.
#[test]
fn resized_window_does_no_harm_and_answers_the_guest() {
    needs!(kvm, tmux);
    let names = Names::new();
    let (tmux, found) = attached(&names);
    let raw = tmux.modes();
    tmux.resize(120, 40);
    // The guest says what this client types: the questions of `resize`, and of xterm's window operations.
    let mut other = names.start(["attach", "web"].map(Into::into).to_vec(), Input::Test);
    other.type_in("\x1b7\x1b[r\x1b[999;999H\x1b[6n").wait_for("\x1b[40;120R");
    tmux.resize(90, 30);
    other.type_in("\x1b7\x1b[r\x1b[999;999H\x1b[6n").wait_for("\x1b[30;90R");
    // tmux 3.3 answers with lines and columns in the wrong order.
    other.type_in("\x1b[18t").wait_for("\x1b[8;");
    let but_size = |modes: &str| modes.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(but_size(&tmux.modes()), but_size(&raw), "all but the size is unchanged");
    tmux.press("C-a");
    tmux.type_in("d");
    wait_until("the terminal is as before", || but_size(&tmux.modes()) == but_size(&found));
}

#[test]
fn killed_client_leaves_the_terminal_as_it_was() {
    needs!(kvm, tmux);
    let names = Names::new();
    let (tmux, found) = attached(&names);
    signal(client(&tmux), Signal::KILL);
    wait_until("the terminal is as before", || tmux.modes() == found);
    tmux.run("echo back-$((1 + 1))");
    tmux.wait_for("back-2");
    assert_eq!(names.state("web").as_deref(), Some("running"));
}

/// The guardian is late, as on a busy host.
#[test]
fn guardian_of_a_client_that_left_does_not_reset_the_next_ones_terminal() {
    needs!(kvm, tmux, root);
    let names = Names::new();
    let (tmux, found) = attached(&names);
    let guardians = children(client(&tmux));
    assert_eq!(guardians.len(), 1, "{guardians:?}");
    let held = Held::stop(guardians[0]);
    tmux.press("C-a");
    tmux.type_in("d");
    wait_until("the terminal is as before", || tmux.modes() == found);
    attach(&tmux, &found);
    let raw = tmux.modes();
    drop(held);
    wait_until("the guardian has ended", || has_ended(guardians[0]));
    assert_eq!(tmux.modes(), raw);
    tmux.type_in("typed");
    tmux.wait_for("typed");
}

#[test]
fn next_client_waits_until_the_terminal_of_a_killed_one_is_reset() {
    needs!(kvm, tmux, root);
    let names = Names::new();
    let (tmux, found) = attached(&names);
    let raw = tmux.modes();
    let first = client(&tmux);
    let guardian = children(first)[0];
    let held = Held::stop(guardian);
    signal(first, Signal::KILL);
    wait_until("the client has ended", || has_ended(first));
    // The shell reads in raw mode, in which Return is no newline.
    tmux.type_in("volt-vmm attach web");
    tmux.press("C-j");
    wait_until("the next client runs", || tmux.children().iter().any(|child| is_client(*child)));
    assert_eq!(tmux.modes(), raw);
    drop(held);
    wait_until("the guardian has ended", || has_ended(guardian));
    wait_until("the terminal is raw for the next client", || {
        tmux.modes() == raw && !children(client(&tmux)).is_empty()
    });
    tmux.type_in("typed");
    tmux.wait_for("typed");
    tmux.press("C-a");
    tmux.type_in("d");
    wait_until("the terminal is as before", || tmux.modes() == found);
}

#[test]
fn stats_show_who_runs_until_control_c() {
    needs!(kvm, tmux);
    let names = Names::new();
    names.boot("web", "echo");
    let tmux = Tmux::start(names.scratch(), names.environment());
    let found = tmux.modes();
    tmux.run("volt-vmm stats");
    tmux.wait_for("\nweb ");
    tmux.wait_for("NAME ");
    names.boot("later", "echo");
    tmux.wait_for("\nlater ");
    names.ok("stop -t 0 web");
    wait_until("the table is without the VM that ended", || !tmux.screen().contains("\nweb "));
    tmux.press("C-c");
    wait_until("the command has ended", || tmux.children().is_empty());
    assert_eq!(tmux.modes(), found);
    tmux.run("echo back-$((1 + 1))");
    tmux.wait_for("back-2");
    assert_eq!(names.state("later").as_deref(), Some("running"));
}

/// Whether a process is a client, and not the shell before its exec.
fn is_client(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"volt-vmm\0attach"))
}

/// Whether a process has ended. Its parent may not have waited for it.
fn has_ended(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.is_empty() || status.contains("State:\tZ")
}
