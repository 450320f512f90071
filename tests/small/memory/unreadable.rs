//! Guest memory that a vCPU may not access: `KVM_RUN` fails with EFAULT, and the VM ends with the cause.
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
    wait_until("the guest counts on", || {
        numbers(&recorder.text(), "count").last().is_some_and(|last| *last >= count)
    });
}

/// Takes the snapshot `warm` of a counting guest in `scratch`.
fn warm(scratch: &Scratch) -> Snapshot {
    let store = Store::open(&format!("file://{}", scratch.directory().display())).unwrap();
    let recorder = Recorder::default();
    let builder = Vm::builder().kernel(small_guest()).cmdline("count mib=8").memory_mib(64);
    let vm = builder.console(recorder.console()).start().unwrap();
    wait_until_it_counts(&recorder, 40);
    vm.snapshot(&store, "warm").unwrap();
    Snapshot::open(&store, "warm").unwrap()
}

/// Restores a VM that runs from the snapshot.
fn clone(snapshot: &Snapshot) -> Vm {
    let recorder = Recorder::default();
    let options = RestoreOptions { console: recorder.console(), ..RestoreOptions::default() };
    let vm = snapshot.restore_with(options).unwrap();
    wait_until_it_counts(&recorder, 1);
    vm
}

/// Returns the address and length of this process's writable mapping of a file.
fn mapping(file: &Path) -> (*mut c_void, usize) {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let of_file = |line: &&str| line.ends_with(file.to_str().unwrap()) && line.contains(" rw-p ");
    let line = maps.lines().find(of_file).unwrap_or_else(|| panic!("{} in {maps}", file.display()));
    let range = line.split(' ').next().unwrap().split_once('-').unwrap();
    let [start, end] = [range.0, range.1].map(|number| usize::from_str_radix(number, 16).unwrap());
    (ptr::with_exposed_provenance_mut(start), end - start)
}

/// Waits until the VM ends and returns its error.
fn ending(vm: &Vm) -> String {
    limited("the VM ends", || vm.wait()).unwrap_err().to_string()
}

#[test]
fn vcpu_without_access_to_memory_ends_its_vm_and_names_the_file() {
    needs!(kvm);
    let scratch = Scratch::new();
    let (snapshot, file) = (warm(&scratch), scratch.path("warm/memory.snap"));
    // The guest's next access decides how KVM notices. On kvm_pvm most clones end in a triple fault, and the
    // others in an exit for MMIO.
    for _ in 0..8 {
        let vm = clone(&snapshot);
        let (start, len) = mapping(&file);
        // SAFETY: in this process only the vCPU accesses guest memory, for the guest has no devices.
        assert_eq!(unsafe { libc::mprotect(start, len, libc::PROT_NONE) }, 0);
        let why = ending(&vm);
        for words in ["vCPU 0", " at rip 0x", "guest memory", file.to_str().unwrap(), "I/O error in"] {
            assert!(why.contains(words), "{words}: {why}");
        }
    }
}

#[test]
fn efault_of_kvm_run_names_vcpu_address_and_file() {
    needs!(kvm);
    let mut guest = Guest::boot("count");
    guest.next_number("count");
    let snapshot = guest.snapshot();
    let outcome = snapshot.restore_on(&KvmShim::new().refuses(KVM_RUN, libc::EFAULT), &[]).wait_exit();
    assert_eq!(outcome.status, 5, "{outcome:?}");
    let file = snapshot.memory_path();
    let words =
        ["vCPU 0 at rip 0x", "guest memory cannot be accessed", file.to_str().unwrap(), "I/O error in"];
    for words in words {
        assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
    }
}
