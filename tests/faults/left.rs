//! Checks of a case: how the act ended, and the files that it left.

use std::path::PathBuf;

use volt_tests::faults::{Call, Case};
use volt_tests::scratch::list;
use volt_tests::{Outcome, Scratch, Snapshot};

/// The exit status of a killed process.
const KILLED: i32 = -9;
/// The exit status of a VM whose guest memory cannot be read.
const UNREADABLE: i32 = 5;
/// Calls that remove what a failed act leaves. After a fault in one, the next act removes it.
const REMOVERS: [&str; 4] = ["unlink", "unlinkat", "rmdir", "openat"];

/// The directory in which an act makes a snapshot.
pub struct Store {
    pub scratch: Scratch,
    directory: PathBuf,
}

impl Store {
    pub fn new(scratch: &Scratch) -> Self {
        let directory = scratch.fresh("store");
        std::fs::create_dir(&directory).unwrap();
        Self { scratch: scratch.clone(), directory }
    }

    /// Where the act makes its snapshot.
    pub fn place(&self) -> PathBuf {
        self.directory.join("made")
    }

    /// Returns the snapshot if the act made one.
    pub fn made(&self) -> Option<Snapshot> {
        self.place().exists().then(|| Snapshot::at(self.place(), &self.scratch))
    }

    /// Removes the snapshot and checks that nothing else is there.
    pub fn clear(&self, context: &str) {
        std::fs::remove_dir_all(self.place()).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_eq!(list(&self.directory), [""; 0], "{context}: leftovers");
    }

    /// Checks what a case has left, then lets `again` act without a fault.
    pub fn check(
        &self,
        case: &Case,
        hit: Option<&Call>,
        outcome: &Outcome,
        again: impl FnOnce() -> Outcome,
        is_right: impl Fn(&Snapshot),
    ) {
        let context = format!("{case}\n{outcome:?}");
        ended_well(case, hit, outcome);
        let made = self.made();
        if outcome.status == 0 {
            assert!(made.is_some(), "{context}: reported a success and made nothing");
        }
        match made {
            Some(made) => {
                is_right(&made);
                std::fs::remove_dir_all(self.place()).unwrap();
            }
            None if case.fault.kills() => {}
            None if hit.is_some_and(|hit| REMOVERS.contains(&hit.name)) => {}
            None => assert_eq!(list(&self.directory), [""; 0], "{context}: leftovers of a failed act"),
        }
        again().succeeded();
        is_right(&self.made().expect("the act was repeated"));
        self.clear(&context);
    }
}

/// Checks that an act succeeded, was killed by the injector, or failed with a proper error.
pub fn ended_well(case: &Case, hit: Option<&Call>, outcome: &Outcome) {
    if std::env::var_os("VOLT_FAULTS_SHOWN").is_some() {
        println!("{case}: {} {}", outcome.status, outcome.messages().trim_end());
    }
    match outcome.status {
        0 => {}
        KILLED if case.fault.kills() && hit.is_some() => {}
        _ => is_proper(case, outcome),
    }
}

/// Checks that an error names act and object, and is no crash.
fn is_proper(case: &Case, outcome: &Outcome) {
    assert!([1, UNREADABLE].contains(&outcome.status), "{case}: {outcome:?}");
    let messages = outcome.messages();
    let Some(error) = messages.lines().last() else { panic!("{case}: no message: {outcome:?}") };
    assert!(error.starts_with("volt-vmm: "), "{case}: {outcome:?}");
    for crash in ["panicked", "backtrace", "unwrap", "internal", "bug"] {
        assert!(!messages.contains(crash), "{case}: {messages}");
    }
    // "volt-vmm: cannot ACT OBJECT: CAUSE" has an act and a cause.
    assert!(error.matches(": ").count() >= 2, "{case}: no cause: {error}");
}
