//! The library embedded in this test program.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use volt_tests::{Recorder, Scratch, limited, needs, numbers, small_guest, wait_until};
use volt_vmm::internal::timing;
use volt_vmm::snapshot::convert;
use volt_vmm::snapshot::merge;
use volt_vmm::snapshot::verify;
use volt_vmm::{
    Compression, Ending, Error, IrqchipKind, Packing, Pool, Progress, RestoreOptions, RunState, Snapshot,
    SnapshotOptions, Store, Unpack, Vm, VmShape,
};

fn counting(recorder: &Recorder) -> Vm {
    let builder = Vm::builder().kernel(small_guest()).cmdline("count mib=4").memory_mib(64);
    builder.console(recorder.console()).start().unwrap()
}

fn store(scratch: &Scratch) -> Store {
    Store::open(&format!("file://{}", scratch.directory().display())).unwrap()
}

#[test]
fn two_vms_of_one_process_run_independently() {
    needs!(kvm);
    let recorders = [Recorder::default(), Recorder::default()];
    let vms = recorders.each_ref().map(counting);
    recorders.iter().for_each(|recorder| recorder.wait_for("count 10\n"));
    vms[0].pause().unwrap();
    let (first, second) = (recorders[0].text(), recorders[1].text());
    wait_until("the second VM goes on", || recorders[1].text().len() > second.len() + 20);
    assert_eq!(recorders[0].text(), first);
    assert_eq!((vms[0].state(), vms[1].state()), (RunState::Paused, RunState::Running));
    vms[1].stop();
    assert_eq!(vms[1].wait_ending().unwrap(), Ending::Stopped);
    vms[0].resume().unwrap();
    wait_until("the first VM goes on", || recorders[0].text().len() > first.len() + 20);
    assert!(recorders.iter().all(|recorder| !recorder.text().contains("WRONG")));
}

#[test]
fn clones_and_their_original_run_at_once() {
    needs!(kvm);
    let (scratch, recorder) = (Scratch::new(), Recorder::default());
    let vm = counting(&recorder);
    recorder.wait_for("count 10\n");
    vm.snapshot(&store(&scratch), "warm").unwrap();
    let warm = Snapshot::open(&store(&scratch), "warm").unwrap();
    let recorders = [Recorder::default(), Recorder::default()];
    let clones = recorders.each_ref().map(|recorder| {
        let options = RestoreOptions::default().console(recorder.console());
        warm.restore_with(options).unwrap()
    });
    for recorder in &recorders {
        wait_until("a clone counts on", || {
            numbers(&recorder.text(), "count").last().is_some_and(|&n| n > 60)
        });
        assert!(numbers(&recorder.text(), "count")[0] >= 10 && !recorder.text().contains("WRONG"));
    }
    drop(clones);
    let before = recorder.text().len();
    wait_until("the original goes on", || recorder.text().len() > before + 20);
}

fn goes_on(recorder: &Recorder, by: u64) {
    let last = || numbers(&recorder.text(), "count").last().copied().unwrap_or(0);
    let first = last();
    wait_until("the guest counts on", || last() >= first + by);
    assert!(!recorder.text().contains("WRONG"), "{}", recorder.text());
}

#[test]
fn running_vm_and_its_children_can_be_forked() {
    needs!(kvm);
    let recorder = Recorder::default();
    let parent = counting(&recorder);
    recorder.wait_for("count 10\n");
    let fork = |vm: &Vm, count: usize| {
        let recorders: Vec<_> = (0..count).map(|_| Recorder::default()).collect();
        let options = recorders.iter().map(|recorder| RestoreOptions::default().console(recorder.console()));
        let children = vm.fork(options).unwrap();
        (recorders, children)
    };
    let (said, children) = fork(&parent, 4);
    // The children and the parent each check and change all of their memory.
    said.iter().chain([&recorder]).for_each(|said| goes_on(said, 40));
    assert!(said.iter().all(|said| numbers(&said.text(), "count")[0] >= 10), "a child starts from zero");
    let (grandchildren_said, grandchildren) = fork(&children[1], 3);
    drop(children);
    drop(parent);
    grandchildren_said.iter().for_each(|said| goes_on(said, 40));
    // A grandchild can be snapshotted like any VM.
    let scratch = Scratch::new();
    grandchildren[0].snapshot(&store(&scratch), "late").unwrap();
    let recorder = Recorder::default();
    let options = RestoreOptions::default().console(recorder.console());
    let _late = Snapshot::open(&store(&scratch), "late").unwrap().restore_with(options).unwrap();
    goes_on(&recorder, 40);
}

