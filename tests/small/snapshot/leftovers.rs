//! The next act in a directory removes files of killed processes and keeps those of living ones.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use volt_tests::program::binary;
use volt_tests::scratch::list;
use volt_tests::{Guest, Outcome, Scratch, Snapshot, limited, needs, processes_with, wait_until};

/// Options that make packing slow enough to stop it.
const SLOW: [&str; 4] = ["--compress", "zstd:19", "--chunk-size", "2M"];
/// `ulimit -f` counts blocks of 512 bytes: 8 KiB.
const SMALL_FILES: &str = "ulimit -c 0; ulimit -f 16; exec \"$0\" \"$@\"";

/// Boots a guest that has written all of its memory.
fn counting() -> Guest {
    let mut guest = Guest::boot("count mib=16");
    guest.wait_for("count 68");
    guest
}

/// Makes an empty directory for snapshots.
fn store(scratch: &Scratch) -> PathBuf {
    let store = scratch.fresh("store");
    fs::create_dir(&store).unwrap();
    store
}

/// Lists the temporary directories of a store.
fn partial(store: &Path) -> Vec<String> {
    list(store).into_iter().filter(|name| name.starts_with('.') && name.ends_with(".partial")).collect()
}

fn spawn<S: AsRef<OsStr>>(words: impl IntoIterator<Item = S>) -> Child {
    let mut command = Command::new(binary());
    command.args(words).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

fn convert(snapshot: &Snapshot, to: &Path, options: &[&str]) -> Child {
    let words = ["snapshot".as_ref(), "convert".as_ref(), snapshot.directory().as_os_str(), to.as_os_str()];
    spawn(words.into_iter().chain(options.iter().map(OsStr::new)))
}

/// Stops the writer once packed memory is in `store`, checks that another act keeps it, then kills the
/// writer. The other act converts `snapshot`.
fn is_kept_while_its_writer_lives(writer: Pid, store: &Path, snapshot: &Snapshot) {
    let has_memory = || {
        let pack = |name: &String| fs::metadata(store.join(name).join("memory.pack"));
        partial(store).first().is_some_and(|name| pack(name).is_ok_and(|pack| pack.len() > 0))
    };
    wait_until("memory is written", has_memory);
    kill_process(writer, Signal::STOP).unwrap();
    let (left, before) = (partial(store), list(store));
    assert_eq!((left.len(), before.len()), (1, 1), "the writer was stopped too late: {before:?}");
    snapshot.try_convert(&store.join("other"), &["--compress", "lz4"]).succeeded();
    assert_eq!(partial(store), left, "files of a living writer were removed");
    assert!(has_memory());
    kill_process(writer, Signal::KILL).unwrap();
}

#[test]
fn next_act_removes_the_snapshot_of_a_killed_vm() {
    needs!(kvm);
    let guest = counting();
    let snapshot = guest.snapshot();
    let store = store(guest.scratch());
    let words = ["snapshot".as_ref(), "create".as_ref(), "--api-socket".as_ref(), guest.socket().as_os_str()];
    let place = store.join("warm");
    let mut client = spawn(words.into_iter().chain(SLOW.map(OsStr::new)).chain([place.as_os_str()]));
    let vm = Pid::from_raw(guest.pid().try_into().unwrap()).unwrap();
    is_kept_while_its_writer_lives(vm, &store, &snapshot);
    guest.kill();
    assert!(!limited("the client of the killed VM ends", || client.wait()).unwrap().success());
    assert_eq!(partial(&store).len(), 1);
    snapshot.try_convert(&place, &["--compress", "lz4"]).succeeded();
    assert_eq!(list(&store), ["other", "warm"]);
}

#[test]
fn next_act_removes_a_killed_conversion() {
    needs!(kvm);
    let guest = counting();
    let (snapshot, store) = (guest.snapshot(), store(guest.scratch()));
    let mut writer = convert(&snapshot, &store.join("packed"), &SLOW);
    is_kept_while_its_writer_lives(Pid::from_child(&writer), &store, &snapshot);
    limited("the killed conversion ends", || writer.wait()).unwrap();
    assert_eq!(partial(&store).len(), 1);
    guest.try_snapshot(&store.join("packed")).succeeded();
    assert_eq!(list(&store), ["other", "packed"]);
}

/// SIGXFSZ kills a process during a write.
#[test]
fn next_act_removes_a_merge_or_conversion_that_died() {
    needs!(kvm);
    let mut guest = counting();
    let base = guest.snapshot();
    guest.next_number("count");
    let diff = guest.snapshot_as(&["--diff"]);
    for (act, from, options) in [
        ("merge", &diff, &[][..]),
        ("convert", &base, &["--compress", "none"]),
        ("convert", &base, &["--compress", "lz4"]),
    ] {
        let store = store(guest.scratch());
        let to = store.join("made");
        let words = ["snapshot".as_ref(), act.as_ref(), from.directory().as_os_str(), to.as_os_str()];
        let words: Vec<_> = words.into_iter().chain(options.iter().map(OsStr::new)).collect();
        let mut limits = Command::new("sh");
        limits.args(["-c", SMALL_FILES]).arg(binary()).args(&words);
        let died = Outcome::of_command(&mut limits);
        assert_eq!(died.status, -25, "{act} {options:?}: {died:?}");
        assert_eq!((partial(&store).len(), list(&store).len()), (1, 1), "{act} {options:?}");
        Outcome::of(&words).succeeded();
        assert_eq!(list(&store), ["made"], "{act} {options:?}");
    }
}

#[test]
fn concurrent_acts_remove_leftovers_and_keep_each_others_files() {
    needs!(kvm);
    let guest = counting();
    let (snapshot, store) = (guest.snapshot(), store(guest.scratch()));
    let left = store.join(".warm.0123456789abcdef0123456789abcdef.partial");
    let mut private = fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut private, 0o700).create(&left).unwrap();
    fs::write(left.join("memory.snap"), "secret").unwrap();
    let names = ["a", "b", "c", "d"];
    let acts = names.map(|name| convert(&snapshot, &store.join(name), &["--compress", "zstd"]));
    for mut act in acts {
        assert!(limited("a conversion ends", || act.wait()).unwrap().success());
    }
    assert_eq!(list(&store), names);
}

