//! A disk of several parts: a small guest reads across their borders, and goes on in clones.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use volt_tests::{Boot, Child, Guest, Scratch, Snapshot, needs, small_guest};

/// Sectors of each part.
const SECTORS: [u64; 3] = [3, 40, 21];

/// Writes the parts. Each word of the disk has its number.
fn parts(scratch: &Scratch) -> Vec<PathBuf> {
    let mut start = 0;
    let part = |sectors| {
        let words = start..start + sectors * 64;
        start = words.end;
        let path = scratch.fresh("part");
        fs::write(&path, words.flat_map(u64::to_le_bytes).collect::<Vec<_>>()).unwrap();
        path
    };
    SECTORS.into_iter().map(part).collect()
}

fn disk(parts: &[PathBuf], more: &str) -> String {
    let parts: Vec<_> = parts.iter().map(|part| format!("part={},", part.display())).collect();
    format!("{}id=root{more}", parts.concat())
}

fn start(parts: &[PathBuf], more: &str) -> Guest {
    let mut guest = Boot::small("disk-read sectors=64").device(["--disk", &disk(parts, more)]).start();
    reads(&mut guest);
    guest
}

/// Waits until the guest has read each sector again.
fn reads(guest: &mut Guest) {
    let round = guest.next_number("round");
    while guest.next_number("round") < round + 1 {}
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
}

fn frozen(parts: &[PathBuf]) -> Snapshot {
    start(parts, ",ro").snapshot()
}

#[test]
fn guest_and_its_clones_read_across_the_borders_of_parts() {
    needs!(kvm);
    for engine in ["sync", "io_uring"] {
        for use_of_layer in ["ro", "layer"] {
            let scratch = Scratch::new();
            let parts = parts(&scratch);
            let layer = format!(",layer={}", scratch.fresh("layer").display());
            let more = if use_of_layer == "ro" { ",ro" } else { &layer };
            let mut guest = start(&parts, &format!("{more},engine={engine}"));
            let snapshot = guest.snapshot();
            let disk = &snapshot.state()["config"]["devices"]["disks"][0];
            assert_eq!((&disk["parts"], disk.get("path")), (&json!(parts), None));
            let info = guest.ask("GET", "/v1/vm", "").1;
            assert!(parts.iter().all(|part| info.contains(part.to_str().unwrap())), "{info}");
            let children = Child::fork(guest.socket(), scratch.directory(), &[("one", json!({}))], false);
            let last = guest.next_number("round");
            drop(guest); // guests that poll share this host's processors
            children[0].reaches("round", last + 2);
            assert!(!children[0].output().contains("WRONG"), "{}", children[0].output());
            drop(children);
            let mut clone = snapshot.restore();
            reads(&mut clone);
            assert_eq!(clone.ask("POST", "/v1/vm/rewinds", "{}").0, 200);
            let again = clone.snapshot();
            drop(clone);
            reads(&mut again.restore());
        }
    }
}

#[test]
fn inspection_names_the_content_of_each_part() {
    needs!(kvm);
    let scratch = Scratch::new();
    let found: Value =
        serde_json::from_str(&frozen(&parts(&scratch)).inspect(&["--json", "--summarized"])).unwrap();
    let root = &found["metadata"]["disks"]["root"];
    let bytes: Vec<_> = root["parts"].as_array().unwrap().iter().map(|part| part["bytes"].clone()).collect();
    assert_eq!(
        (bytes, &root["bytes"]),
        (SECTORS.map(|sectors| json!(sectors * 512)).to_vec(), &json!(64 * 512))
    );
}

#[test]
fn other_part_is_refused_by_its_name_at_a_restore() {
    needs!(kvm);
    let scratch = Scratch::new();
    let parts = parts(&scratch);
    let snapshot = frozen(&parts);
    reads(&mut snapshot.restore());
    let second = fs::read(&parts[1]).unwrap();
    let name = parts[1].to_str().unwrap();
    fs::remove_file(&parts[1]).unwrap();
    snapshot.try_restore().refused(&["disk", name, "No such file"]);
    let mut other = second.clone();
    other[4095] ^= 1;
    fs::write(&parts[1], &other).unwrap();
    snapshot.try_restore().refused(&["root", name, "has changed since the snapshot", "the digest of its"]);
    fs::write(&parts[1], &second[512..]).unwrap();
    snapshot.try_restore().refused(&["root", name, "it has 19968 bytes now, and had 20480"]);
    fs::write(&parts[1], &second[1..]).unwrap();
    snapshot.try_restore().refused(&["root", name, "a part has whole sectors of 512 bytes"]);
    fs::write(&parts[1], &second).unwrap();
    reads(&mut snapshot.restore());
}

