//! Linux boots, on machines of several shapes.

use volt_tests::{Boot, needs};

#[test]
fn linux_boots_to_user_space_and_takes_orders() {
    needs!(linux);
    let mut guest = Boot::linux().start();
    let uptime = guest.wait_until_ready();
    assert_eq!(guest.order("echo hello there"), ["hello there"]);
    assert!(guest.order("uname")[0].starts_with("uname Linux 6.1."));
    println!("user space after {uptime} s");
}

#[test]
fn the_kernel_prints_on_the_console() {
    needs!(linux);
    let mut guest = Boot::linux_loud().start();
    guest.wait_for("Linux version 6.1.").wait_for("Hypervisor detected: KVM").wait_for("volt-init: ready");
}

#[test]
fn it_runs_with_1_2_and_4_vcpus() {
    needs!(linux);
    for vcpus in [1, 2, 4] {
        let mut guest = Boot::linux().vcpus(vcpus).start();
        guest.wait_until_ready();
        assert_eq!(guest.order("cpus"), [format!("cpus {vcpus}")]);
    }
}

#[test]
fn a_guest_of_4_gib_has_them_and_can_use_them() {
    needs!(linux);
    let mut guest = Boot::linux().memory("4G").start();
    guest.wait_until_ready();
    let memory = guest.order("memory").concat();
    let kib: u64 = memory.strip_prefix("memory ").unwrap().parse().unwrap();
    assert!((3_900_000..=4 << 20).contains(&kib), "{kib} KiB");
    // Linux takes memory above 4 GiB first, of which there is 1 GiB here; then below.
    guest.order("fill 1280");
    guest.order("check");
    assert!(!guest.output().contains("corrupt"), "{}", guest.output());
}
