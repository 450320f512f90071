//! Streams that break the rules.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::Options;
use super::header::{Header, Kind};
use super::scratch::{KEPT, Scratch, described, packed, unpacked};

/// A record from JSON, with bytes behind it.
fn record(header: &str, content: &[u8]) -> Vec<u8> {
    [&(header.len() as u32).to_le_bytes()[..], header.as_bytes(), content].concat()
}

fn stream(headers: &[&str]) -> Vec<u8> {
    let records = headers.iter().map(|header| record(header, b""));
    records.chain([record(r#"{"kind":"end"}"#, b"")]).flatten().collect()
}

/// A destination `to`, and `outside` beside it, which must stay as it is.
struct Place(Scratch);

impl Place {
    fn new() -> Self {
        let scratch = Scratch::new();
        for directory in ["to", "outside"] {
            fs::create_dir(scratch.path(directory)).unwrap();
        }
        fs::write(scratch.path("outside/file"), "untouched").unwrap();
        Self(scratch)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    /// The error of a stream, after a look at what lies outside.
    fn refused(&self, stream: &[u8]) -> String {
        let before = described(&self.path("outside"));
        let result = unpacked(stream, &self.path("to"), &KEPT).0;
        assert_eq!(described(&self.path("outside")), before);
        let names: Vec<_> =
            fs::read_dir(self.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        let rest = described(&self.path("to"));
        assert!(rest.keys().all(|path| !path.to_string_lossy().contains(".volt-")), "{rest:?}");
        result.unwrap_err()
    }
}

#[test]
fn paths_out_of_the_destination_are_refused() {
    let place = Place::new();
    for path in ["../outside/x", "/tmp/x", "a/../../outside/x", "..", ".", "", "a//b", "a/", "a/./b", "a%00b"]
    {
        for kind in ["dir", "file", "symlink", "fifo"] {
            let header = format!(r#"{{"kind":"{kind}","path":"{path}","target":"x"}}"#);
            let error = place.refused(&stream(&[&header]));
            assert!(error.starts_with("the stream of the tree has a bad entry "), "{error}");
        }
    }
    let deep = format!(r#"{{"kind":"dir","path":"{}a"}}"#, "a/".repeat(1000));
    assert!(place.refused(&stream(&[&deep])).ends_with("a path is deeper than 1000 directories"));
    let error = place.refused(&stream(&[r#"{"kind":"dir","path":"a"}"#, r#"{"kind":"dir","path":"b"}"#]));
    assert_eq!(error, "the stream of the tree has entries outside of its first one");
}

#[test]
fn symlinks_on_the_way_are_not_followed() {
    let dir = r#"{"kind":"dir","path":"d"}"#;
    let link = r#"{"kind":"symlink","path":"d/l","target":"../../outside"}"#;
    for last in [
        r#"{"kind":"file","path":"d/l/file"}"#,
        r#"{"kind":"dir","path":"d/l/new"}"#,
        r#"{"kind":"symlink","path":"d/l/new","target":"x"}"#,
        r#"{"kind":"fifo","path":"d/l/new"}"#,
        r#"{"kind":"hardlink","path":"d/new","target":"d/l/file"}"#,
    ] {
        let error = Place::new().refused(&stream(&[dir, link, last]));
        assert_eq!(error, "cannot enter d/l: a component is no directory, and symlinks are not followed");
        let place = Place::new();
        fs::create_dir(place.path("to/d")).unwrap();
        symlink(place.path("outside"), place.path("to/d/l")).unwrap();
        let error = place.refused(&stream(&[dir, last]));
        assert_eq!(error, "cannot enter d/l: a component is no directory, and symlinks are not followed");
    }
    let place = Place::new();
    let error = place.refused(&stream(&[dir, link, r#"{"kind":"hardlink","path":"d/n","target":"d/l"}"#]));
    assert_eq!(error, "cannot link to d/l: it is no file");
    let error = place.refused(&stream(&[dir, link, r#"{"kind":"dir","path":"d/l"}"#]));
    assert_eq!(
        error,
        "cannot make the directory d/l: another kind of entry has this name: remove that first"
    );
    let up = r#"{"kind":"hardlink","path":"d/n","target":"../outside/file"}"#;
    assert!(place.refused(&stream(&[dir, up])).contains("a path is absolute, or has"));
}

#[test]
fn directory_is_not_replaced_by_another_kind() {
    let place = Place::new();
    fs::create_dir_all(place.path("to/d/x")).unwrap();
    for kind in ["file", "symlink", "fifo"] {
        let header = format!(r#"{{"kind":"{kind}","path":"d/x","target":"x"}}"#);
        let error = place.refused(&stream(&[r#"{"kind":"dir","path":"d"}"#, &header]));
        assert_eq!(error, "cannot make d/x: a directory has this name: remove that first");
    }
}

#[test]
fn numbers_out_of_range_are_refused() {
    let place = Place::new();
    for (fields, wanted) in [
        (r#""size":9,"extents":[[4,2],[2,1]]"#, "its extents do not ascend within its 9 bytes"),
        (r#""size":9,"extents":[[4,2],[5,1]]"#, "its extents do not ascend within its 9 bytes"),
        (r#""size":9,"extents":[[4,0]]"#, "its extents do not ascend within its 9 bytes"),
        (r#""size":9,"extents":[[4,6]]"#, "its extents do not ascend within its 9 bytes"),
        (r#""size":9,"extents":[[18446744073709551615,2]]"#, "its extents do not ascend within its 9 bytes"),
        (r#""size":18446744073709551615"#, "its size is out of range"),
        (r#""uid":4294967295"#, "its owner or its time is out of range"),
        (r#""mtime":[0,1073741823]"#, "its owner or its time is out of range"),
    ] {
        let error = place.refused(&stream(&[&format!(r#"{{"kind":"file","path":"a",{fields}}}"#)]));
        assert_eq!(error, format!("the stream of the tree has a bad entry a: {wanted}"));
    }
    let content = r#"{"kind":"fifo","path":"a","size":1,"extents":[[0,1]]}"#;
    assert!(place.refused(&stream(&[content])).ends_with("its kind has no content"));
    assert!(described(&place.path("to")).is_empty());
}

#[test]
fn headers_that_are_not_understood_are_refused() {
    let place = Place::new();
    let long = [&(2_u32 << 20).to_le_bytes()[..], &[b' '; 100]].concat();
    assert_eq!(
        place.refused(&long),
        "the stream of the tree has a header of 2097152 bytes, more than 1048576"
    );
    for header in
        ["", "[]x", r#"{"kind":"door","path":"a"}"#, r#"{"kind":"dir","path":"%4"}"#, &"[".repeat(9999)]
    {
        let error = place.refused(&stream(&[header]));
        assert!(error.starts_with("the stream of the tree has a header that is not understood: "), "{error}");
    }
    assert_eq!(place.refused(&stream(&[])), "the stream of the tree has no entry");
    let longer = [stream(&[r#"{"kind":"dir","path":"a"}"#]), vec![0]].concat();
    assert_eq!(place.refused(&longer), "the stream of the tree goes on after its last record");
}

#[test]
fn stream_that_is_cut_anywhere_is_an_error_and_leaves_no_part_of_a_file() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("tree")).unwrap();
    fs::write(scratch.path("tree/file"), "content").unwrap();
    let whole = packed(&scratch.path("tree"));
    for length in 0..whole.len() {
        let place = Place::new();
        let error = place.refused(&whole[..length]);
        assert!(error.starts_with("the stream of the tree ends early, "), "{error}");
        if let Ok(content) = fs::read(place.path("to/tree/file")) {
            assert_eq!(content, b"content");
        }
    }
}

#[test]
fn messages_of_the_sender_cannot_drive_a_terminal() {
    let place = Place::new();
    let mut text = Vec::new();
    Header::message(Kind::Error, "red \x1b[31m\u{9b}".to_owned()).write(&mut text).unwrap();
    assert_eq!(place.refused(&text), "the sender broke off: red ?[31m?");
}

#[test]
fn names_of_more_than_one_component_are_refused() {
    let scratch = Scratch::new();
    let stream = stream(&[r#"{"kind":"dir","path":"a"}"#]);
    for name in ["", "..", "a/b", "/", "a\0"] {
        let options = Options { name: Some(name.as_ref()), ..KEPT };
        let error = unpacked(&stream, &scratch.path(""), &options).0.unwrap_err();
        assert!(error.ends_with("it is no name of a file"), "{error}");
    }
    let file = [record(r#"{"kind":"file","path":"a"}"#, b""), stream].concat();
    let options = Options { name: Some(".".as_ref()), ..KEPT };
    let error = unpacked(&file, &scratch.path(""), &options).0.unwrap_err();
    assert_eq!(error, "cannot unpack a: it is no directory, and cannot become the destination itself");
}
