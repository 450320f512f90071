//! Images of disks without a layer: a snapshot syncs them before it is published, and a restore notices
//! changes.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::json;
use volt_tests::need::skip;
use volt_tests::{Boot, Guest, Scratch, Snapshot, needs, wait_until};

const LEN: u64 = 4 << 20;

/// Starts a guest that has written to its image and uses it no more.
fn guest_of(image: &Path, more: &str) -> Guest {
    let disk = format!("path={},id=root{more}", image.display());
    let mut guest = Boot::small("disk takes-flush=1 stride=128 until=24").device(["--disk", &disk]).start();
    guest.wait_for("done");
    guest
}

fn image(scratch: &Scratch) -> PathBuf {
    let image = scratch.fresh("image");
    let content: Vec<u8> = (0..LEN).map(|at| (at / 512) as u8).collect();
    fs::write(&image, content).unwrap();
    File::open(&image).unwrap().sync_all().unwrap();
    image
}

/// `struct cachestat` (linux/mman.h).
#[repr(C)]
#[derive(Default)]
struct CacheStat {
    cache: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Counts the pages of a file that are not on disk yet (from Linux 6.5 on).
fn unsynced_pages(path: &Path) -> std::io::Result<u64> {
    const CACHESTAT: libc::c_long = 451;
    let (file, range, mut found) = (File::open(path)?, [0_u64; 2], CacheStat::default());
    // SAFETY: the kernel reads two numbers and fills one structure of its own layout.
    match unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), &raw mut found, 0) } {
        0 => Ok(found.dirty + found.writeback),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn snapshot_syncs_written_images() {
    needs!(kvm);
    for engine in ["sync", "io_uring"] {
        for cache in ["writeback", "unsafe"] {
            let scratch = Scratch::new();
            let image = image(&scratch);
            let guest = guest_of(&image, &format!(",engine={engine},cache={cache}"));
            match unsynced_pages(&image) {
                Ok(0) => return skip("this file system keeps no unwritten pages"),
                Err(error) => return skip(&format!("no cachestat here ({error})")),
                Ok(_) => {}
            }
            let _snapshot = guest.snapshot();
            assert_eq!(unsynced_pages(&image).unwrap(), 0, "{engine} {cache}");
        }
    }
}

/// Takes a snapshot of a paused guest with an image, then ends the guest.
fn frozen(image: &Path, more: &str) -> Snapshot {
    let mut guest = guest_of(image, more);
    guest.pause();
    let snapshot = guest.snapshot();
    assert_eq!(guest.ask("PUT", "/v1/stop", "").0, 204);
    let stderr = guest.wait_exit().stderr;
    assert!(!stderr.contains("unrestorable"), "{stderr}");
    snapshot
}

fn runs(guest: &Guest) {
    let (status, said) = guest.ask("GET", "/v1/vm", "");
    assert!(status == 200 && said.contains(r#""state":"running""#), "{said}");
}

fn change_byte(image: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(image).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn changed_image_is_refused_until_it_is_accepted() {
    needs!(kvm);
    // The first change lies outside the sampled sectors, the second in one of them.
    for (at, words) in [(LEN - 5000, "the time of its last write is"), (LEN - 1, "the digest of its content")]
    {
        let scratch = Scratch::new();
        let image = image(&scratch);
        let snapshot = frozen(&image, "");
        runs(&snapshot.restore());
        change_byte(&image, at);
        let error = snapshot.try_restore();
        error.refused(&[
            "root",
            image.to_str().unwrap(),
            "has changed since the snapshot",
            words,
            "changed=accept",
        ]);
        runs(&snapshot.restore_as(&["--disk", "id=root,changed=accept"]));
    }
}

#[test]
fn longer_image_is_refused() {
    needs!(kvm);
    let scratch = Scratch::new();
    let image = image(&scratch);
    let snapshot = frozen(&image, "");
    File::options().write(true).open(&image).unwrap().set_len(LEN + 512).unwrap();
    snapshot.try_restore().refused(&["root", &format!("it has {} bytes now, and had {LEN}", LEN + 512)]);
}

/// A copy has another time, so only its content is compared.
#[test]
fn copy_is_accepted_and_another_image_is_refused() {
    needs!(kvm);
    let scratch = Scratch::new();
    let image = image(&scratch);
    let snapshot = frozen(&image, "");
    let copy = scratch.fresh("copy");
    fs::copy(&image, &copy).unwrap();
    let at = |path: &Path| format!("id=root,path={}", path.display());
    runs(&snapshot.restore_as(&["--disk", &at(&copy)]));
    change_byte(&copy, 0);
    snapshot.try_restore_as(&["--disk", &at(&copy)]).refused(&["root", "the digest of its content"]);
}

#[test]
fn rewritten_image_is_refused_under_its_own_path() {
    needs!(kvm);
    let scratch = Scratch::new();
    let image = image(&scratch);
    let snapshot = frozen(&image, "");
    let at = |path: &Path| format!("id=root,path={}", path.display());
    runs(&snapshot.restore_as(&["--disk", &at(&image)]));
    let link = scratch.fresh("link");
    std::os::unix::fs::symlink(&image, &link).unwrap();
    // The content is equal, but the time differs: only the time shows a change outside the samples.
    let bytes = fs::read(&image).unwrap();
    fs::write(&image, bytes).unwrap();
    for path in [&image, &link] {
        snapshot.try_restore_as(&["--disk", &at(path)]).refused(&["root", "has changed since the snapshot"]);
    }
    runs(&snapshot.restore_as(&["--disk", &format!("{},changed=accept", at(&image))]));
}

#[test]
fn snapshot_warns_if_the_running_guest_makes_it_unrestorable() {
    needs!(kvm);
    let scratch = Scratch::new();
    let image = image(&scratch);
    let disk = format!("path={},id=root", image.display());
    let mut guest = Boot::small("disk takes-flush=1").device(["--disk", &disk]).start();
    guest.next_number("sector");
    let directory = scratch.fresh("snapshot");
    let taken = guest.try_snapshot(&directory);
    assert_eq!(taken.status, 0, "{}", taken.stderr);
    assert!(taken.stderr.contains("disk root") && taken.stderr.contains("unrestorable"), "{}", taken.stderr);
    let number = guest.next_number("sector");
    while guest.next_number("sector") < number + 100 {}
    wait_until("the warning is logged", || guest.stderr().contains("unrestorable"));
    drop(guest);
    let snapshot = Snapshot::at(directory, &scratch);
    snapshot.try_restore().refused(&["root", "has changed since the snapshot"]);
}

#[test]
fn changed_image_is_accepted_over_rest_without_a_warning() {
    needs!(kvm);
    let scratch = Scratch::new();
    let image = image(&scratch);
    let snapshot = frozen(&image, "");
    change_byte(&image, LEN - 1);
    let load = |changed: &str| {
        let disk = json!({"id": "root", "changed": changed});
        let load = json!({"snapshot_path": snapshot.directory(), "overrides": {"disks": [disk]}});
        let waiting = Guest::waiting();
        let answer = waiting.ask("PUT", "/snapshot/load", &load.to_string());
        (waiting, answer)
    };
    let (_waiting, (status, answer)) = load("ignore");
    assert!(status == 400 && answer.contains("accept"), "{status} {answer}");
    let (mut waiting, answer) = load("accept");
    assert_eq!(answer, (204, String::new()));
    assert_eq!(waiting.ask("PUT", "/v1/stop", "").0, 204);
    let stderr = waiting.wait_exit().stderr;
    assert!(!stderr.contains("has changed since the snapshot"), "{stderr}");
}

/// Firecracker's clients expect no refusal.
#[test]
fn load_over_rest_accepts_a_changed_image_with_a_warning() {
    needs!(kvm);
    let scratch = Scratch::new();
    let image = image(&scratch);
    let snapshot = frozen(&image, "");
    change_byte(&image, LEN - 1);
    let waiting = Guest::waiting();
    let load = format!(r#"{{"snapshot_path":{:?},"resume_vm":true}}"#, snapshot.directory());
    assert_eq!(waiting.ask("PUT", "/snapshot/load", &load), (204, String::new()));
    wait_until("the warning is logged", || waiting.stderr().contains("has changed since the snapshot"));
}
