//! Trees on their way from one directory into another.

use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Permissions};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, Mode, XattrFlags, mkfifoat, setxattr, utimensat};

use super::attributes::times;
use super::header::{Header, Kind};
use super::scratch::{KEPT, Scratch, described, packed, unpacked};
use super::{Options, Owner, Source, content};

/// Numbers that a test may give to files: others need root.
fn owner() -> (u32, u32) {
    let user = rustix::process::geteuid();
    if user.is_root() { (1234, 5678) } else { (user.as_raw(), rustix::process::getegid().as_raw()) }
}

fn set_time(path: &Path, nanoseconds: u64) {
    let time = UNIX_EPOCH + Duration::from_nanos(nanoseconds);
    File::open(path).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
}

/// Makes a tree with an entry of each kind.
fn make(root: &Path) {
    let (user, group) = owner();
    fs::create_dir_all(root.join("below/deep")).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    fs::write(root.join("below/file"), "content").unwrap();
    fs::write(root.join("below/none"), "").unwrap();
    fs::write(root.join(OsStr::from_bytes(b"odd \xff\n%")), "odd").unwrap();
    fs::hard_link(root.join("below/file"), root.join("second")).unwrap();
    fs::hard_link(root.join("below/file"), root.join("below/deep/third")).unwrap();
    symlink("../missing", root.join("below/link")).unwrap();
    symlink("/etc", root.join("absolute")).unwrap();
    mkfifoat(CWD, root.join("fifo"), Mode::RUSR | Mode::WGRP).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"first", 1 << 20).unwrap();
    sparse.write_all_at(b"second", 5 << 20).unwrap();
    sparse.set_len(9 << 20).unwrap();
    for name in ["below/file", "below/none", "empty"] {
        chown(root.join(name), Some(user), Some(group)).unwrap();
    }
    lchown(root.join("below/link"), Some(user), Some(group)).unwrap();
    // It is larger than what one system call needs, and has bytes that are no text.
    let value: Vec<u8> = (0..=255).cycle().take(1000).collect();
    for name in ["below/file", "empty"] {
        setxattr(root.join(name), "user.volt", &value, XattrFlags::empty()).unwrap();
    }
    if rustix::process::geteuid().is_root() {
        let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        setxattr(root.join("below/none"), "security.capability", &capability, XattrFlags::empty()).unwrap();
    }
    for (name, mode) in [("below/file", 0o4751), ("empty", 0o3555), ("below/deep", 0o500), ("sparse", 0)] {
        fs::set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
    }
    utimensat(CWD, root.join("below/link"), &times((-7, 5)), AtFlags::SYMLINK_NOFOLLOW).unwrap();
    set_time(&root.join("below/file"), 1_234_567_890_123_456_789);
    set_time(&root.join("below"), 987_654_321_000_000_001);
    set_time(root, 1);
}

#[test]
fn tree_keeps_all_that_it_had() {
    let scratch = Scratch::new();
    make(&scratch.path("from/tree"));
    fs::create_dir(scratch.path("to")).unwrap();
    let result = unpacked(&packed(&scratch.path("from/tree")), &scratch.path("to"), &KEPT);
    assert_eq!(result, (Ok(()), Vec::new()));
    let (from, to) = (described(&scratch.path("from")), described(&scratch.path("to")));
    assert!(from.len() == 13, "{}", from.len());
    assert_eq!(from, to);
}

#[test]
fn holes_are_neither_sent_nor_filled() {
    let scratch = Scratch::new();
    let sparse = File::create(scratch.path("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    sparse.write_all_at(b"end", (1 << 40) - 3).unwrap();
    let stream = packed(&scratch.path("sparse"));
    assert!(stream.len() < 16 << 10, "{}", stream.len());
    fs::create_dir(scratch.path("to")).unwrap();
    assert_eq!(unpacked(&stream, &scratch.path("to"), &KEPT).0, Ok(()));
    let copy = fs::metadata(scratch.path("to/sparse")).unwrap();
    assert!(copy.len() == 1 << 40 && copy.blocks() < 64, "{copy:?}");
}

#[test]
fn existing_directory_stays_and_existing_file_is_replaced() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.path("tree/below")).unwrap();
    fs::write(scratch.path("tree/below/file"), "new").unwrap();
    fs::create_dir_all(scratch.path("to/other/below")).unwrap();
    fs::write(scratch.path("outside"), "outside").unwrap();
    symlink(scratch.path("outside"), scratch.path("to/other/below/file")).unwrap();
    fs::write(scratch.path("to/other/below/stays"), "").unwrap();
    fs::set_permissions(scratch.path("to/other"), Permissions::from_mode(0o700)).unwrap();
    let stream = packed(&scratch.path("tree"));
    for (directory, name) in [("to", "other"), ("to/other", ".")] {
        let options = Options { name: Some(OsStr::new(name)), owner: Owner::Process };
        assert_eq!(unpacked(&stream, &scratch.path(directory), &options).0, Ok(()));
        assert_eq!(fs::read_to_string(scratch.path("to/other/below/file")).unwrap(), "new");
        assert!(!scratch.path("to/other/below/file").is_symlink());
        fs::write(scratch.path("to/other/below/file"), "old").unwrap();
    }
    assert_eq!(fs::read_to_string(scratch.path("outside")).unwrap(), "outside");
    assert!(scratch.path("to/other/below/stays").exists());
    assert_eq!(fs::metadata(scratch.path("to/other")).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn same_tree_twice_leaves_no_temporary_names() {
    let scratch = Scratch::new();
    make(&scratch.path("tree"));
    fs::create_dir(scratch.path("to")).unwrap();
    let stream = packed(&scratch.path("tree"));
    for _ in 0..2 {
        assert_eq!(unpacked(&stream, &scratch.path("to"), &KEPT).0, Ok(()));
    }
    let names: Vec<_> = described(&scratch.path("to")).into_keys().collect();
    assert_eq!(names.len(), 13, "{names:?}");
}

#[test]
fn symlink_is_the_entry_unless_it_is_followed() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("real")).unwrap();
    fs::write(scratch.path("real/file"), "content").unwrap();
    symlink("real", scratch.path("link")).unwrap();
    for (follow, is_link) in [(false, true), (true, false)] {
        let (mut stream, to) = (Vec::new(), scratch.path(&format!("to{follow}")));
        Source::open(&scratch.path("link"), follow).unwrap().pack(&mut stream).unwrap();
        fs::create_dir(&to).unwrap();
        assert_eq!(unpacked(&stream, &to, &KEPT).0, Ok(()));
        assert_eq!(to.join("link").is_symlink(), is_link);
        assert_eq!(to.join("link/file").exists(), !is_link);
    }
}

