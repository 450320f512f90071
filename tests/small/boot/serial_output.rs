//! Serial output that goes to a file or a FIFO, by Firecracker's API.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use serde_json::json;
use volt_tests::{Guest, Snapshot, needs, numbers, small_guest, wait_until};

use crate::snapshot::diffs::counting;

/// Starts a process without a VM that sends serial output to `path`.
fn sending_to(path: &Path) -> Guest {
    let guest = Guest::waiting();
    let body = json!({"serial_out_path": path});
    assert_eq!(guest.ask("PUT", "/serial", &body.to_string()), (204, String::new()));
    guest
}

/// Boots the small guest, which counts, by Firecracker's requests.
fn boot(guest: &Guest) {
    let boot = json!({"kernel_image_path": small_guest(), "boot_args": "count mib=8"});
    assert_eq!(guest.ask("PUT", "/boot-source", &boot.to_string()).0, 204);
    let start = r#"{"action_type":"InstanceStart"}"#;
    assert_eq!(guest.ask("PUT", "/actions", start), (204, String::new()));
}

fn load(guest: &Guest, snapshot: &Snapshot) -> (u16, String) {
    let body = json!({"snapshot_path": snapshot.directory(), "resume_vm": true});
    guest.ask("PUT", "/snapshot/load", &body.to_string())
}

fn counts(path: &Path) -> usize {
    numbers(&fs::read_to_string(path).unwrap_or_default(), "count").len()
}

#[test]
fn serial_output_of_a_boot_or_a_load_goes_to_the_file_alone() {
    needs!(kvm);
    let origin = counting(8);
    let snapshot = origin.snapshot();
    let (first, second) = (origin.scratch().fresh("serial"), origin.scratch().fresh("serial"));
    fs::write(&second, "kept\n").unwrap();
    let booted = sending_to(&first);
    boot(&booted);
    let loaded = sending_to(&second);
    assert_eq!(load(&loaded, &snapshot), (204, String::new()));
    wait_until("output in both files", || counts(&first) > 3 && counts(&second) > 3);
    assert_eq!(fs::metadata(&first).unwrap().mode() & 0o7777, 0o600);
    assert!(fs::read_to_string(&second).unwrap().starts_with("kept\n"), "an existing file is appended to");
    for guest in [booted, loaded] {
        assert!(!guest.output().contains("count"), "{}", guest.output());
    }
}

#[test]
fn output_over_the_limit_is_dropped_and_the_guest_runs_on() {
    needs!(kvm);
    let guest = Guest::waiting();
    let path = guest.scratch().fresh("serial");
    // An hour fills the bucket: the file gets the burst and one bucket, and no more.
    let limit = json!({"size": 20, "one_time_burst": 30, "refill_time": 3_600_000});
    let body = json!({"serial_out_path": path, "rate_limiter": limit});
    assert_eq!(guest.ask("PUT", "/serial", &body.to_string()).0, 204);
    boot(&guest);
    wait_until("the limit", || fs::metadata(&path).is_ok_and(|file| file.len() == 50));
    let before = guest.processor_time();
    wait_until("a running guest", || guest.processor_time() > before);
    assert_eq!(fs::metadata(&path).unwrap().len(), 50);
    let (_, metrics) = guest.ask("GET", "/metrics", "");
    let number = |name: &str| -> u64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name}: {metrics}")).trim().parse().unwrap()
    };
    let sent = number("volt_vmm_serial_bytes_total{direction=\"transmit\"}");
    let dropped = number("volt_vmm_serial_dropped_bytes_total");
    assert!(dropped > 0 && sent >= dropped, "{sent} {dropped}");
}

#[test]
fn fifo_without_a_reader_does_not_stop_the_guest() {
    needs!(kvm);
    let waiting = Guest::waiting();
    let path = waiting.scratch().fresh("fifo");
    mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let guest = sending_to(&path);
    boot(&guest);
    // The reader comes late, and gets the output that the FIFO holds.
    let before = guest.processor_time();
    wait_until("a running guest", || guest.processor_time() > before);
    let mut reader = File::from(open(&path, OFlags::RDONLY, Mode::empty()).unwrap());
    let mut bytes = [0; 64];
    reader.read_exact(&mut bytes).unwrap();
    assert!(bytes.starts_with(b"count") || bytes.contains(&b'\n'), "{}", String::from_utf8_lossy(&bytes));
}

#[test]
fn file_that_cannot_be_opened_refuses_the_start_and_leaves_no_vm() {
    needs!(kvm);
    let origin = counting(8);
    let snapshot = origin.snapshot();
    let guest = sending_to(Path::new("/missing/serial"));
    let (status, answer) = load(&guest, &snapshot);
    assert!(status == 400 && answer.contains("cannot open serial output /missing/serial"), "{answer}");
    assert!(guest.ask("GET", "/", "").1.contains("Not started"));
    let body = json!({"serial_out_path": null});
    assert_eq!(guest.ask("PUT", "/serial", &body.to_string()).0, 204);
    assert_eq!(load(&guest, &snapshot), (204, String::new()));
    assert_eq!(guest.ask("PUT", "/serial", &body.to_string()).0, 400, "the VM has started");
}
