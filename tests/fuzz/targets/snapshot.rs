//! Fuzzes a snapshot on disk, raw or packed, with damage to any of its files: it is refused by the name of a
//! file, or it has the memory that was written. Conversion keeps the memory.
#![no_main]

use std::path::Path;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use serde_json::json;
use volt_fuzz::Dir;
use volt_fuzz::edit::Edit;
use volt_fuzz::files::Damage;
use volt_fuzz::snapshots::{How, MEMORY, Pages, packed, sealed, state, write};
use volt_vmm::fuzzing::digest;
use volt_vmm::snapshot::{Verified, convert, inspect, verify};
use volt_vmm::{Progress, Store};

#[derive(Debug, Arbitrary)]
struct Input {
    pages: Pages,
    how: Option<How>,
    edits: Vec<Edit>,
    state_damage: Vec<Damage>,
    memory_damage: Vec<Damage>,
    convert_to: Option<How>,
}

fuzz_target!(|input: Input| {
    let Input { pages, how, edits, state_damage, memory_damage, convert_to } = input;
    let mut memory = vec![0; MEMORY];
    pages.write(&mut memory);
    let (name, mut bytes, file) = match &how {
        None => ("memory.snap", memory.clone(), json!("raw")),
        Some(how) => {
            let (bytes, digest) = packed(&memory, how);
            ("memory.pack", bytes, json!({"pack": digest}))
        }
    };
    let digest = digest::format(digest::of_pages(0, &memory));
    let mut document = state(&json!({"memory_digest": digest, "memory_file": file}));
    let is_edited = !edits.is_empty();
    edits.into_iter().for_each(|edit| edit.apply(&mut document));
    let mut text = sealed(&document.to_string());
    state_damage.iter().for_each(|damage| damage.apply(&mut text));
    memory_damage.iter().for_each(|damage| damage.apply(&mut bytes));
    let dir = Dir::new();
    let place = dir.join("one");
    write(&place, "state.json", &text);
    write(&place, name, &bytes);
    let store = Store::open(dir.path().to_str().expect("a path in UTF-8")).expect("a directory");
    let none = Progress::default;
    let names_a_file = |error: &volt_vmm::Error| {
        let text = volt_vmm::report(error);
        assert!(text.contains(dir.path().to_str().expect("a path")), "{text}");
    };
    if let Err(error) = inspect(&store, "one") {
        names_a_file(&error);
    }
    match verify(&store, "one", &[], &none()) {
        Err(error) => names_a_file(&error),
        // Another author may have named another digest, but damage alone is noticed.
        Ok(Verified::Whole) if !is_edited => assert!(content(&place, name) == memory, "another memory"),
        Ok(_) => {}
    }
    let packing = convert_to.as_ref().map(How::packing);
    match convert((&store, "one"), (&store, "two"), packing.as_ref(), &none()) {
        Err(error) => {
            names_a_file(&error);
            assert!(!dir.join("two").exists(), "a refused conversion left a snapshot");
        }
        Ok(()) => {
            // A changed byte of a pack may decode to the right content, which a conversion saves.
            let name = if packing.is_some() { "memory.pack" } else { "memory.snap" };
            assert!(is_edited || content(&dir.join("two"), name) == memory, "another memory");
            verify(&store, "two", &[], &none()).expect("a new snapshot");
        }
    }
});

/// The memory of a snapshot.
fn content(directory: &Path, name: &str) -> Vec<u8> {
    use volt_vmm::internal::pack::{Decoder, Pack};
    let path = directory.join(name);
    if name == "memory.snap" {
        return std::fs::read(path).expect("a file");
    }
    let pack = Pack::open(std::fs::File::open(&path).expect("a file"), &path).expect("a pack");
    let (mut all, mut decoder) = (Vec::new(), Decoder::new());
    for chunk in 0..pack.geometry().chunks() {
        let mut into = vec![0xee; pack.geometry().len_of(chunk)];
        pack.read_chunk(chunk, &mut into, &mut decoder).expect("a chunk");
        all.extend(into);
    }
    all
}
