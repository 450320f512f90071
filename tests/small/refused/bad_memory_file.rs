//! A `memory.snap` that does not belong to its state.

use std::fs;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode};
use volt_tests::damage::open_to_change;
use volt_tests::{Boot, Guest, Snapshot, needs};

fn snapshot() -> Snapshot {
    let mut guest = Guest::boot("count");
    guest.wait_for("count");
    guest.snapshot()
}

fn refused(snapshot: &Snapshot, words: &[&str]) {
    let memory = snapshot.memory_path();
    snapshot.try_restore().refused(&[&[memory.to_str().unwrap()], words].concat());
}

#[test]
fn missing_memory_file_is_refused() {
    needs!(kvm);
    let snapshot = snapshot();
    fs::remove_file(snapshot.memory_path()).unwrap();
    refused(&snapshot, &["is missing"]);
    fs::create_dir(snapshot.memory_path()).unwrap();
    refused(&snapshot, &["not a regular file"]);
}

#[test]
fn memory_file_of_wrong_length_is_refused() {
    needs!(kvm);
    let snapshot = snapshot();
    for len in [0, 1, 4096, (64 << 20) - 1, (64 << 20) + 1, (64 << 20) + 4096, 1 << 40] {
        open_to_change(snapshot.memory_path()).set_len(len).unwrap();
        refused(&snapshot, &[&len.to_string(), "67108864"]);
    }
}

#[test]
fn pipe_is_refused_without_waiting() {
    needs!(kvm);
    let snapshot = snapshot();
    let pipe_at = |path: &Path| {
        let _ = fs::remove_file(path);
        rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    };
    pipe_at(&snapshot.memory_path());
    refused(&snapshot, &["not a regular file"]);
    pipe_at(&snapshot.state_path());
    snapshot.try_restore().refused(&["state.json", "not a regular file"]);
    let kernel = snapshot.directory().join("kernel");
    pipe_at(&kernel);
    Boot::kernel(&kernel, "hello").outcome().refused(&[kernel.to_str().unwrap(), "is a pipe"]);
}
