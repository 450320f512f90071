//! Linux boots on machines of several shapes.

use volt_tests::{Boot, needs};

#[test]
fn linux_boots_to_user_space_and_takes_orders() {
    needs!(linux);
    let mut guest = Boot::linux().start();
    let uptime = guest.wait_until_ready();
    assert_eq!(guest.order("echo hello there"), ["hello there"]);
    assert!(guest.order("uname")[0].starts_with("uname Linux 6."));
    println!("user space after {uptime} s");
}

#[test]
fn kernel_prints_on_the_console() {
    needs!(linux);
    let mut guest = Boot::linux_loud().start();
    guest.wait_for("Linux version 6.").wait_for("Hypervisor detected: KVM").wait_for("volt-init: ready");
}

#[test]
fn linux_runs_with_1_2_and_4_vcpus() {
    needs!(linux);
    for vcpus in [1, 2, 4] {
        let mut guest = Boot::linux().vcpus(vcpus).start();
        guest.wait_until_ready();
        assert_eq!(guest.order("cpus"), [format!("cpus {vcpus}")]);
    }
}

#[test]
fn guest_of_4_gib_can_use_all_of_its_memory() {
    needs!(linux);
    let mut guest = Boot::linux().memory("4G").start();
    guest.wait_until_ready();
    let memory = guest.order("memory").concat();
    let kib: u64 = memory.strip_prefix("memory ").unwrap().parse().unwrap();
    assert!((3_900_000..=4 << 20).contains(&kib), "{kib} KiB");
    // Linux first takes the 1 GiB of memory above 4 GiB, then memory below.
    guest.order("fill 1280");
    guest.order("check");
    assert!(!guest.output().contains("corrupt"), "{}", guest.output());
}
