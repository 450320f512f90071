//! The library's examples, run with the small guest in place of Linux.

use std::time::Duration;

use volt_tests::{Recorder, Scratch, needs, small_guest};
use volt_vmm::{Ending, RunState, Snapshot, Store, Vm};

#[path = "../../../vmm/examples/async_orchestrator.rs"]
mod async_orchestrator;
#[path = "../../../vmm/examples/boot.rs"]
mod boot;
#[path = "../../../vmm/examples/clones.rs"]
mod clones;
#[path = "../../../vmm/examples/pool.rs"]
mod pool;

fn counting() -> Vm {
    Vm::builder().kernel(small_guest()).cmdline("count mib=4").memory_mib(64).start().unwrap()
}

fn store(scratch: &Scratch) -> Store {
    Store::open(&format!("file://{}", scratch.directory().display())).unwrap()
}

/// Takes a snapshot of a guest that counts.
fn warm(scratch: &Scratch) -> Snapshot {
    counting().snapshot(&store(scratch), "warm").unwrap();
    Snapshot::open(&store(scratch), "warm").unwrap()
}

#[test]
fn boot_example_writes_the_console_and_returns_the_ending() {
    needs!(kvm);
    let recorder = Recorder::default();
    let ending = boot::boot(&small_guest(), None, "hello", recorder.console()).unwrap();
    assert_eq!((ending, recorder.text().as_str()), (Ending::Poweroff, "hello\n"));
}

#[test]
fn clones_example_runs_a_hundred_clones_at_once() {
    needs!(kvm);
    let scratch = Scratch::new();
    let vm = counting();
    let (clones, _) = clones::clones(&vm, &store(&scratch), Duration::from_millis(100), 100).unwrap();
    assert_eq!(clones.len(), 100);
    assert!(clones.iter().all(|clone| clone.state() == RunState::Running));
}

#[test]
fn pool_example_restores_five_vms() {
    needs!(kvm);
    let scratch = Scratch::new();
    let restored = pool::restore_from_pool(&warm(&scratch), 5).unwrap();
    assert_eq!(restored.len(), 5);
    assert!(restored.iter().all(|(vm, _)| vm.state() == RunState::Running));
}

#[test]
fn async_example_ends_guests_at_their_limit_and_reports_other_endings() {
    needs!(kvm);
    let scratch = Scratch::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let run = |snapshot, limit| runtime.block_on(async_orchestrator::sessions(snapshot, 8, limit)).unwrap();
    assert_eq!(run(warm(&scratch), Duration::from_millis(50)), [Ending::Stopped; 8]);

    let vm = Vm::builder().kernel(small_guest()).cmdline("hello").start_paused().start().unwrap();
    vm.snapshot(&store(&scratch), "ending").unwrap();
    let ending = Snapshot::open(&store(&scratch), "ending").unwrap();
    assert_eq!(run(ending, Duration::from_secs(600)), [Ending::Poweroff; 8]);
}
