//! The example of the library with a Linux guest.

use volt_tests::{Recorder, Scratch, limited, needs};
use volt_vmm::{RestoreOptions, Snapshot, Store, Vm};

#[test]
fn one_process_boots_snapshots_and_runs_two_clones() {
    needs!(linux);
    let file = |variable| std::path::PathBuf::from(std::env::var_os(variable).unwrap());
    let (scratch, recorder) = (Scratch::new(), Recorder::default());
    let store = Store::open(&format!("file://{}", scratch.directory().display())).unwrap();
    let builder =
        Vm::builder().kernel(file("VOLT_KERNEL")).initrd(file("VOLT_INITRD")).vcpus(2).memory_mib(256);
    let vm = builder.console(recorder.console()).start().unwrap();
    recorder.wait_for("volt-init: ready");
    vm.snapshot(&store, "warm").unwrap();
    let warm = Snapshot::open(&store, "warm").unwrap();
    let recorders = [Recorder::default(), Recorder::default()];
    let clones = recorders
        .each_ref()
        .map(|recorder| warm.restore_with(RestoreOptions::default().console(recorder.console())).unwrap());
    for (clone, recorder) in clones.iter().zip(&recorders) {
        clone.type_in(b"poweroff\n").unwrap();
        recorder.wait_for("ok poweroff");
    }
    clones.iter().try_for_each(Vm::wait).unwrap();
    vm.type_in(b"poweroff\n").unwrap();
    limited("the VM ends", || vm.wait()).unwrap();
}