#[test]
fn child_passes_inherited_memory_on() {
    needs!(kvm);
    // The parent's memory is all private when the child is made: it was frozen and then written.
    let recorder = Recorder::default();
    let parent = counting(&recorder);
    parent.snapshot_in_memory().unwrap();
    recorder.wait_for("count 10\n");
    goes_on(&recorder, 40);
    let restore = |from: &Snapshot| {
        let recorder = Recorder::default();
        let options = RestoreOptions::default().console(recorder.console());
        let vm = from.restore_with(options).unwrap();
        (recorder, vm)
    };
    let here = parent.snapshot_in_memory().unwrap();
    drop(parent);
    let (_, child) = restore(&here);
    let there = child.snapshot_in_memory().unwrap();
    let (recorder, _grandchild) = restore(&there);
    goes_on(&recorder, 40);
    let scratch = Scratch::new();
    child.snapshot(&store(&scratch), "full").unwrap();
    let diff = SnapshotOptions::default().diff();
    child.snapshot_with(&store(&scratch), "diff", &diff).unwrap();
    drop(child);
    for name in ["full", "diff"] {
        let (recorder, _vm) = restore(&Snapshot::open(&store(&scratch), name).unwrap());
        goes_on(&recorder, 40);
    }
}

#[test]
fn snapshot_of_any_kind_runs_after_its_handover() {
    needs!(kvm);
    let (scratch, recorder) = (Scratch::new(), Recorder::default());
    let vm = counting(&recorder);
    recorder.wait_for("count 10\n");
    let take = |name: &str, options: SnapshotOptions| {
        vm.snapshot_with(&store(&scratch), name, &options).unwrap();
        goes_on(&recorder, 20);
        Snapshot::open(&store(&scratch), name).unwrap()
    };
    let full = take("full", SnapshotOptions::default());
    let diff = take("diff", SnapshotOptions::default().diff());
    let packing = Some(Packing::with(Compression::Lz4, None, None));
    let packed = take("packed", SnapshotOptions::default().packing(packing));
    for here in [full, diff, packed, vm.snapshot_in_memory().unwrap()] {
        let (near, far) = UnixStream::pair().unwrap();
        let handover = here.handover().unwrap();
        drop(here);
        let there = std::thread::scope(|scope| {
            scope.spawn(|| handover.send(&near).unwrap());
            Snapshot::receive(&far).unwrap()
        });
        let recorder = Recorder::default();
        let options = RestoreOptions::default().console(recorder.console());
        let _vm = there.restore_with(options).unwrap();
        goes_on(&recorder, 40);
    }
}

#[test]
fn pool_serves_snapshots_of_its_shape_only() {
    needs!(kvm);
    let (scratch, recorder) = (Scratch::new(), Recorder::default());
    let vm = counting(&recorder);
    recorder.wait_for("count 10\n");
    vm.snapshot(&store(&scratch), "warm").unwrap();
    let warm = Snapshot::open(&store(&scratch), "warm").unwrap();
    let pool = Arc::new(Pool::new(VmShape::of(warm.config()), 3).unwrap());
    pool.wait_ready().unwrap();
    assert_eq!(pool.ready(), 3);
    let restore = |from: &Snapshot, pool: &Arc<Pool>| {
        let recorder = Recorder::default();
        let options = RestoreOptions::default().console(recorder.console()).pool(Arc::clone(pool));
        let (vm, steps) = timing::record(|| from.restore_with(options));
        (recorder, vm.unwrap(), steps.iter().any(|(step, _)| *step == "shell from the pool"))
    };
    let clones: Vec<_> = (0..5).map(|_| restore(&warm, &pool)).collect();
    assert!(clones[0].2 && clones[1].2 && clones[2].2, "a VM was made although the pool had one");
    clones.iter().for_each(|(recorder, ..)| goes_on(recorder, 40));
    pool.wait_ready().unwrap();
    assert_eq!(pool.ready(), 3, "the pool replaces the VMs that were taken");
    // The new vCPUs have the state of the last snapshot already. They must serve other snapshots, too.
    clones[0].1.snapshot(&store(&scratch), "later").unwrap();
    let later = Snapshot::open(&store(&scratch), "later").unwrap();
    let first = |from| {
        let (recorder, _vm, from_pool) = restore(from, &pool);
        assert!(from_pool);
        goes_on(&recorder, 40);
        numbers(&recorder.text(), "count")[0]
    };
    let (of_warm, of_later, of_warm_again) = (first(&warm), first(&later), first(&warm));
    assert!(of_warm.abs_diff(of_warm_again) <= 1 && of_later > of_warm + 20, "{of_warm}, {of_later}");
    for other in [VmShape::new(128 << 20, 1), VmShape::new(64 << 20, 2)] {
        let pool = Arc::new(Pool::new(other, 1).unwrap());
        let (recorder, _vm, from_pool) = restore(&warm, &pool);
        assert!(!from_pool && pool.ready() == 1, "a VM of another shape was taken from the pool");
        goes_on(&recorder, 40);
    }
}

