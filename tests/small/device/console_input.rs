//! Standard input in all its forms: no form costs processor time or ends the guest.

use std::time::Duration;

use rustix::io::ioctl_fionread;
use volt_tests::{Boot, Guest, IRQCHIPS, Input, Scratch, needs, wait_until};

/// Starts a guest that sleeps until the serial port interrupts it, through the kernel's PIC or our IOAPIC.
fn echo(irqchip: &str) -> Guest {
    Boot::small("echo").irqchip(irqchip).start()
}

#[test]
fn typed_text_reaches_the_guest() {
    needs!(kvm);
    for irqchip in IRQCHIPS {
        let mut guest = echo(irqchip);
        guest.wait_for("ready").type_in("hello there\n").wait_for("hello there\n");
    }
}

#[test]
fn text_longer_than_the_fifo_arrives_whole() {
    needs!(kvm);
    let text: String = (0..500).map(|n| format!("{n} ")).collect();
    for irqchip in IRQCHIPS {
        let mut guest = echo(irqchip);
        guest.wait_for("ready\n").type_in(&text).type_in("\n").wait_for(&text);
    }
}

#[test]
fn input_works_after_a_restore() {
    needs!(kvm);
    for irqchip in IRQCHIPS {
        let mut guest = echo(irqchip);
        guest.wait_for("ready").type_in("one\n").wait_for("one\n");
        for word in ["two\n", "three\n"] {
            guest = guest.snapshot().restore();
            guest.type_in(word).wait_for(word);
        }
    }
}

#[test]
fn snapshot_carries_input_that_the_guest_has_not_read() {
    needs!(kvm);
    for irqchip in IRQCHIPS {
        let mut guest = echo(irqchip);
        guest.wait_for("ready");
        guest.pause();
        guest.type_in("kept\n");
        std::thread::sleep(Duration::from_millis(300));
        guest.snapshot().restore().wait_for("kept\n");
    }
}

#[test]
fn end_of_an_input_file_does_not_end_the_guest() {
    needs!(kvm);
    let scratch = Scratch::new();
    let file = scratch.path("input");
    std::fs::write(&file, "from a file\n").unwrap();
    let mut guest = Boot::small("echo").input(Input::File(&file)).start();
    guest.wait_for("from a file\n");
    assert!(guest.is_running());
    let mut restored = guest.snapshot().restore_with(Input::File(&file));
    restored.wait_for("from a file\n");
}

#[test]
fn idle_guest_uses_little_processor_time_with_any_input() {
    needs!(kvm);
    let scratch = Scratch::new();
    let file = scratch.path("input");
    std::fs::write(&file, "x").unwrap();
    for input in [Input::Test, Input::Ended, Input::Null, Input::File(&file)] {
        let name = format!("{input:?}");
        let mut guest = Boot::small("echo").input(input).start();
        guest.wait_for("ready");
        guest.settled_output();
        let before = guest.processor_time();
        std::thread::sleep(Duration::from_secs(1));
        let used = guest.processor_time() - before;
        assert!(used < Duration::from_millis(300), "{name}: {used:?} of a second");
        assert!(guest.is_running(), "{name}");
    }
}

/// A child that is killed when it is dropped.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = volt_tests::limited("a killed child is gone", || self.0.wait());
    }
}

#[test]
fn guest_with_unread_output_can_be_paused_and_stopped() {
    needs!(kvm);
    use std::process::{Command, Stdio};
    let scratch = Scratch::new();
    let socket = scratch.path("api");
    let mut command = Command::new(volt_tests::program::binary());
    command.args(["run", "--memory", "64M", "--cmdline", "count", "--kernel"]).arg(volt_tests::small_guest());
    // The test never reads the pipe, which is full after 64 KiB.
    command
        .arg("--api-socket")
        .arg(&socket)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = Killed(command.spawn().unwrap());
    let unread = child.0.stdout.take().unwrap();
    wait_until("the pipe is full but for a page", || ioctl_fionread(&unread).unwrap() > 15 * 4096);
    let ask = |method, path, body| volt_tests::rest::ask(&socket, method, path, body).0;
    assert_eq!(ask("PATCH", "/vm", r#"{"state":"Paused"}"#), 204);
    assert_eq!(ask("PATCH", "/vm", r#"{"state":"Resumed"}"#), 204);
    assert_eq!(ask("PUT", "/v1/stop", ""), 204);
    wait_until("a guest stuck in its output ends", || child.0.try_wait().unwrap().is_some());
}
