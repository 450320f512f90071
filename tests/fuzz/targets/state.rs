//! Fuzzes state files: any bytes, and a valid file with changed values and a correct checksum. A file that is
//! accepted has the same content after it is written again.
#![no_main]

use std::path::Path;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_fuzz::edit::Edit;
use volt_fuzz::files::Damage;
use volt_fuzz::snapshots::{HEAD, sealed};
use volt_vmm::fuzzing::state::{decoded, marked};

/// The state file of a small guest with a disk.
const SEED: &str = include_str!("../seeds/state.json");
const NAME: &str = "/snapshots/one/state.json";

#[derive(Debug, Arbitrary)]
enum Input {
    Any(Vec<u8>),
    /// A checksum before any text.
    Sealed(String),
    Edited(Vec<Edit>),
    Damaged(Vec<Edit>, Vec<Damage>),
}

fn edited(edits: Vec<Edit>) -> Vec<u8> {
    let mut document = serde_json::from_str(SEED).expect("a document");
    edits.into_iter().for_each(|edit| edit.apply(&mut document));
    // The order of fields is free, but for the checksum's.
    sealed(&document.to_string())
}

fuzz_target!(|input: Input| {
    let file = match input {
        Input::Any(bytes) => bytes,
        Input::Sealed(text) => sealed(&text),
        Input::Edited(edits) => edited(edits),
        Input::Damaged(edits, damage) => {
            let mut file = edited(edits);
            damage.iter().for_each(|damage| damage.apply(&mut file));
            file
        }
    };
    if let Some((body, mark)) = marked(&file) {
        assert_eq!((mark.len(), &file[HEAD..HEAD + body.len()]), (32, body));
    }
    match decoded(Path::new(NAME), &file) {
        Ok(again) => assert_eq!(decoded(Path::new(NAME), &again).expect("its own file"), again),
        Err(error) => assert!(error.to_string().contains(NAME), "{error}"),
    }
});
