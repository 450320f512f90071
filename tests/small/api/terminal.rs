//! The terminal is raw while the guest runs and reset however the guest ends.

use rustix::process::Signal;
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
    for (behaviour, status) in [("hello", 0), ("reboot", 3), ("triple-fault", 4)] {
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
