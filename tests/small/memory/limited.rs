//! VMs and pagers that the kernel kills for lack of memory. The other VMs go on.

use volt_tests::{MemoryLimit, needs, wait_until};

use crate::memory::pager::{Shared, goes_twice_through};

/// MiB that each guest writes.
const WRITTEN: u64 = 32;
/// Bytes that a VM may use: less than its guest writes, and enough to start.
const OF_A_VM: u64 = 20 << 20;
/// Bytes that a running pager may use beyond those that it has: less than the guest's memory.
const OF_A_PAGER: u64 = 2 << 20;

#[test]
fn vm_killed_for_lack_of_memory_leaves_its_pager_and_other_clones() {
    needs!(kvm, page_faults, memory_limit);
    let shared = Shared::of(WRITTEN);
    let (mut before, limit) = (shared.restore(&[]), MemoryLimit::of(OF_A_VM));
    before.next_number("count");
    let pager = shared.pager();
    let directory = shared.directory();
    let options = ["--pager", "shared", "--pager-dir", directory.to_str().unwrap()];
    let outcome = shared.snapshot.restore_limited(&limit, &options).wait_exit();
    assert_eq!((outcome.status, limit.kills()), (-9, 1), "{outcome:?}");
    let mut after = shared.restore(&[]);
    for guest in [&mut before, &mut after] {
        goes_twice_through(guest, WRITTEN);
    }
    assert_eq!(shared.pager(), pager, "another pager serves the clones");
}

#[test]
fn guests_of_a_pager_killed_for_lack_of_memory_go_on() {
    needs!(kvm, page_faults, memory_limit);
    let (shared, limit) = (Shared::of(WRITTEN), MemoryLimit::of(OF_A_PAGER));
    let mut guests = [shared.restore(&[]), shared.restore(&[])];
    limit.take(shared.pager());
    wait_until("the kernel kills the pager", || limit.kills() > 0);
    for guest in &mut guests {
        goes_twice_through(guest, WRITTEN);
    }
}
