//! The harness's report of a guest that does not answer.

use volt_tests::{Boot, IRQCHIPS, needs};

#[test]
fn harness_reports_threads_clocks_and_interrupts_of_a_silent_guest() {
    needs!(kvm);
    for irqchip in IRQCHIPS {
        let mut guest = Boot::small("count").irqchip(irqchip).vcpus(2).device(["--rng"]).start();
        guest.next_number("count");
        let told = guest.explain_silence();
        let words = [
            "thread volt-vcpu1: ",
            "vCPU 1: mp_state ",
            "tsc ",
            "deadline ",
            "in service [",
            "com1: {",
            "rng: {",
            "rng: available Some(0), used Some(0)",
            " bytes after that: \"",
            "\\ncount ",
        ];
        for words in words {
            assert!(told.contains(words), "{words}: {told}");
        }
        let ioapic = told.lines().find_map(|line| line.strip_prefix("ioapic: "));
        assert!(ioapic.is_some_and(|ioapic| ioapic.len() > 2), "{told}");
    }
}
