//! Linux is paused and resumed without noticing more than that time passed.

use volt_tests::{Boot, needs};

#[test]
fn it_pauses_and_resumes_a_hundred_times() {
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