#[test]
fn given_owner_gets_no_rights_of_another_one() {
    let scratch = Scratch::new();
    make(&scratch.path("tree"));
    fs::create_dir(scratch.path("to")).unwrap();
    let (user, group) = owner();
    let options = Options { name: None, owner: Owner::Given { user, group } };
    let stream = packed(&scratch.path("tree"));
    assert_eq!(unpacked(&stream, &scratch.path("to"), &options), (Ok(()), Vec::new()));
    let found = |name: &str| fs::symlink_metadata(scratch.path("to/tree").join(name)).unwrap();
    for name in ["", "below/link", "fifo", "sparse", "below/file"] {
        assert_eq!((found(name).uid(), found(name).gid()), owner(), "{name}");
    }
    assert_eq!((found("below/file").mode() & 0o7777, found("empty").mode() & 0o7777), (0o751, 0o1555));
    let none = scratch.path("to/tree/below/none");
    assert!(rustix::fs::lgetxattr(none, "security.capability", &mut [0_u8; 64][..]).is_err());
}

#[test]
fn socket_is_left_out_with_a_warning() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.path("tree/dir")).unwrap();
    let _listener = UnixListener::bind(scratch.path("tree/dir/socket")).unwrap();
    fs::create_dir(scratch.path("to")).unwrap();
    let (result, warnings) = unpacked(&packed(&scratch.path("tree")), &scratch.path("to"), &KEPT);
    assert_eq!(result, Ok(()));
    assert_eq!(warnings, ["tree/dir/socket is left out: it is a socket"]);
    assert!(scratch.path("to/tree/dir").is_dir());
}

#[test]
fn deep_tree_needs_little_stack() {
    let scratch = Scratch::new();
    let mut deep = scratch.path("tree");
    for _ in 1..900 {
        deep.push("d");
    }
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("file"), "deep").unwrap();
    fs::create_dir(scratch.path("to")).unwrap();
    let (from, to) = (scratch.path("tree"), scratch.path("to"));
    let moved = std::thread::Builder::new().stack_size(128 << 10);
    let moved = moved.spawn(move || unpacked(&packed(&from), &to, &KEPT)).unwrap().join().unwrap();
    assert_eq!(moved, (Ok(()), Vec::new()));
    let deep = scratch.path("to").join(deep.strip_prefix(scratch.path("")).unwrap());
    assert_eq!(fs::read_to_string(deep.join("file")).unwrap(), "deep");
}

#[test]
fn missing_source_and_destination_are_named() {
    let scratch = Scratch::new();
    let missing = Source::open(&scratch.path("missing"), false).unwrap_err();
    assert!(missing.kind() == std::io::ErrorKind::NotFound && missing.to_string().contains("/missing"));
    fs::write(scratch.path("file"), "").unwrap();
    let error = unpacked(&packed(&scratch.path("file")), &scratch.path("missing"), &KEPT).0.unwrap_err();
    assert!(error.starts_with("cannot open the directory /") && error.contains("/missing: "), "{error}");
}

#[test]
fn failed_source_tells_the_reader_why() {
    let scratch = Scratch::new();
    let mut stream = Vec::new();
    let error = Source::open(Path::new("/proc/self/status"), false).unwrap().pack(&mut stream).unwrap_err();
    assert!(error.to_string().starts_with("cannot read status: it is a view of the kernel"), "{error}");
    let told = unpacked(&stream, &scratch.path(""), &KEPT).0.unwrap_err();
    assert_eq!(told, format!("the sender broke off: {error}"));
}

#[test]
fn file_that_shrinks_is_filled_with_zeros() {
    let scratch = Scratch::new();
    fs::write(scratch.path("file"), "short").unwrap();
    let file = File::open(scratch.path("file")).unwrap();
    let header = Header { kind: Kind::File, size: 9, extents: vec![(2, 7)], ..Header::default() };
    let mut sent = Vec::new();
    assert!(!content::send(file.as_fd(), &header, &mut sent).unwrap());
    assert_eq!(sent, b"ort\0\0\0\0");
}
