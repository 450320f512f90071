//! The log of a process: its receiver, layout and level by the command line.

use std::fs;
use std::path::Path;

use serde_json::Value;
use volt_tests::{Boot, Outcome, Scratch, needs};

/// Boots a guest whose snapshot logs its pause at the level info. Returns volt-vmm's messages.
fn snapshots_with(options: &[&str]) -> String {
    let mut guest = Boot::small("count mib=4").device(options.iter().copied()).start();
    guest.wait_for("count 5\n");
    drop(guest.snapshot());
    guest.messages()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn log_goes_to_its_receiver_in_its_layout() {
    needs!(kvm);
    let scratch = Scratch::new();
    let [text, json, quiet] = ["text", "json", "quiet"].map(|name| scratch.fresh(name));
    let to = |path: &Path| path.to_str().unwrap().to_owned();
    assert_eq!(snapshots_with(&["--log", &to(&text), "--log-level", "info"]), "");
    let line = read(&text);
    assert!(line.starts_with("20") && line.contains("Z INFO [anonymous-instance] snapshot "), "{line}");
    let options = ["--log", &to(&json), "--log-level", "info", "--log-format", "json"];
    assert_eq!(snapshots_with(&options), "");
    for line in read(&json).lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!((line["level"].as_str(), line["vm"].as_str()), (Some("info"), Some("anonymous-instance")));
        assert!(line["message"].as_str().unwrap().contains("paused the guest"), "{line}");
    }
    assert_eq!(snapshots_with(&["--log", &to(&quiet)]), "");
    assert_eq!(read(&quiet), "", "there is no warning");
    let said = snapshots_with(&["--log-level", "info"]);
    assert!(said.starts_with("volt-vmm: snapshot ") && said.contains("paused the guest"), "{said}");
    let said = snapshots_with(&["--log", "stderr", "--log-level", "info"]);
    assert!(said.contains("Z INFO [anonymous-instance] snapshot "), "{said}");
}

#[test]
fn receiver_that_cannot_be_opened_is_refused() {
    let options = ["run", "--kernel", "/missing", "--log", "/missing/log"];
    Outcome::of(options).refused(&["cannot open log /missing/log: No such file"]);
    let bad = Outcome::of(["restore", "/missing", "--log-level", "loud"]);
    assert!(bad.status == 2 && bad.stderr.contains("off, error, warn, info, debug, trace"), "{bad:?}");
    if !Path::new("/run/systemd/journal/socket").exists() {
        let options = ["run", "--kernel", "/missing", "--log", "journald"];
        Outcome::of(options).refused(&["cannot connect to the journal at /run/systemd/journal/socket"]);
    }
}