#[test]
fn clone_gets_copies_of_its_parts() {
    needs!(kvm);
    let scratch = Scratch::new();
    let parts = parts(&scratch);
    let snapshot = frozen(&parts);
    let copy = |path: &PathBuf| {
        let copy = scratch.fresh("copy");
        fs::copy(path, &copy).unwrap();
        copy
    };
    let copies: Vec<_> = parts.iter().map(copy).collect();
    parts.iter().for_each(|part| fs::remove_file(part).unwrap());
    let mut clone = snapshot.restore_as(&["--disk", &disk(&copies, "")]);
    reads(&mut clone);
    let again = clone.snapshot();
    assert_eq!(again.state()["config"]["devices"]["disks"][0]["parts"], json!(copies));
    snapshot
        .try_restore_as(&["--disk", &disk(&copies[..2], "")])
        .refused(&["root", "its disk has 2 parts now, and had 3 at the snapshot"]);
    let whole = scratch.fresh("whole");
    fs::write(&whole, copies.iter().flat_map(|copy| fs::read(copy).unwrap()).collect::<Vec<_>>()).unwrap();
    let path = |path: &Path, more: &str| format!("id=root,path={}{more}", path.display());
    snapshot.try_restore_as(&["--disk", &path(&whole, "")]).refused(&["1 parts now, and had 3"]);
    reads(&mut snapshot.restore_as(&["--disk", &path(&whole, ",changed=accept")]));
}

#[test]
fn part_of_a_forged_snapshot_is_opened_only_if_given_or_allowed() {
    needs!(kvm);
    let scratch = Scratch::new();
    let parts = parts(&scratch);
    let forged = frozen(&parts).copy();
    let other = scratch.fresh("other");
    fs::copy(&parts[1], &other).unwrap();
    forged.edit(|state| state["config"]["devices"]["disks"][0]["parts"][1] = json!(other));
    forged.try_restore().refused(&["asks for disk root: ", "which is not granted", "--allow-path DIR"]);
    reads(&mut forged.restore_as(&["--allow-path", scratch.directory().to_str().unwrap()]));
    reads(&mut forged.restore_as(&["--disk", &disk(&parts, "")]));
    forged.edit(|state| state["config"]["devices"]["disks"][0]["parts"][1] = "fd:0".into());
    forged.try_restore_as(&["--allow-path", "/"]).refused(&["asks for disk root: fd:0"]);
}

#[test]
fn disk_of_parts_is_made_by_a_request_and_replaced_by_another() {
    needs!(kvm);
    for engine in ["sync", "io_uring"] {
        let scratch = Scratch::new();
        let parts = parts(&scratch);
        let mut guest = Guest::waiting();
        let disk = json!({"id": "root", "parts": parts, "read_only": true, "engine": engine});
        let boot = |disk: &Value| {
            let boot = json!({"kernel": small_guest(), "cmdline": "disk-read sectors=64"});
            json!({"boot": boot, "memory_mib": 64, "devices": {"disks": [disk]}}).to_string()
        };
        let mut written = disk.clone();
        written["read_only"] = false.into();
        let (status, answer) = guest.ask("PUT", "/v1/boot", &boot(&written));
        assert!(
            status == 400 && answer.contains("its parts are only read; make the disk read-only"),
            "{answer}"
        );
        assert_eq!(guest.ask("PUT", "/v1/boot", &boot(&disk)), (204, String::new()));
        reads(&mut guest);
        let whole = scratch.fresh("whole");
        fs::write(&whole, parts.iter().flat_map(|part| fs::read(part).unwrap()).collect::<Vec<_>>()).unwrap();
        guest.pause();
        let change = json!({"drive_id": "root", "path_on_host": whole});
        assert_eq!(guest.ask("PATCH", "/drives/root", &change.to_string()), (204, String::new()));
        guest.resume();
        let disk = &guest.snapshot().state()["config"]["devices"]["disks"][0];
        assert_eq!((disk.get("parts"), &disk["path"]), (None, &json!(whole)));
        parts.iter().for_each(|part| fs::write(part, [0; 512]).unwrap());
        reads(&mut guest);
    }
}

/// Landlock lets a confined process open what its configuration names.
#[test]
fn strict_vm_reads_its_parts_and_is_forked() {
    needs!(kvm, root);
    let (images, scratch) = (Scratch::new(), Scratch::new());
    let words = disk(&parts(&images), ",ro");
    let boot = Boot::small("disk-read sectors=64").device(["--disk", &words]).scratch(&scratch);
    let allowed = scratch.directory().to_str().unwrap();
    let mut guest = boot.device(["--confine", "strict", "--allow-path", allowed]).start();
    reads(&mut guest);
    let snapshot = guest.snapshot();
    let children = Child::fork(guest.socket(), scratch.directory(), &[("one", json!({}))], false);
    let round = guest.next_number("round");
    drop(guest);
    children[0].reaches("round", round + 2);
    assert!(!children[0].output().contains("WRONG"), "{}", children[0].output());
    reads(&mut snapshot.restore_as(&["--confine", "strict"]));
}
