//! Registers survive pause, snapshot and restore. The guest checks them in a loop.

use volt_tests::{Guest, needs};

#[test]
fn general_registers_survive_snapshots() {
    needs!(kvm);
    let mut guest = Guest::boot("registers");
    guest.wait_for("rrrr");
    for _ in 0..5 {
        guest = guest.snapshot().restore();
        guest.wait_for("rrrr");
    }
    assert!(guest.output().bytes().all(|byte| byte == b'r'), "{}", guest.output());
}

#[test]
fn msrs_mtrrs_debug_registers_cr2_and_xmm_survive_snapshots() {
    needs!(kvm);
    let mut guest = Guest::boot("special");
    guest.next_number("round");
    for _ in 0..3 {
        guest = guest.snapshot().restore();
        guest.next_number("round");
        guest.next_number("round");
        assert!(!guest.output().contains("WRONG"), "{}", guest.output());
    }
}
