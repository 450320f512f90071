//! Pauses of Linux lose nothing.

use volt_tests::{Boot, needs};

#[test]
fn linux_survives_a_hundred_pauses() {
    needs!(linux);
    let mut guest = Boot::linux().vcpus(2).start();
    guest.wait_until_ready();
    guest.order("fill 4");
    guest.order("count");
    for _ in 0..100 {
        guest.pause();
        guest.resume();
    }
    let count = guest.next_number("count");
    while guest.next_number("count") < count + 3 {}
    guest.order("check");
    assert!(!guest.output().contains("corrupt"), "{}", guest.output());
}
