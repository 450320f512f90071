//! A snapshot's host paths are requests. They are granted to this user's own snapshots. Other snapshots get
//! only the paths that the restore gives or allows.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use volt_tests::program::binary;
use volt_tests::{Boot, Guest, Outcome, Scratch, Snapshot, needs, output, wait_until};
use volt_vmm::snapshot::{PACK_FILE, STATE_FILE};

use crate::snapshot::benching::record;

const REFUSED: &str = "which is not granted, because its state.json";

/// A snapshot of a guest that writes to a layer over `image`, so any number of clones can go on.
struct WithDisk {
    scratch: Scratch,
    image: PathBuf,
    snapshot: Snapshot,
}

impl WithDisk {
    fn new() -> Self {
        let scratch = Scratch::new();
        let image = scratch.path("image");
        fs::write(&image, vec![7; 64 << 10]).unwrap();
        let words = format!("path={},layer={},id=root", image.display(), scratch.path("layer").display());
        let boot = Boot::small("disk").memory("2M").scratch(&scratch);
        let mut guest = boot.device(["--disk".to_owned(), words]).start();
        while guest.next_number("sector") < 70 {}
        guest.pause();
        let snapshot = guest.snapshot();
        Self { scratch, image, snapshot }
    }

    /// Copies the snapshot and forges the path of its disk.
    fn forged(&self, path: &str) -> Snapshot {
        let forged = self.snapshot.copy();
        forged.edit(|state| state["config"]["devices"]["disks"][0]["path"] = path.into());
        forged
    }

    /// Makes a file that no snapshot should get.
    fn victim(&self) -> PathBuf {
        let directory = self.scratch.path("private");
        fs::create_dir(&directory).unwrap();
        fs::copy(&self.image, directory.join("victim")).unwrap();
        directory.join("victim")
    }
}

fn goes_on(mut guest: Guest) {
    let number = guest.next_number("sector");
    while guest.next_number("sector") < number + 70 {}
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
}

/// Runs `volt-vmm` as a user with the key in this directory.
fn as_user_of(data: &Path, arguments: &[&str]) -> Outcome {
    let mut command = Command::new(binary());
    Outcome::of_command(command.args(arguments).env("VOLT_DATA_DIR", data))
}

#[test]
fn forged_disk_is_opened_only_if_given_or_allowed() {
    needs!(kvm);
    let with_disk = WithDisk::new();
    let victim = with_disk.victim();
    let before = fs::read(&victim).unwrap();
    let forged = with_disk.forged(victim.to_str().unwrap());
    let words =
        ["asks for disk root: ", "private/victim", REFUSED, "--disk id=root,path=PATH", "--allow-path DIR"];
    forged.try_restore().refused(&words);
    let other = with_disk.scratch.path("snapshot");
    forged.try_restore_as(&["--allow-path", other.to_str().unwrap()]).refused(&words);
    assert_eq!(fs::read(&victim).unwrap(), before);
    let given = format!("id=root,path={}", with_disk.image.display());
    goes_on(forged.restore_as(&["--disk", &given]));
    goes_on(forged.restore_as(&["--allow-path", victim.parent().unwrap().to_str().unwrap()]));
    // Without its layer the guest would write to the victim.
    forged
        .edit(|state| drop(state["config"]["devices"]["disks"][0].as_object_mut().unwrap().remove("layer")));
    forged.try_restore().refused(&words);
    assert_eq!(fs::read(&victim).unwrap(), before);
}

#[test]
fn allow_paths_over_rest_grant_a_forged_disk() {
    needs!(kvm);
    let with_disk = WithDisk::new();
    let victim = with_disk.victim();
    let forged = with_disk.forged(victim.to_str().unwrap());
    let load = |allowed: &[&Path]| {
        let load = json!({"snapshot_path": forged.directory(), "resume_vm": true, "allow_paths": allowed});
        let waiting = Guest::waiting();
        let answer = waiting.ask("PUT", "/snapshot/load", &load.to_string());
        (waiting, answer)
    };
    for elsewhere in [&[][..], &[forged.directory()]] {
        let (_waiting, (status, answer)) = load(elsewhere);
        assert!(status == 400 && answer.contains("asks for disk root: "), "{answer}");
        assert!(answer.contains(REFUSED) && answer.contains("private/victim"), "{answer}");
    }
    let (guest, answer) = load(&[forged.directory(), victim.parent().unwrap()]);
    assert_eq!(answer, (204, String::new()));
    goes_on(guest);
}

