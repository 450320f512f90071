//! Removers remove exactly the leftovers of killed writers.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;
use crate::testing::{ScratchDir, apart, refuse_calls};

fn names_in(scratch: &ScratchDir) -> Vec<String> {
    let entries = fs::read_dir(&scratch.0).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Makes a directory with guest memory and without a lock, as a killed writer leaves it.
fn left_behind(parent: &Path, name: &str) -> PathBuf {
    let (path, lock) = create_dir(parent, name).unwrap();
    fs::write(path.join("memory.snap"), "secret").unwrap();
    fs::set_permissions(path.join("memory.snap"), fs::Permissions::from_mode(0o400)).unwrap();
    drop(lock);
    path
}

#[test]
fn directories_without_a_writer_are_removed() {
    let scratch = ScratchDir::new();
    left_behind(&scratch.0, "warm");
    left_behind(&scratch.0, "another one.2");
    let (living, _lock) = create_dir(&scratch.0, "warm").unwrap();
    fs::write(living.join("memory.snap"), "secret").unwrap();
    remove_abandoned_dirs(&scratch.0);
    assert_eq!(names_in(&scratch), [living.file_name().unwrap().to_str().unwrap()]);
    assert_eq!(fs::read(living.join("memory.snap")).unwrap(), b"secret");
}

#[test]
fn only_files_of_the_given_name_are_removed() {
    let scratch = ScratchDir::new();
    drop(create_file(&scratch.0, "working-set", 0o400).unwrap());
    let (other, _) = create_file(&scratch.0, "set", 0o400).unwrap();
    let (living, _file) = create_file(&scratch.0, "working-set", 0o400).unwrap();
    remove_abandoned_files(&scratch.0, "working-set");
    let mut names = [&other, &living].map(|path| path.file_name().unwrap().to_str().unwrap());
    names.sort_unstable();
    assert_eq!(names_in(&scratch), names);
    remove_all_abandoned_files(&scratch.0);
    assert_eq!(names_in(&scratch), names[1..]);
}

#[test]
fn entries_of_other_names_kinds_or_modes_stay() {
    let (scratch, elsewhere) = (ScratchDir::new(), ScratchDir::new());
    let hex = "0123456789abcdef0123456789abcdef";
    for name in [
        "warm".to_owned(),
        format!("warm.{hex}.partial"),
        format!(".{hex}.partial"),
        format!("..{hex}.partial"),
        format!(".warm.{hex}"),
        format!(".warm.{}.partial", &hex[1..]),
        format!(".warm.{}.partial", hex.to_uppercase()),
        format!(".warm-{hex}.partial"),
        ".partial".to_owned(),
    ] {
        fs::create_dir(scratch.0.join(&name)).unwrap();
        fs::set_permissions(scratch.0.join(name), fs::Permissions::from_mode(0o700)).unwrap();
    }
    let to = left_behind(&elsewhere.0, "warm");
    symlink(&to, scratch.0.join(format!(".linked.{hex}.partial"))).unwrap();
    fs::write(scratch.0.join(format!(".file.{hex}.partial")), "").unwrap();
    let open_to_others = left_behind(&scratch.0, "shared");
    fs::set_permissions(&open_to_others, fs::Permissions::from_mode(0o755)).unwrap();
    // Our writers make no nested directories.
    let deep = left_behind(&scratch.0, "deep");
    fs::create_dir(deep.join("inner")).unwrap();
    let linking = left_behind(&scratch.0, "linking");
    symlink(&elsewhere.0, linking.join("link")).unwrap();
    let fifo = scratch.0.join(format!(".fifo.{hex}.partial"));
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    if rustix::process::geteuid().is_root() {
        let foreign = left_behind(&scratch.0, "foreign");
        std::os::unix::fs::chown(&foreign, Some(65534), None).unwrap();
    }
    let before = names_in(&scratch);
    remove_abandoned_dirs(&scratch.0);
    remove_abandoned_files(&scratch.0, "fifo");
    assert_eq!(names_in(&scratch), before);
    for stays in [&deep, &linking, &open_to_others, &to] {
        assert_eq!(fs::read(stays.join("memory.snap")).unwrap(), b"secret", "{}", stays.display());
    }
}

#[test]
fn writer_takes_another_name_after_a_removal_before_its_lock() {
    let scratch = ScratchDir::new();
    let mut first = true;
    let make = {
        let first = std::cell::RefCell::new(&mut first);
        move |path: &Path| {
            paths::make_dir(path, 0o700)?;
            let opened = File::open(path);
            if std::mem::take(&mut **first.borrow_mut()) {
                remove_abandoned_dirs(path.parent().unwrap());
                assert!(!path.exists(), "the unlocked directory is removed");
            }
            opened
        }
    };
    let (path, _lock) = create(&scratch.0, "warm", make, paths::remove_dir).unwrap();
    assert_eq!(names_in(&scratch), [path.file_name().unwrap().to_str().unwrap()]);
}

/// Each writer finds its files, published or not, and the removers remove abandoned files only.
#[test]
fn concurrent_removers_keep_files_of_living_writers() {
    let (scratch, over) = (ScratchDir::new(), AtomicBool::new(false));
    let write = |writer: usize| {
        for round in 0..200 {
            let (path, lock) = create_dir(&scratch.0, "warm").unwrap();
            let file = path.join("memory.snap");
            fs::write(&file, "secret").unwrap();
            thread::yield_now();
            assert_eq!(fs::read(&file).unwrap(), b"secret");
            if round % 2 == 0 {
                let place = scratch.0.join(format!("{writer}-{round}"));
                fs::rename(&path, &place).unwrap();
                drop(lock);
                assert_eq!(fs::read(place.join("memory.snap")).unwrap(), b"secret");
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    remove_abandoned_dirs(&scratch.0);
                }
            });
        }
        let writers: Vec<_> = (0..3).map(|writer| scope.spawn(move || write(writer))).collect();
        let ended: Vec<_> = writers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|writer| writer.unwrap());
    });
    remove_abandoned_dirs(&scratch.0);
    let names = names_in(&scratch);
    assert_eq!(names.len(), 300, "{names:?}");
    for name in names {
        assert_eq!(fs::read(scratch.0.join(name).join("memory.snap")).unwrap(), b"secret");
    }
}

#[test]
fn directory_that_cannot_be_opened_or_locked_is_removed() {
    static OPENS: [libc::c_long; 2] = [libc::SYS_open, libc::SYS_openat];
    for (calls, errno) in [(&[libc::SYS_flock][..], libc::EIO), (&OPENS, libc::EMFILE)] {
        apart(move || {
            let scratch = ScratchDir::new();
            refuse_calls(calls, errno);
            let error = create_dir(&scratch.0, "warm").unwrap_err();
            assert_eq!(error.raw_os_error(), Some(errno));
            let left = fs::remove_dir(&scratch.0);
            assert!(left.is_ok(), "the directory is left behind: {left:?}");
        });
    }
}

/// A remover would take a file without a lock for a leftover.
#[test]
fn writer_without_a_lock_is_refused_where_the_file_system_has_locks() {
    for errno in [libc::EIO, libc::ENOMEM, libc::ENOSPC] {
        apart(move || {
            let scratch = ScratchDir::new();
            refuse_calls(&[libc::SYS_flock], errno);
            assert_eq!(create_file(&scratch.0, "set", 0o400).unwrap_err().raw_os_error(), Some(errno));
        });
    }
    apart(|| {
        let scratch = ScratchDir::new();
        refuse_calls(&[libc::SYS_flock], libc::EOPNOTSUPP);
        create_file(&scratch.0, "set", 0o400).unwrap();
    });
}
