//! Fuzzes the merge of a diff and its base, with damage to any of their files: the result has the base's
//! pages below the diff's, or there is none.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use serde_json::json;
use volt_fuzz::Dir;
use volt_fuzz::files::Damage;
use volt_fuzz::snapshots::{How, MEMORY, Pages, diff_of, packed, sealed, state, write};
use volt_vmm::fuzzing::digest;
use volt_vmm::internal::host;
use volt_vmm::snapshot::{merge, verify};
use volt_vmm::{Progress, Snapshot, Store};

#[derive(Debug, Arbitrary)]
struct Input {
    base: Pages,
    over: Pages,
    how: Option<How>,
    damage: Vec<(Place, Damage)>,
    /// The diff names another digest of its base.
    other_base: Option<u64>,
}

#[derive(Debug, PartialEq, Arbitrary)]
enum Place {
    Base,
    Diff,
}

fuzz_target!(|input: Input| {
    let Input { base, over, how, damage, other_base } = input;
    let mut memory = vec![0; MEMORY];
    base.write(&mut memory);
    let (name, mut below, file) = match &how {
        None => ("memory.snap", memory.clone(), json!("raw")),
        Some(how) => {
            let (bytes, digest) = packed(&memory, how);
            ("memory.pack", bytes, json!({"pack": digest}))
        }
    };
    let of_base = digest::of_pages(0, &memory);
    let features = host::feature_digest().ok();
    let text = digest::format(of_base);
    let base_state = json!({"memory_digest": text, "memory_file": file, "host_features": features});
    let (mut above, checksum) = diff_of(other_base.unwrap_or(of_base), &over);
    for (place, damage) in &damage {
        damage.apply(if *place == Place::Base { &mut below } else { &mut above });
    }
    let dir = Dir::new();
    write(&dir.join("base"), "state.json", &sealed(&state(&base_state).to_string()));
    write(&dir.join("base"), name, &below);
    let diff_state = json!({
        "base": {"memory_digest": text, "path": dir.join("base")},
        "memory_file": {"diff": checksum}, "host_features": features,
    });
    write(&dir.join("diff"), "state.json", &sealed(&state(&diff_state).to_string()));
    write(&dir.join("diff"), "memory.diff", &above);
    let store = Store::open(dir.path().to_str().expect("a path in UTF-8")).expect("a directory");
    let allowed = [dir.path().to_owned()];
    let verified = verify(&store, "diff", &allowed, &Progress::default());
    let merged = Snapshot::open_allowing(&store, "diff", &allowed)
        .and_then(|diff| merge(&diff, &store, "merged", &Progress::default()));
    match merged {
        Ok(()) => {
            over.write(&mut memory);
            let found = std::fs::read(dir.join("merged").join("memory.snap")).expect("a file");
            assert!(found == memory, "another memory");
            verify(&store, "merged", &allowed, &Progress::default()).expect("a new snapshot");
        }
        Err(error) => {
            let text = volt_vmm::report(&error);
            assert!(text.contains(dir.path().to_str().expect("a path")), "{text}");
            assert!(!dir.join("merged").exists(), "a refused merge left a snapshot");
            assert!(other_base.is_some() || !damage.is_empty(), "{text}");
            assert!(verified.is_err(), "a diff that was verified cannot be merged: {text}");
        }
    }
});