/// Packs a snapshot with tar and unpacks it in another directory.
fn untarred(snapshot: &Snapshot, scratch: &Scratch) -> Snapshot {
    let run = |command: &mut Command| assert!(output(command).status.success(), "{command:?}");
    let (archive, unpacked) = (scratch.fresh("archive.tar"), scratch.fresh("unpacked"));
    run(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(snapshot.directory()).arg("."));
    fs::create_dir(&unpacked).unwrap();
    run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&unpacked));
    Snapshot::at(unpacked, scratch)
}

#[test]
fn forgery_from_an_archive_gets_no_file_of_this_host() {
    needs!(kvm);
    let with_disk = WithDisk::new();
    let victim = with_disk.victim();
    let before = fs::read(&victim).unwrap();
    // An absolute path, and links that lead out of the archive.
    let forged = with_disk.forged(victim.to_str().unwrap());
    let links = with_disk.forged("");
    symlink(&victim, links.directory().join("link")).unwrap();
    for (forged, inside) in [(&forged, None), (&links, Some("link"))] {
        let unpacked = untarred(forged, &with_disk.scratch);
        if let Some(name) = inside {
            let path = unpacked.directory().join(name);
            unpacked.edit(|state| state["config"]["devices"]["disks"][0]["path"] = path.to_str().into());
        }
        unpacked.try_restore().refused(&["asks for disk root: ", REFUSED]);
        // A state without a mark gets nothing either.
        unpacked.edit(|state| drop(state.as_object_mut().unwrap().remove("mark")));
        unpacked.try_restore().refused(&["asks for disk root: ", "its state.json has no mark"]);
    }
    let passt = with_disk.snapshot.copy();
    let backend = json!({"passt": {"forward": [[2222, 22]]}});
    passt.edit(|state| {
        state["config"]["devices"] = json!({"networks": [{"id": "eth0", "backend": backend}]});
    });
    untarred(&passt, &with_disk.scratch).try_restore().refused(&["with ports 2222", REFUSED]);
    // The archive has the snapshot's own files, so the genuine one goes on.
    goes_on(untarred(&with_disk.snapshot, &with_disk.scratch).restore());
    assert_eq!(fs::read(&victim).unwrap(), before);
}

#[test]
fn forged_diff_from_an_archive_needs_its_base_allowed() {
    needs!(kvm);
    let scratch = Scratch::new();
    let mut guest = Guest::boot("count mib=1");
    guest.wait_for("count");
    let base = guest.snapshot();
    let diff = guest.snapshot_as(&["--diff"]);
    drop(guest);
    diff.edit(|state| state["metadata"]["id"] = "0".repeat(32).into());
    let unpacked = untarred(&diff, &scratch);
    let words = ["asks for its base ", base.directory().to_str().unwrap(), REFUSED, "--allow-path DIR"];
    unpacked.try_restore().refused(&words);
    unpacked.verify().refused(&words);
    unpacked.restore_as(&["--allow-path", base.directory().to_str().unwrap()]).wait_for("count");
}

#[test]
fn own_snapshot_is_restored_after_a_copy_or_move() {
    needs!(kvm, page_faults);
    let WithDisk { scratch, snapshot, .. } = WithDisk::new();
    goes_on(snapshot.copy().restore());
    let moved = Snapshot::at(scratch.path("moved"), &scratch);
    fs::rename(snapshot.directory(), moved.directory()).unwrap();
    goes_on(moved.restore());
    goes_on(moved.converted(&["--compress", "lz4"]).restore());
}

#[test]
fn snapshot_of_another_user_or_without_a_mark_needs_grants() {
    needs!(kvm);
    let WithDisk { scratch, image, snapshot } = WithDisk::new();
    let directory = snapshot.directory().to_str().unwrap();
    let data = scratch.path("data");
    let restore = |words: &[&str]| {
        as_user_of(&data, &["restore", directory]).refused(words);
    };
    restore(&["asks for disk root: ", "this user has no key"]);
    // The other user's volt-vmm converts the snapshot, which does not make it its own.
    let again = scratch.path("again");
    let convert = ["snapshot", "convert", directory, again.to_str().unwrap(), "--compress", "none"];
    as_user_of(&data, &convert).succeeded();
    let again = Snapshot::at(again, &scratch);
    assert_eq!(again.state().get("mark"), None);
    again.try_restore().refused(&["disk root", "its state.json has no mark that proves its author"]);
    // A key that others know proves nothing.
    let key = data.join("snapshot.key");
    fs::create_dir_all(key.parent().unwrap()).unwrap();
    fs::write(&key, [7; 32]).unwrap();
    restore(&["snapshot.key cannot be used", "mode 0600"]);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    restore(&["its state.json was changed, or written by another user or host"]);
    // Once the disk is given, this user's next snapshot is granted it.
    let given = format!("id=root,path={}", image.display());
    let mut guest = again.restore_as(&["--disk", &given]);
    guest.next_number("sector");
    let own = guest.snapshot();
    drop(guest);
    goes_on(own.restore());
}

