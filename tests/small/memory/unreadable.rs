//! Guest memory that a vCPU may not access: `KVM_RUN` fails with EFAULT, and the VM's end names what
//! happened.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs;
use std::path::Path;
use std::ptr;

use volt_tests::{Guest, KvmShim, Recorder, Scratch, limited, needs, numbers, small_guest, wait_until};
use volt_vmm::{RestoreOptions, Snapshot, Store, Vm};

/// `_IO(KVMIO, 0x80)`.
const KVM_RUN: u32 = 0xae80;

fn wait_until_it_counts(recorder: &Recorder, count: u64) {
    wait_until("it counts", || numbers(&recorder.text(), "count").last().is_some_and(|last| *last >= count));
}

/// The snapshot `warm` in `scratch`, of a guest that counts.
fn warm(scratch: &Scratch) -> Snapshot {
    let store = Store::open(&format!("file://{}", scratch.directory().display())).unwrap();
    let recorder = Recorder::default();
    let builder = Vm::builder().kernel(small_guest()).cmdline("count mib=8").memory_mib(64);
    let vm = builder.console(recorder.console()).start().unwrap();
    wait_until_it_counts(&recorder, 40);
    vm.snapshot(&store, "warm").unwrap();
    Snapshot::open(&store, "warm").unwrap()
}

/// A VM that runs from the snapshot.
fn clone(snapshot: &Snapshot) -> Vm {
    let recorder = Recorder::default();
    let options = RestoreOptions { console: recorder.console(), ..RestoreOptions::default() };
    let vm = snapshot.restore_with(options).unwrap();
    wait_until_it_counts(&recorder, 1);
    vm
}

/// Where a file is mapped for writing in this process, and so many bytes of it.
fn mapping(file: &Path) -> (*mut c_void, usize) {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let of_file = |line: &&str| line.ends_with(file.to_str().unwrap()) && line.contains(" rw-p ");
    let line = maps.lines().find(of_file).unwrap_or_else(|| panic!("{} in {maps}", file.display()));
    let range = line.split(' ').next().unwrap().split_once('-').unwrap();
    let [start, end] = [range.0, range.1].map(|number| usize::from_str_radix(number, 16).unwrap());
    (ptr::with_exposed_provenance_mut(start), end - start)
}

/// Why the VM ended.
fn ending(vm: &Vm) -> String {
    limited("the VM ends", || vm.wait()).unwrap_err().to_string()
}

#[test]
fn a_vcpu_that_may_not_access_its_memory_ends_its_vm_with_the_files_name() {
    needs!(kvm);
    let scratch = Scratch::new();
    let (snapshot, file) = (warm(&scratch), scratch.path("warm/memory.snap"));
    // The guest's next access decides how KVM notices: on kvm_pvm it is a triple fault in most clones, and an
    // exit for MMIO in the others.
    for _ in 0..8 {
        let vm = clone(&snapshot);
        let (start, len) = mapping(&file);
        // SAFETY: it is guest memory, which in this process only the vCPU accesses: the guest has no devices.
        assert_eq!(unsafe { libc::mprotect(start, len, libc::PROT_NONE) }, 0);
        let why = ending(&vm);
        for words in
            ["vCPU 0", " at rip 0x", "guest memory", file.to_str().unwrap(), "is as long as it should be"]
        {
            assert!(why.contains(words), "{words}: {why}");
        }
    }
}

#[test]
fn kvm_run_that_fails_with_efault_names_vcpu_address_and_file() {
    needs!(kvm);
    let mut guest = Guest::boot("count");
    guest.next_number("count");
    let snapshot = guest.snapshot();
    let outcome = snapshot.restore_on(&KvmShim::new().refuses(KVM_RUN, libc::EFAULT), &[]).wait_exit();
    assert_eq!(outcome.status, 5, "{outcome:?}");
    let file = snapshot.memory_path();
    let words = [
        "vCPU 0 at rip 0x",
        "guest memory cannot be accessed",
        file.to_str().unwrap(),
        "is as long as it should be",
    ];
    for words in words {
        assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
    }
}
