//! Disks that touch damaged memory of a shared pager: in a request's data, and in a queue.
//!
//! The VMs run in this process, so a fault signal for one of their threads would end the test.

use std::fs::File;
use std::os::unix::fs::FileExt;

use serde_json::Value;
use volt_tests::program::binary;
use volt_tests::{
    Boot, Guest, Recorder, Scratch, Snapshot, limited, needs, numbers, processes_with, wait_until,
};
use volt_vmm::{PagerOptions, RestoreOptions, RunState, Store, Unpack, Vm};

use crate::memory::lazy::stored;

const CHUNK: u64 = 4096;
/// The middle of the MiB that the disk of `disk-churn` accesses. No vCPU touches it once it is filled.
const DATA: u64 = 0x100_0000 + (512 << 10);

/// Starts a guest with a disk on a layer. Each VM restored from its snapshot has its own layer.
fn guest_with_a_disk(scratch: &Scratch, cmdline: &str) -> Guest {
    let image = scratch.fresh("image");
    File::create(&image).unwrap().set_len(4 << 20).unwrap();
    let words = format!("path={},layer={},id=root", image.display(), scratch.fresh("layer").display());
    Boot::small(cmdline).device(["--disk".to_owned(), words]).start()
}

/// Restores two VMs over one pager and lets one of them touch a damaged chunk. Then mends the chunk, resumes
/// the other VM, and returns it with its output.
fn other_after_damage(scratch: &Scratch, snapshot: &Snapshot, chunk: u64) -> (Recorder, Vm) {
    let (to, name) = Store::split(snapshot.directory()).unwrap();
    let opened = volt_vmm::Snapshot::open(&to, &name).unwrap();
    let directory = scratch.path("pagers");
    let options = PagerOptions::new(binary()).directory(directory.clone());
    let restore = || -> (Recorder, Vm) {
        let (recorder, unpack) = (Recorder::default(), Unpack::ByPager(options.clone()));
        let console = recorder.console();
        let options = RestoreOptions::default().console(console).unpack(unpack).paused();
        (recorder, opened.restore_with(options).unwrap())
    };
    let [(_, damaged), (said, other)] = [restore(), restore()];
    wait_until("there is one pager", || processes_with(&directory).len() == 1);

    let path = snapshot.memory_path();
    let place = stored(snapshot).into_iter().find(|(stored, _)| u64::from(*stored) == chunk);
    let (_, place) = place.expect("the chunk is stored");
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let (at, mut byte) = ((place.start + place.end) / 2, [0]);
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], at).unwrap();

    damaged.resume().unwrap();
    let why = limited("the VM with the damaged chunk ends", || damaged.wait()).unwrap_err().to_string();
    for word in ["cannot be read", path.to_str().unwrap(), &format!("is damaged in chunk {chunk} ")] {
        assert!(why.contains(word), "{why}");
    }
    assert_eq!((other.state(), processes_with(&directory).len()), (RunState::Paused, 1));

    // The pager reads the chunk again for the VM that touches it next.
    file.write_all_at(&byte, at).unwrap();
    other.resume().unwrap();
    (said, other)
}

#[test]
fn disk_access_to_damaged_data_ends_only_its_vm() {
    needs!(kvm, page_faults);
    let scratch = Scratch::new();
    let mut guest = guest_with_a_disk(&scratch, "disk-churn mib=4 filled=1");
    guest.next_number("churned");
    let snapshot = guest.snapshot_as(&["--compress", "lz4", "--chunk-size", "4K"]);
    drop(guest);
    let (said, other) = other_after_damage(&scratch, &snapshot, DATA / CHUNK);
    wait_until("the other VM's disk goes on", || numbers(&said.text(), "churned").len() > 8);
    assert!(!said.text().contains("WRONG"), "{}", said.text());
    assert_eq!(other.state(), RunState::Running);
}

/// Returns the first number of this name in a JSON value.
fn number_in(value: &Value, name: &str) -> Option<u64> {
    match value {
        Value::Object(fields) => {
            let own = fields.get(name).and_then(Value::as_u64);
            own.or_else(|| fields.values().find_map(|value| number_in(value, name)))
        }
        Value::Array(values) => values.iter().find_map(|value| number_in(value, name)),
        _ => None,
    }
}

/// The guest spins and does not use its disk again. The device reads its queue once after a restore.
#[test]
fn disk_queue_in_a_damaged_chunk_ends_only_its_vm() {
    needs!(kvm, page_faults);
    let scratch = Scratch::new();
    let mut guest = guest_with_a_disk(&scratch, "disk until=8");
    guest.wait_for("done\n");
    let snapshot = guest.snapshot_as(&["--compress", "lz4", "--chunk-size", "4K"]);
    drop(guest);
    let ring = number_in(&snapshot.state(), "avail_ring").expect("state.json has the disk's queue");
    let (_, other) = other_after_damage(&scratch, &snapshot, ring / CHUNK);
    other.pause().unwrap();
    other.resume().unwrap();
    assert_eq!(other.state(), RunState::Running);
}
