//! The terminal is raw while the guest runs and reset however the guest ends.

use std::fs;

use rustix::process::Signal;
use volt_tests::injected::{inject, signal_thread, threads_of, vm_of};
use volt_tests::{Boot, Guest, Input, Terminal, needs, wait_until};

fn boot<'a>(terminal: &'a Terminal, behaviour: &str) -> Guest {
    Boot::small(behaviour).input(Input::<'a>::Terminal(terminal)).start()
}

/// Boots a guest and waits until it has the terminal.
fn on(terminal: &Terminal) -> Guest {
    let found = terminal.modes();
    let mut guest = boot(terminal, "echo");
    guest.wait_for("ready");
    wait_until("the terminal is raw", || terminal.modes() != found);
    guest
}

#[test]
fn control_a_x_ends_the_vm_and_resets_the_terminal() {
    needs!(kvm);
    let terminal = Terminal::open();
    let found = terminal.modes();
    let mut guest = on(&terminal);
    guest.type_in("\x01x");
    assert_eq!(guest.wait_exit().status, 0);
    assert_eq!(terminal.modes(), found);
}

#[test]
fn control_c_goes_to_the_guest() {
    needs!(kvm);
    let terminal = Terminal::open();
    let mut guest = on(&terminal);
    guest.type_in("\x03\x1a\x1c and on").wait_for("\x03\x1a\x1c and on");
    guest.type_in("\x01a\x01\x01!").wait_for("\x01\x01!");
    assert!(guest.is_running());
}

#[test]
fn ended_guest_leaves_the_terminal_reset() {
    needs!(kvm);
    for (behaviour, status) in [("hello", 0), ("reboot", 3), ("panic", 7), ("triple-fault", 4)] {
        let terminal = Terminal::open();
        let found = terminal.modes();
        assert_eq!(boot(&terminal, behaviour).wait_exit().status, status);
        assert_eq!(terminal.modes(), found, "{behaviour}");
    }
}

#[test]
fn signals_reset_the_terminal() {
    needs!(kvm);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::SEGV, Signal::ABORT] {
        let terminal = Terminal::open();
        let found = terminal.modes();
        let mut guest = on(&terminal);
        guest.signal(signal);
        let status = guest.wait_exit().status;
        let number = signal.as_raw();
        assert!(status == 128 + number || status == -number, "{signal:?}: {status}");
        assert_eq!(terminal.modes(), found, "{signal:?}");
    }
}

#[test]
fn faults_and_forbidden_calls_of_a_vcpu_reset_the_terminal() {
    needs!(kvm, root);
    let vcpu_of = |guest: &Guest| threads_of(guest.pid()).into_iter().find(|(name, _)| name == "volt-vcpu0");
    for signal in [Signal::SEGV, Signal::BUS, Signal::ABORT, Signal::SYS] {
        let terminal = Terminal::open();
        let found = terminal.modes();
        let mut guest = on(&terminal);
        let vcpu = vcpu_of(&guest).unwrap().1;
        let status = if signal == Signal::SYS {
            inject(vcpu, libc::SYS_execve, [0; 3]);
            6
        } else {
            signal_thread(guest.pid(), vcpu, signal);
            128 + signal.as_raw()
        };
        let outcome = guest.wait_exit();
        assert_eq!(outcome.status, status, "{signal:?}: {outcome:?}");
        assert_eq!(terminal.modes(), found, "{signal:?}");
    }
}

/// Whether a process is stopped (proc_pid_stat(5), state T).
fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.trim_start().starts_with('T')
}

/// Stops a guest as Ctrl-Z of a shell does, and continues it.
fn stop_and_continue(confinement: &str) {
    let terminal = Terminal::open();
    let found = terminal.modes();
    let input = Input::<'_>::Terminal(&terminal);
    let mut guest = Boot::small("echo").device(["--confine", confinement]).input(input).start();
    guest.wait_for("ready");
    wait_until("the terminal is raw", || terminal.modes() != found);
    guest.signal(Signal::TSTP);
    wait_until("the started process is stopped", || is_stopped(guest.pid()));
    assert_eq!(terminal.modes(), found, "{confinement}");
    let vm = if confinement == "strict" { vm_of(guest.pid()) } else { guest.pid() };
    assert!(is_stopped(vm), "{confinement}");
    guest.signal(Signal::CONT);
    wait_until("the terminal is raw again", || terminal.modes() != found);
    guest.type_in("and on").wait_for("and on");
    assert!(!is_stopped(vm) && !is_stopped(guest.pid()), "{confinement}");
}

#[test]
fn stopped_process_leaves_the_terminal_to_the_shell() {
    needs!(kvm);
    stop_and_continue("default");
}

#[test]
fn stopped_strict_process_leaves_the_terminal_to_the_shell() {
    needs!(kvm, root);
    stop_and_continue("strict");
}

#[test]
fn restored_guest_uses_the_terminal() {
    needs!(kvm);
    let mut original = Guest::boot("echo");
    original.wait_for("ready");
    let snapshot = original.snapshot();
    let terminal = Terminal::open();
    let found = terminal.modes();
    let mut guest = snapshot.restore_with(Input::Terminal(&terminal));
    wait_until("the terminal is raw", || terminal.modes() != found);
    guest.type_in("typed").wait_for("typed").type_in("\x01X");
    assert_eq!(guest.wait_exit().status, 0);
    assert_eq!(terminal.modes(), found);
}