#[test]
fn timers_go_on_in_vms_prepared_by_a_pool() {
    needs!(kvm);
    let scratch = Scratch::new();
    let guests = [
        ("ticks", IrqchipKind::Kernel, "0\n", "ticks"),
        ("deadline megacycles=2000", IrqchipKind::Kernel, "armed", "woke"),
        ("deadline megacycles=2000", IrqchipKind::Split, "armed", "woke"),
    ];
    for (number, (cmdline, irqchip, ready, said)) in guests.into_iter().enumerate() {
        let recorder = Recorder::default();
        let builder = Vm::builder().kernel(small_guest()).cmdline(cmdline).memory_mib(64).irqchip(irqchip);
        let vm = builder.console(recorder.console()).start().unwrap();
        recorder.wait_for(ready);
        let name = format!("warm-{number}");
        vm.snapshot(&store(&scratch), &name).unwrap();
        drop(vm);
        let warm = Snapshot::open(&store(&scratch), &name).unwrap();
        let pool = Arc::new(Pool::new(VmShape::of(warm.config()), 1).unwrap());
        // The pool prepares the state from the second restore on.
        for _ in 0..3 {
            pool.wait_ready().unwrap();
            let recorder = Recorder::default();
            let pool = Some(Arc::clone(&pool));
            let options = RestoreOptions::default().console(recorder.console()).pool(pool);
            let _vm = warm.restore_with(options).unwrap();
            wait_until(&format!("{cmdline}: a timer goes on"), || {
                !numbers(&recorder.text(), said).is_empty()
            });
            assert!(!recorder.text().contains("WRONG"), "{}", recorder.text());
        }
    }
}

#[test]
fn cancelled_acts_fail_and_leave_nothing() {
    needs!(kvm);
    let (scratch, recorder) = (Scratch::new(), Recorder::default());
    let (vm, store) = (counting(&recorder), store(&scratch));
    recorder.wait_for("count 2\n");
    let followed = Progress::default();
    vm.snapshot_with(&store, "whole", &SnapshotOptions::default().progress(&followed)).unwrap();
    assert!(followed.total() >= 64 << 20 && followed.done() > 4 << 20, "{followed:?}");

    let cancelled = Progress::default();
    cancelled.cancel();
    let options = SnapshotOptions::default().progress(&cancelled);
    let packing = Packing::new(Compression::Lz4);
    for options in [options.clone(), options.clone().packing(packing), options.diff()] {
        assert!(matches!(vm.snapshot_with(&store, "none", &options), Err(Error::Cancelled)));
    }
    let (whole, none) = ((&store, "whole"), (&store, "none"));
    for packing in [None, Some(&packing)] {
        assert!(matches!(convert(whole, none, packing, &cancelled), Err(Error::Cancelled)));
    }
    assert!(matches!(verify(&store, "whole", &[], &cancelled), Err(Error::Cancelled)));
    let opened = Snapshot::open(&store, "whole").unwrap();
    assert!(matches!(merge(&opened, &store, "none", &cancelled), Err(Error::Cancelled)));

    let left: Vec<_> =
        std::fs::read_dir(scratch.directory()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["whole"]);
    goes_on(&recorder, 20);
    vm.snapshot_with(&store, "diff", &SnapshotOptions::default().diff()).unwrap();
    let restored = Recorder::default();
    let options = RestoreOptions::default().console(restored.console());
    let _clone = Snapshot::open(&store, "diff").unwrap().restore_with(options).unwrap();
    wait_until("the clone of the diff counts", || numbers(&restored.text(), "count").len() > 8);
    assert!(!restored.text().contains("WRONG"), "{}", restored.text());
}

