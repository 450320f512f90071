//! Snapshots in two files under faults: afterwards both are new or both are old, and after a kill between the
//! renames the state is missing.

use std::path::{Path, PathBuf};

use volt_tests::faults::{Injector, Sample, Side};
use volt_tests::scratch::list;
use volt_tests::{Boot, Guest, Outcome, Scratch, needs};

use crate::left::ended_well;

/// Two files in a directory of their own.
struct Pair {
    directory: PathBuf,
    scratch: Scratch,
}

impl Pair {
    fn new() -> Self {
        let scratch = Scratch::new();
        let directory = scratch.fresh("pair");
        std::fs::create_dir(&directory).unwrap();
        Self { directory, scratch }
    }

    fn state(&self) -> PathBuf {
        self.directory.join("state")
    }

    fn memory(&self) -> PathBuf {
        self.directory.join("memory")
    }

    fn take(&self, guest: &Guest) -> Outcome {
        let memory = self.memory();
        guest.try_snapshot_as(&self.state(), &["--memory-file", memory.to_str().unwrap()])
    }

    /// Id of the snapshot, or nothing if the state is missing.
    fn id(&self) -> Option<String> {
        let text = std::fs::read(self.state()).ok()?;
        let state: serde_json::Value = serde_json::from_slice(&text).unwrap();
        Some(state["metadata"]["id"].as_str().unwrap().to_owned())
    }

    /// Checks that a guest restored from the files finds no wrong page.
    fn is_right(&self) {
        let memory = self.memory();
        let options = ["--memory-file", memory.to_str().unwrap()];
        let state = volt_tests::Snapshot::at(self.state(), &self.scratch);
        goes_on(&mut state.restore_as(&options));
    }

    fn names(&self) -> Vec<String> {
        list(&self.directory)
    }
}

fn goes_on(guest: &mut Guest) {
    let first = guest.next_number("count");
    while guest.next_number("count") < first + 9 {}
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
}

fn counting(injector: &Injector) -> Guest {
    let mut guest = Boot::small("count mib=1").faults(injector).start();
    guest.wait_for("count 9\n");
    guest
}

fn inode(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap())
}

#[test]
fn snapshot_in_two_files_is_new_or_old_after_a_failed_write() {
    needs!(kvm);
    let (injector, pair) = (Injector::of(Side::Writes), Pair::new());
    let mut guest = counting(&injector);
    // The recorded one replaces it, as that of each case does.
    pair.take(&guest).succeeded();
    let (outcome, calls) = injector.record(|| pair.take(&guest));
    outcome.succeeded();
    for case in Sample::of("snapshot in two files", &calls, true) {
        let (old, old_memory) = (pair.id().expect("a whole snapshot"), inode(&pair.memory()));
        let (outcome, hit) = injector.inject(&case, || pair.take(&guest));
        ended_well(&case, hit.as_ref(), &outcome);
        match pair.id() {
            None => assert!(case.fault.kills() && hit.is_some(), "{case}: the state is gone"),
            Some(id) => {
                let is_new = id != old;
                assert!(is_new || outcome.status != 0, "{case}: reported a success and wrote nothing");
                assert_eq!(inode(&pair.memory()) != old_memory, is_new, "{case}: one file of each");
                pair.is_right();
            }
        }
        if hit.is_some() && case.fault.kills() {
            guest = counting(&injector);
        }
        pair.take(&guest).succeeded();
        pair.is_right();
        assert_eq!(pair.names(), ["memory", "state"], "{case}: leftovers");
        goes_on(&mut guest);
    }
}