#[test]
fn next_pager_removes_socket_and_lock_of_a_killed_one() {
    needs!(kvm, page_faults);
    let guest = counting();
    let snapshot = guest.snapshot();
    let directory = guest.scratch().path("pagers");
    let restore = || {
        let packed = snapshot.converted(&["--compress", "lz4"]);
        packed.restore_as(&["--pager", "shared", "--pager-dir", directory.to_str().unwrap()])
    };
    let mut killed = restore();
    killed.next_number("count");
    let left = list(&directory);
    assert_eq!(left.len(), 2, "{left:?}");
    drop(killed);
    wait_until("the pager is killed", || {
        let pagers = processes_with(&directory);
        for pager in &pagers {
            let _ = kill_process(*pager, Signal::KILL);
        }
        pagers.is_empty()
    });
    assert_eq!(list(&directory), left);
    fs::write(directory.join("pager-of-nobody"), "").unwrap();
    let mut living = restore();
    wait_until("the files of the killed pager are removed", || {
        let names = list(&directory);
        names.len() == 3 && left.iter().all(|name| !names.contains(name))
    });
    let of_living = list(&directory);
    let mut another = restore();
    for guest in [&mut living, &mut another] {
        guest.next_number("count");
    }
    let names = list(&directory);
    assert_eq!(names.len(), 5, "{names:?}");
    assert!(of_living.iter().all(|name| names.contains(name)), "{of_living:?} {names:?}");
}

#[test]
fn pager_of_another_group_removes_files_of_a_killed_one() {
    needs!(kvm, page_faults);
    let guest = counting();
    let snapshot = guest.snapshot();
    let directory = guest.scratch().path("pagers");
    let restore = |group: &str| {
        let packed = snapshot.converted(&["--compress", "lz4"]);
        let place = ["--pager-dir", directory.to_str().unwrap(), "--pager-group", group];
        packed.restore_as(&[["--pager", "shared"].as_slice(), &place].concat())
    };
    let mut killed = restore("old");
    killed.next_number("count");
    assert_eq!(list(&directory.join("group-old")).len(), 2);
    drop(killed);
    wait_until("the pager is killed", || {
        let pagers = processes_with(&directory);
        for pager in &pagers {
            let _ = kill_process(*pager, Signal::KILL);
        }
        pagers.is_empty()
    });
    assert_eq!(list(&directory.join("group-old")).len(), 2);
    let mut living = restore("new");
    // The directory stays, because a jail may have mounted it.
    wait_until("the files of the killed pager are removed", || list(&directory.join("group-old")).is_empty());
    living.next_number("count");
    assert_eq!(list(&directory.join("group-new")).len(), 2);
}
