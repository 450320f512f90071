//! A Linux whose packed memory is unpacked as it is touched.

use rustix::process::Signal;
use volt_tests::{Boot, Guest, Pressure, Scratch, Snapshot, needs, wait_until};

/// A snapshot of a guest that has filled so much memory with a pattern, which it goes through as it counts.
fn packed(mib: u64, options: &[&str]) -> Snapshot {
    let mut guest = Boot::linux().vcpus(2).start();
    guest.wait_until_ready();
    guest.order(&format!("fill {mib}"));
    guest.order("count");
    guest.next_number("count");
    guest.snapshot_as(options)
}

/// All of its pattern is as it left it.
fn checks(guest: &mut Guest) {
    let answer = guest.order("check");
    assert!(answer.iter().any(|line| line.starts_with("generation ")), "{answer:?}");
    guest.next_number("count");
    assert!(!guest.output().contains("corrupt"), "{}", guest.output());
}

#[test]
fn it_finds_every_page_and_so_do_its_snapshots_and_clones() {
    needs!(linux);
    let snapshot = packed(16, &["--compress", "zstd", "--chunk-size", "32K"]);
    let mut clones = [snapshot.restore(), snapshot.restore()];
    clones.iter_mut().for_each(checks);
    let [diff, again] =
        [&["--diff"][..], &["--compress", "lz4"]].map(|options| clones[0].snapshot_as(options));
    drop(clones);
    for snapshot in [&diff, &again, &diff.merged()] {
        checks(&mut snapshot.restore());
    }
}

#[test]
fn its_pager_is_killed_while_it_waits_for_memory() {
    needs!(linux);
    let (snapshot, scratch) = (packed(16, &["--compress", "lz4"]), Scratch::new());
    let pagers = scratch.path("pagers");
    let pager = || volt_tests::processes_with(&pagers).pop();
    let send = |signal| rustix::process::kill_process(pager().expect("a pager"), signal).unwrap();
    for _ in 0..3 {
        let mut guest = snapshot.restore_as(&["--pager", "shared", "--pager-dir", pagers.to_str().unwrap()]);
        guest.next_number("count");
        // Faults pile up in front of one that stands still.
        send(Signal::STOP);
        guest.type_in("check\n");
        wait_until("the guest waits for memory", || guest.waits_for_memory());
        send(Signal::KILL);
        guest.next_line("generation ");
        guest.next_line("ok check");
        checks(&mut guest);
        drop(guest);
        // The next guest is to find nothing of what this one had read.
        send(Signal::KILL);
        wait_until("there is no pager", || pager().is_none());
    }
}

/// MiB that its guest goes through, and MiB that the VM and its pager get. They cannot hold a third of what
/// the guest goes through, which can be swapped and not dropped. The kernel cannot swap page tables, KVM's
/// tables and a huge page that is being filled: with 24 MiB it ended the VM in one run of three where shared
/// memory came in huge pages.
const GONE_THROUGH: u64 = 48;
const GIVEN: u64 = 32;

/// What it has touched goes out and comes back: its own pages, and those of the base, which the pager has put
/// there only once.
#[test]
fn it_finds_every_page_again_where_there_is_too_little_memory() {
    needs!(linux, pressure);
    let (snapshot, scratch) = (packed(GONE_THROUGH, &["--compress", "lz4"]), Scratch::new());
    let pagers = scratch.path("pagers");
    let shared = ["--pager", "shared", "--pager-dir", pagers.to_str().unwrap()];
    for (options, of_it) in [(&[][..], &["--diff"][..]), (&shared, &[])] {
        let pressure = Pressure::of(GIVEN << 20);
        let mut guest = snapshot.restore_under(&pressure, options);
        (0..2).for_each(|_| checks(&mut guest));
        let all = volt_tests::processes_with(&pagers).into_iter().map(|pager| pager.as_raw_nonzero().get());
        let mut all = all.map(i32::cast_unsigned).chain([guest.pid()]);
        assert!(all.all(|process| pressure.holds(process)), "a process is not in the group");
        let swapped_out = pressure.swapped_out();
        assert!(swapped_out > 1 << 20, "{swapped_out} bytes swapped out");
        let again = guest.snapshot_as(of_it);
        checks(&mut guest);
        drop((guest, pressure));
        checks(&mut again.restore());
    }
}