#[test]
fn finished_acts_have_counted_their_total() {
    needs!(kvm);
    let (scratch, recorder) = (Scratch::new(), Recorder::default());
    let (vm, store) = (counting(&recorder), store(&scratch));
    let packing = Packing::new(Compression::Lz4);
    let counted = |act: &str, least: u64, run: &dyn Fn(&Progress)| {
        let progress = Progress::default();
        run(&progress);
        assert!(progress.total() >= least && progress.done() == progress.total(), "{act}: {progress:?}");
    };
    let kinds = [
        ("full", SnapshotOptions::default()),
        ("diff", SnapshotOptions::default().diff()),
        ("packed", SnapshotOptions::default().packing(packing)),
    ];
    for (name, options) in kinds {
        goes_on(&recorder, 5);
        counted(name, 128 << 20, &|progress| {
            vm.snapshot_with(&store, name, &options.clone().progress(progress)).unwrap();
        });
        counted("verify", 64 << 20, &|progress| {
            verify(&store, name, &[], progress).unwrap();
        });
    }
    for (from, packing) in [("full", None), ("full", Some(&packing)), ("packed", None)] {
        let to = format!("{from}-{}", packing.is_some());
        counted("convert", 128 << 20, &|progress| {
            convert((&store, from), (&store, &to), packing, progress).unwrap();
        });
    }
    for name in ["diff", "packed"] {
        let (snapshot, to) = (Snapshot::open(&store, name).unwrap(), format!("{name}-merged"));
        counted("merge", 128 << 20, &|progress| merge(&snapshot, &store, &to, progress).unwrap());
    }
    counted("fork", 64 << 20, &|progress| {
        vm.fork_with([RestoreOptions::default()], progress).unwrap();
    });
    let packed = Snapshot::open(&store, "packed").unwrap();
    let at_once = || RestoreOptions::default().unpack(Unpack::AtOnce);
    let cancelled = Progress::default();
    cancelled.cancel();
    assert!(matches!(packed.restore_with(at_once().progress(&cancelled)), Err(Error::Cancelled)));
    assert!(matches!(vm.fork_with([RestoreOptions::default()], &cancelled), Err(Error::Cancelled)));
    counted("restore", 64 << 20, &|progress| {
        packed.restore_with(at_once().progress(progress)).unwrap();
    });
    goes_on(&recorder, 20);
}

#[test]
fn dropped_vm_leaves_no_thread() {
    needs!(kvm);
    let threads = || {
        volt_tests::scratch::list("/proc/self/task".as_ref())
            .iter()
            .filter(|id| {
                let name = std::fs::read_to_string(format!("/proc/self/task/{id}/comm")).unwrap_or_default();
                name.starts_with("volt-vcpu9")
            })
            .count()
    };
    let builder = Vm::builder().kernel(small_guest()).cmdline("stuck").memory_mib(64).vcpus(10);
    let vm = builder.start().unwrap();
    wait_until("the vCPU threads run", || threads() == 1);
    drop(vm);
    wait_until("the vCPU threads are gone", || threads() == 0);
}

#[test]
fn vm_reports_how_its_guest_ended() {
    needs!(kvm);
    for (cmdline, ending) in [
        ("hello", Ending::Poweroff),
        ("reboot", Ending::Reboot),
        ("panic", Ending::Panicked),
        ("triple-fault", Ending::TripleFault),
    ] {
        let vm = Vm::builder().kernel(small_guest()).cmdline(cmdline).start().unwrap();
        assert_eq!(limited("the VM ends", || vm.wait_ending()).unwrap(), ending);
        assert_eq!(vm.state(), RunState::Ended);
        let again = vm.resume().unwrap_err().to_string();
        assert!(again.contains("has ended"), "{again}");
        assert!(vm.snapshot(&store(&Scratch::new()), "late").is_err());
        let is_crash = matches!(ending, Ending::Panicked | Ending::TripleFault);
        assert_eq!(limited("the VM ends", || vm.wait()).is_err(), is_crash);
    }
}

#[test]
fn end_of_a_guest_wakes_a_poll_and_a_wait_with_timeout() {
    needs!(kvm);
    let vm = Vm::builder().kernel(small_guest()).cmdline("hello").start_paused().start().unwrap();
    let before = vm.ended_fd().unwrap();
    let is_readable = |fd: &OwnedFd, timeout| {
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        poll(&mut fds, Some(&timeout)).unwrap() == 1
    };
    let (now, patient) = (Timespec::default(), Timespec { tv_sec: 60, tv_nsec: 0 });
    assert!(!is_readable(&before, now));
    assert_eq!(vm.wait_timeout(Duration::from_millis(20)).unwrap(), None);
    vm.resume().unwrap();
    assert!(is_readable(&before, patient), "the end does not wake the poll");
    assert_eq!(vm.wait_timeout(Duration::from_secs(60)).unwrap(), Some(Ending::Poweroff));
    // A reader does not take the end from others.
    assert_eq!(rustix::io::read(&before, &mut [0; 8]).unwrap(), 8);
    assert!(
        is_readable(&before, now) && is_readable(&vm.ended_fd().unwrap(), now),
        "the descriptor is not readable later"
    );
}

#[test]
fn vm_can_be_started_paused() {
    needs!(kvm);
    let recorder = Recorder::default();
    let builder = Vm::builder().kernel(small_guest()).cmdline("hello").console(recorder.console());
    let vm = builder.start_paused().start().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!((vm.state(), recorder.text().as_str()), (RunState::Paused, ""));
    vm.resume().unwrap();
    limited("the VM ends", || vm.wait()).unwrap();
    assert_eq!(recorder.text(), "hello\n");
}
