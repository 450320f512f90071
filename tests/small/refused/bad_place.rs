//! Paths where no snapshot can be made: an error is given, nothing is left behind, and the guest goes on.

use std::fs;
use std::path::{Path, PathBuf};

use volt_tests::namespace::Namespace;
use volt_tests::scratch::list;
use volt_tests::{Boot, Guest, Scratch, needs, numbers};

fn counting() -> Guest {
    let mut guest = Guest::boot("count");
    guest.wait_for("count");
    guest
}

/// Checks that the snapshot is refused with `words` and that the guest counts on.
fn refused(guest: &mut Guest, place: &Path, words: &[&str]) {
    guest.try_snapshot(place).refused(words);
    guest.next_number("count");
    guest.next_number("count");
    assert!(guest.ask("GET", "/", "").1.contains(r#""state":"Running""#));
}

#[test]
fn existing_path_is_refused() {
    needs!(kvm);
    let mut guest = counting();
    let (directory, file, link) =
        (guest.scratch().path("directory"), guest.scratch().path("file"), guest.scratch().path("link"));
    fs::create_dir(&directory).unwrap();
    fs::write(&file, "precious").unwrap();
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    let before = guest.scratch().list();
    for place in [&directory, &file, &link] {
        refused(&mut guest, place, &[place.to_str().unwrap(), "exists already"]);
    }
    let snapshot = guest.snapshot();
    let untouched = snapshot.fingerprint();
    refused(&mut guest, snapshot.directory(), &["exists already"]);
    assert_eq!(snapshot.fingerprint(), untouched);
    fs::remove_dir_all(snapshot.directory()).unwrap();
    assert_eq!((fs::read_to_string(&file).unwrap().as_str(), guest.scratch().list()), ("precious", before));
}

#[test]
fn path_in_no_directory_is_refused() {
    needs!(kvm);
    let mut guest = counting();
    let file = guest.scratch().path("file");
    fs::write(&file, "").unwrap();
    let nowhere = guest.scratch().path("nowhere");
    refused(
        &mut guest,
        &nowhere.join("snapshot"),
        &["create snapshot directory", nowhere.to_str().unwrap(), "No such file"],
    );
    refused(&mut guest, &file.join("snapshot"), &["create snapshot directory", "Not a directory"]);
    refused(&mut guest, "/".as_ref(), &["/"]);
    refused(&mut guest, "/proc/snapshot".as_ref(), &["create snapshot directory", "/proc"]);
}

#[test]
fn full_disk_fails_the_snapshot_and_stays_clean() {
    needs!(kvm, root);
    let scratch = Scratch::new();
    let disk = scratch.path("disk");
    fs::create_dir(&disk).unwrap();
    // Room for the state, and for a part of the memory.
    for kib in [4, 300, 2048] {
        let namespace = Namespace::small_disk(&disk, kib);
        let mut guest = Boot::small("count mib=16").inside(&namespace).start();
        guest.wait_for("count");
        let place = disk.join("snapshot");
        refused(&mut guest, &place, &[place.to_str().unwrap(), "No space left"]);
        let seen_by_the_child =
            PathBuf::from(format!("/proc/{}/root", guest.pid())).join(disk.strip_prefix("/").unwrap());
        assert_eq!(list(&seen_by_the_child), [""; 0], "left on the full disk");
        // Another disk has room.
        guest.snapshot().restore().next_number("count");
    }
    assert_eq!(list(&disk), [""; 0]);
}

/// The room is reserved before anything is written.
#[test]
fn full_disk_is_reported_before_the_first_page_is_written() {
    needs!(kvm, root);
    let scratch = Scratch::new();
    let disk = scratch.path("disk");
    fs::create_dir(&disk).unwrap();
    let namespace = Namespace::small_disk(&disk, 8 << 10);
    let mut guest = Boot::small("count mib=16").inside(&namespace).start();
    guest.wait_for("count");
    let place = disk.join("snapshot");
    let words = [&format!("MiB for snapshot {}", place.display()), "cannot reserve 1", "No space left"];
    refused(&mut guest, &place, &words);
    refused(&mut guest, &place, &words);
    // A diff of 16 MiB.
    let _base = guest.snapshot();
    let last = *numbers(&guest.output(), "count").last().unwrap();
    while guest.next_number("count") < last + 2 * 16 * 4 {}
    guest.try_snapshot_as(&place, &["--diff"]).refused(&words);
}

/// 24 MiB of the guest's memory are zeros, which a snapshot leaves out.
#[test]
fn disk_with_room_for_the_nonzero_pages_is_enough() {
    needs!(kvm, root);
    let scratch = Scratch::new();
    let (disk, zeros) = (scratch.path("disk"), scratch.path("zeros"));
    fs::create_dir(&disk).unwrap();
    fs::write(&zeros, vec![0; 24 << 20]).unwrap();
    let namespace = Namespace::small_disk(&disk, 8 << 10);
    let mut guest = Boot::small("count mib=2").initrd(&zeros).memory("96M").inside(&namespace).start();
    guest.wait_for("count");
    let place = disk.join("snapshot");
    guest.try_snapshot(&place).succeeded();
    guest.next_number("count");
}

/// The guest writes most pages of its base again, so its diff becomes a full snapshot. Each chunk of the
/// initrd has one page that is not zero: a smaller disk has room for these pages, but not for whole chunks.
#[test]
fn diff_of_a_lazy_guest_reserves_no_more_than_its_whole_memory() {
    needs!(kvm, root);
    let scratch = Scratch::new();
    let (disk, initrd) = (scratch.path("disk"), scratch.path("initrd"));
    fs::create_dir(&disk).unwrap();
    let mut chunks = vec![0; 24 << 20];
    chunks.iter_mut().step_by(64 << 10).for_each(|byte| *byte = 1);
    fs::write(&initrd, chunks).unwrap();
    let mut guest = Boot::small("count mib=72").initrd(&initrd).memory("160M").start();
    while guest.next_number("count") < 72 * 4 + 4 {}
    let base = guest.snapshot_as(&["--compress", "lz4", "--chunk-size", "64K"]);
    drop(guest);
    for mib in [112, 88] {
        let namespace = Namespace::small_disk(&disk, mib << 10);
        let mut guest = base.restore_inside(&namespace, &[]);
        let last = guest.next_number("count");
        while guest.next_number("count") < last + 2 * 72 * 4 {}
        guest.try_snapshot_as(&disk.join("snapshot"), &["--diff"]).succeeded();
        let seen = PathBuf::from(format!("/proc/{}/root", guest.pid())).join(disk.strip_prefix("/").unwrap());
        assert!(seen.join("snapshot/memory.snap").exists(), "{mib} MiB: the snapshot is not a full one");
        guest.next_number("count");
    }
}

#[test]
fn snapshot_through_a_dead_socket_is_refused() {
    let scratch = Scratch::new();
    let (socket, place) = (scratch.path("api"), scratch.path("snapshot"));
    let create = || {
        let arguments = [
            "snapshot".as_ref(),
            "create".as_ref(),
            place.as_os_str(),
            "--api-socket".as_ref(),
            socket.as_os_str(),
        ];
        volt_tests::Outcome::of(arguments)
    };
    create().refused(&["socket", socket.to_str().unwrap(), "no such file"]);
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    create().refused(&["socket", socket.to_str().unwrap(), "no process listens"]);
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "").unwrap();
    create().refused(&["socket", socket.to_str().unwrap()]);
    assert_eq!(scratch.list(), ["api"]);
}

#[test]
fn api_socket_in_use_is_refused() {
    needs!(kvm);
    let guest = counting();
    let socket = guest.socket().to_str().unwrap();
    let second = || {
        let kernel = volt_tests::small_guest();
        volt_tests::Outcome::of([
            "run",
            "--kernel",
            kernel.to_str().unwrap(),
            "--cmdline",
            "hello",
            "--api-socket",
            socket,
        ])
    };
    drop(volt_tests::rest::connect(guest.socket()));
    second().refused(&["socket", socket, "another process listens"]);
    assert_eq!(guest.ask("GET", "/", "").0, 200);
}
