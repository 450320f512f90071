//! Forged snapshots with right checksums: they cost no more memory than they take on disk.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use volt_tests::program::binary;
use volt_tests::state_file::CRC;
use volt_tests::{Guest, Outcome, Snapshot, needs};

/// Memory that the forgery claims. Its list of pages would take 128 MiB.
const CLAIMED: u64 = 4 << 40;
/// KiB of data segment that a forgery may cost.
const LIMIT: &str = "24576";

/// Returns a small guest, a base, and a diff over it.
fn diff() -> (Guest, Snapshot, Snapshot) {
    let mut guest = Guest::boot("count mib=1");
    guest.wait_for("count");
    let base = guest.snapshot();
    let diff = guest.snapshot_as(&["--diff"]);
    (guest, base, diff)
}

/// Lets the state file claim [`CLAIMED`] bytes of guest memory.
fn claim(snapshot: &Snapshot) {
    snapshot.edit(|state| {
        state["config"]["memory_mib"] = (CLAIMED >> 20).into();
        state["metadata"]["memory_bytes"] = CLAIMED.into();
        state["metadata"].as_object_mut().unwrap().remove("memory_file");
    });
}

/// Runs `volt-vmm snapshot` with at most [`LIMIT`] of memory.
fn with_little_memory(act: &str, snapshot: &Path) -> Outcome {
    let mut command = Command::new("sh");
    command.args(["-c", r#"ulimit -d "$1" && exec "$2" snapshot "$3" "$4""#, "sh", LIMIT]);
    Outcome::of_command(command.arg(binary()).arg(act).arg(snapshot))
}

#[test]
fn sparse_list_of_a_forged_diff_takes_no_memory() {
    needs!(kvm);
    let (_guest, _base, diff) = diff();
    with_little_memory("inspect", diff.directory()).succeeded();
    claim(&diff);
    let base = diff.state()["metadata"]["base"]["memory_digest"].as_str().unwrap().to_owned();
    let facts = [CLAIMED, u64::from_str_radix(&base, 16).unwrap(), 0];
    let list = vec![0; (CLAIMED / 4096 / 8) as usize];
    let mut checksum = CRC.digest();
    checksum.update(&list);
    facts.iter().for_each(|fact| checksum.update(&fact.to_le_bytes()));
    let words = [checksum.finalize()].into_iter().chain(facts).flat_map(u64::to_le_bytes);
    let trailer: Vec<u8> = words.chain(*b"VOLTDIFF").collect();
    fs::remove_file(diff.diff_path()).unwrap();
    let file = File::create(diff.diff_path()).unwrap();
    file.write_all_at(&trailer, CLAIMED + list.len() as u64).unwrap();
    assert!(file.metadata().unwrap().blocks() < 64, "the list is a hole");
    with_little_memory("inspect", diff.directory()).succeeded();
}

#[test]
fn working_set_of_holes_takes_no_memory() {
    needs!(kvm);
    let (_guest, base, _diff) = diff();
    claim(&base);
    fs::remove_file(base.memory_path()).unwrap();
    File::create(base.memory_path()).unwrap().set_len(CLAIMED).unwrap();
    let path = base.directory().join("working-set");
    fs::write(&path, b"VOLTWSET").unwrap();
    File::options().write(true).open(&path).unwrap().set_len(1 << 30).unwrap();
    let words = ["working-set", "is damaged or lists an empty range, a page beyond the end of memory"];
    with_little_memory("inspect", base.directory()).refused(&words);
}