#[test]
fn forged_snapshot_needs_its_networks_and_sockets_given() {
    needs!(kvm);
    let WithDisk { scratch, snapshot, .. } = WithDisk::new();
    let passt = json!([{"id": "eth0", "backend": {"passt": {"forward": [[2222, 22]]}}}]);
    let socket = scratch.path("stolen");
    let socket = socket.to_str().unwrap();
    for (field, value, words) in [
        (
            "networks",
            json!([{"id": "eth0", "backend": {"tap": "tap7"}}]),
            ["network eth0: tap tap7", "--net id=eth0,tap=NAME"],
        ),
        ("networks", passt, ["with ports 2222", "--net id=eth0,passt,forward="]),
        ("vsock", json!({"cid": 3, "socket": socket}), ["vsock socket /", "--vsock socket=PATH"]),
        ("console", json!({"socket": socket}), ["console socket /", "--console SOCKET"]),
    ] {
        let forged = snapshot.copy();
        forged.edit(|state| state["config"]["devices"] = json!({ field: value }));
        forged.try_restore().refused(&[&words[..], &[REFUSED]].concat());
    }
    assert!(!Path::new(socket).exists());
}

#[test]
fn descriptor_is_never_taken_from_a_file_or_a_request() {
    needs!(kvm);
    let with_disk = WithDisk::new();
    let forged = with_disk.forged("fd:0");
    let here = with_disk.scratch.directory().to_str().unwrap();
    forged
        .try_restore_as(&["--allow-path", here])
        .refused(&["asks for disk root: fd:0", "--disk id=root,path=PATH"]);
    let waiting = Guest::waiting();
    let load = json!({
        "snapshot_path": with_disk.snapshot.directory(),
        "overrides": {"disks": [{"id": "root", "path": "fd:0"}]},
    });
    let (status, answer) = waiting.ask("PUT", "/snapshot/load", &load.to_string());
    assert!(status == 400 && answer.contains("and not a file or a request"), "{answer}");
    let boot = json!({"boot": {"kernel": "fd:0"}});
    let (status, answer) = waiting.ask("PUT", "/v1/boot", &boot.to_string());
    assert!(status == 400 && answer.contains("and not a file or a request"), "{answer}");
    let load = json!({"snapshot_path": forged.directory(), "allow_paths": [here]});
    let (status, answer) = waiting.ask("PUT", "/snapshot/load", &load.to_string());
    assert!(status == 400 && answer.contains("asks for disk root: fd:0"), "{answer}");
}

#[test]
fn disk_inside_the_snapshot_needs_no_grant_unless_it_is_a_link() {
    needs!(kvm);
    let with_disk = WithDisk::new();
    let victim = with_disk.victim();
    let forged = with_disk.forged("");
    let inside = |name: &str| forged.directory().join(name);
    symlink(&victim, inside("link")).unwrap();
    fs::hard_link(&victim, inside("hard")).unwrap();
    symlink("..", inside("up")).unwrap();
    fs::copy(&with_disk.image, inside("own")).unwrap();
    let name_disk = |name: &str| {
        let path = inside(name);
        forged.edit(|state| state["config"]["devices"]["disks"][0]["path"] = path.to_str().into());
    };
    for name in ["link", "hard", "../private/victim", "up/private/victim"] {
        name_disk(name);
        forged.try_restore().refused(&["asks for disk root: ", REFUSED]);
    }
    name_disk("own");
    goes_on(forged.restore());
    // A link in place of the memory file is refused, too.
    fs::rename(forged.memory_path(), with_disk.scratch.path("elsewhere")).unwrap();
    symlink(with_disk.scratch.path("elsewhere"), forged.memory_path()).unwrap();
    forged.try_restore().refused(&["memory.snap", "is a symbolic link"]);
}

