//! Each ending of a guest has its documented exit status.

use volt_tests::{Boot, Guest, needs};

#[test]
fn poweroff_ends_with_status_0() {
    needs!(kvm);
    let ended = Guest::boot("hello").wait_exit();
    assert_eq!((ended.status, ended.stdout.as_str()), (0, "hello\n"));
}

#[test]
fn reboot_ends_with_status_3() {
    needs!(kvm);
    let ended = Guest::boot("reboot").wait_exit();
    assert_eq!((ended.status, ended.stdout.as_str()), (3, "rebooting\n"));
}

#[test]
fn panic_ends_with_status_7() {
    needs!(kvm);
    let ended = Guest::boot("panic").wait_exit();
    assert_eq!((ended.status, ended.stdout.as_str()), (7, "panicking\n"));
}

#[test]
fn triple_fault_ends_with_status_4() {
    needs!(kvm);
    let ended = Guest::boot("triple-fault").wait_exit();
    assert_eq!((ended.status, ended.stdout.as_str()), (4, "faulting\n"));
}

#[test]
fn guest_with_32_vcpus_runs() {
    needs!(kvm);
    for vcpus in [2, 32] {
        let ended = Boot::small("hello").vcpus(vcpus).start().wait_exit();
        assert_eq!((ended.status, ended.stdout.as_str()), (0, "hello\n"), "{vcpus} vCPUs");
    }
}

#[test]
fn signal_ends_the_vm_with_128_plus_its_number() {
    needs!(kvm);
    use rustix::process::Signal;
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        // The first guest spins, the second sleeps.
        for behaviour in ["stuck", "echo"] {
            let mut guest = Guest::boot(behaviour);
            guest.wait_for("ready");
            guest.signal(signal);
            assert_eq!(guest.wait_exit().status, status, "{behaviour}");
            assert!(!guest.socket().exists(), "the API socket was left behind");
        }
    }
}
