//! Pause and resume over the API never lose an exit of a vCPU.

use volt_tests::{Boot, Guest, consecutive, needs};

#[test]
fn hundred_pauses_lose_no_port_or_mmio_access() {
    needs!(kvm);
    let mut guest = Guest::boot("ports");
    guest.wait_for("ready");
    for _ in 0..100 {
        guest.pause();
        guest.resume();
    }
    // The guest runs only from a resume to the next pause: for 30 to 385 rounds in trials, and once for at
    // most ten.
    while guest.next_number("round") <= 10 {
        guest.pause();
        guest.resume();
    }
    guest.pause();
    // The guest checks the answer to each access. No line is missing.
    assert!(consecutive(&guest.settled_output(), "round") > 10);
}

#[test]
fn paused_guest_makes_no_progress_until_resumed() {
    needs!(kvm);
    let mut guest = Guest::boot("count");
    guest.wait_for("count 5");
    guest.pause();
    guest.pause();
    let before = guest.settled_output();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(guest.output(), before);
    assert!(guest.ask("GET", "/", "").1.contains(r#""state":"Paused""#));
    guest.resume();
    guest.resume();
    guest.next_number("count");
    assert!(guest.ask("GET", "/", "").1.contains(r#""state":"Running""#));
}

#[test]
fn vcpus_are_paused_together() {
    needs!(kvm);
    let mut guest = Boot::small("ticks").vcpus(4).irqchip("kernel").start();
    guest.wait_for("ready");
    for _ in 0..20 {
        guest.pause();
        guest.resume();
        guest.next_number("ticks");
    }
}

#[test]
fn paused_guest_can_be_stopped() {
    needs!(kvm);
    for behaviour in ["stuck", "echo"] {
        let mut guest = Guest::boot(behaviour);
        guest.wait_for("ready");
        guest.pause();
        assert_eq!(guest.ask("PUT", "/v1/stop", "").0, 204);
        assert_eq!(guest.wait_exit().status, 0);
    }
}