#[test]
fn forged_diff_needs_its_base_allowed() {
    needs!(kvm);
    let mut guest = Guest::boot("count mib=1");
    guest.wait_for("count");
    let base = guest.snapshot();
    let diff = guest.snapshot_as(&["--diff"]);
    drop(guest);
    diff.restore().wait_for("count");
    diff.edit(|state| state["metadata"]["id"] = "0".repeat(32).into());
    let words = ["asks for its base ", base.directory().to_str().unwrap(), REFUSED, "--allow-path DIR"];
    diff.try_restore().refused(&words);
    // The error does not reveal whether an ungranted directory exists.
    let moved = base.directory().with_extension("moved");
    fs::rename(base.directory(), &moved).unwrap();
    diff.try_restore().refused(&words);
    diff.verify().refused(&words);
    fs::rename(&moved, base.directory()).unwrap();
    let scratch = Scratch::new();
    let to = scratch.path("merged");
    let merge = ["snapshot", "merge", diff.directory().to_str().unwrap(), to.to_str().unwrap()];
    Outcome::of(merge).refused(&words);
    assert!(!to.exists());
    diff.verify().refused(&words);
    record(&diff, diff.directory());
    let bench = ["snapshot", "bench", "--rounds", "1", diff.directory().to_str().unwrap()];
    Outcome::of(bench).refused(&words);
    let allow = ["--allow-path", base.directory().to_str().unwrap()];
    diff.verify_as(&allow).succeeded();
    Outcome::of(bench.into_iter().chain(allow)).succeeded();
    Outcome::of(merge.into_iter().chain(allow)).succeeded();
    diff.restore_as(&allow).wait_for("count");
}

#[test]
fn guest_of_an_unpacked_snapshot_reaches_no_socket_through_a_link() {
    needs!(kvm);
    let scratch = Scratch::new();
    let words = format!("cid=5,socket={}", scratch.path("vsock").display());
    let mut guest = Boot::small("vsock").scratch(&scratch).device(["--vsock".to_owned(), words]).start();
    guest.next_number("cid");
    let snapshot = guest.snapshot();
    drop(guest);
    // The archive has a link to a daemon's socket on the host that unpacks it.
    let daemon = UnixListener::bind(scratch.path("daemon")).unwrap();
    daemon.set_nonblocking(true).unwrap();
    let unpacked = Snapshot::at(scratch.path("unpacked"), &scratch);
    let socket = unpacked.directory().join("vsock");
    snapshot.edit(|state| state["config"]["devices"]["vsock"]["socket"] = socket.to_str().into());
    symlink(scratch.path("daemon"), snapshot.directory().join("vsock_2000")).unwrap();
    let run = |command: &mut Command| assert!(output(command).status.success(), "{command:?}");
    let archive = scratch.path("archive.tar");
    run(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(snapshot.directory()).arg("."));
    fs::create_dir(unpacked.directory()).unwrap();
    run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(unpacked.directory()));
    let allow = ["--allow-path", scratch.directory().to_str().unwrap()];
    for more in [&[][..], &allow] {
        let mut clone = unpacked.restore_as(more);
        clone.next_line("reset");
        clone.type_in("c");
        let messages = || clone.stderr();
        wait_until("the link is not followed", || messages().contains("is a link or not a socket"));
        assert_eq!(daemon.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }
}

#[test]
fn links_in_place_of_memory_reveal_no_host_file() {
    needs!(kvm);
    let mut guest = Guest::boot("count");
    guest.wait_for("count");
    let snapshot = guest.snapshot();
    drop(guest);
    let pack = snapshot.directory().join(PACK_FILE);
    for target in [snapshot.directory().join(STATE_FILE), "/nothing/at/all".into()] {
        symlink(target, &pack).unwrap();
        snapshot.verify().refused(&["memory.pack", "lies beside a memory.snap"]);
        fs::remove_file(&pack).unwrap();
    }
}

#[test]
fn granted_base_beside_a_diff_replaces_an_unusable_recorded_one() {
    needs!(kvm);
    let mut guest = Guest::boot("count mib=1");
    guest.wait_for("count");
    let base = guest.snapshot();
    let diff = guest.snapshot_as(&["--diff"]);
    let other = guest.snapshot();
    let near = guest.scratch().path("near");
    drop(guest);
    fs::create_dir(&near).unwrap();
    let beside = near.join(base.directory().file_name().unwrap());
    fs::rename(base.copy().directory(), &beside).unwrap();
    fs::rename(diff.directory(), near.join("diff")).unwrap();
    let diff = Snapshot::at(near.join("diff"), &Scratch::new());
    // The diff is this user's own, but the recorded path holds another snapshot now.
    fs::rename(base.directory(), near.join("moved")).unwrap();
    fs::rename(other.directory(), base.directory()).unwrap();
    diff.restore().wait_for("count");
    diff.verify().succeeded();
    // The diff is not this user's own.
    diff.edit(|state| state["metadata"]["id"] = "0".repeat(32).into());
    let words = ["asks for its base ", base.directory().to_str().unwrap(), REFUSED, "--allow-path DIR"];
    diff.try_restore().refused(&words);
    diff.restore_as(&["--allow-path", near.to_str().unwrap()]).wait_for("count");
    diff.verify_as(&["--allow-path", near.to_str().unwrap()]).succeeded();
}
