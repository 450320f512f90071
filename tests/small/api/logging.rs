//! The log of a process: its receiver, layout and level by the command line.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use serde_json::{Value, json};
use volt_tests::names::small;
use volt_tests::rest::ask;
use volt_tests::{Boot, Child, Names, Namespace, Outcome, Scratch, needs, patience};

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

/// Takes a snapshot by an API, which logs its pause at the level info.
fn take_by(ask: impl Fn(&str, &str, &str) -> (u16, String), path: &Path) {
    let body = json!({ "path": path }).to_string();
    let (status, answer) = ask("POST", "/v1/vm/snapshots", &body);
    assert_eq!(status, 201, "{answer}");
}

#[test]
fn children_of_a_fork_have_the_log_of_their_parent() {
    needs!(kvm);
    let scratch = Scratch::new();
    let log = scratch.path("log");
    let options = ["--log", log.to_str().unwrap(), "--log-level", "info", "--log-format", "json"];
    let mut guest = Boot::small("count mib=4").device(options).start();
    guest.wait_for("count 5\n");
    let child = |socket: &Path| {
        let directory = scratch.fresh("children");
        fs::create_dir(&directory).unwrap();
        Child::fork(socket, &directory, &[("child", json!({}))], false).remove(0)
    };
    let first = child(guest.socket());
    let second = child(first.socket());
    for child in [&first, &second] {
        take_by(|method, path, body| child.ask(method, path, body), &scratch.fresh("snapshot"));
        let lines = read(&log);
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let own = lines.filter(|line| line["vm"] == child.id()).collect::<Vec<_>>();
        let pause = |line: &Value| line["message"].as_str().unwrap().contains("paused the guest");
        assert!(own.iter().any(pause), "{own:?}");
    }
    [first, second].into_iter().for_each(Child::stop);
}

#[test]
fn log_of_restored_vms_and_of_vms_with_names_has_their_names() {
    needs!(kvm);
    let names = Names::new();
    let log = names.scratch().path("log");
    let options = ["--log", log.to_str().unwrap(), "--log-level", "info"].map(Into::into);
    let mut words = small("echo");
    words.extend(["-d", "--name", "web"].map(Into::into).into_iter().chain(options.clone()));
    Outcome::of_command(&mut names.command(words)).succeeded();
    names.ok("snapshot create web warm");
    let mut words: Vec<OsString> = ["restore", "-d", "--name", "clone", "warm"].map(Into::into).to_vec();
    words.extend(options);
    Outcome::of_command(&mut names.command(words)).succeeded();
    names.ok("fork --name kid clone");
    for name in ["web", "clone", "kid"] {
        take_by(
            |method, path, body| ask(&names.of(name).join("api.sock"), method, path, body),
            &names.scratch().fresh("snapshot"),
        );
        let said = format!("Z INFO [{name}] snapshot ");
        assert!(read(&log).lines().any(|line| line.contains(&said)), "{}", read(&log));
        assert_eq!(names.ok(&format!("logs --messages {name}")), "", "nothing is logged elsewhere");
    }
}

/// Returns the fields of a journal's record whose values have one line each.
fn fields(record: &[u8]) -> BTreeMap<String, String> {
    let text = str::from_utf8(record).unwrap();
    let field = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    text.lines().map(|line| field(line).unwrap_or_else(|| panic!("{text}"))).collect()
}

#[test]
fn record_reaches_the_journal_with_the_name_of_its_vm() {
    needs!(kvm, root);
    let names = Names::new();
    let host = names.scratch().path("host");
    fs::create_dir_all(host.join("systemd/journal")).unwrap();
    let journal = UnixDatagram::bind(host.join("systemd/journal/socket")).unwrap();
    journal.set_read_timeout(Some(patience())).unwrap();
    let mut words = small("echo");
    words.extend(["-d", "--name", "web", "--log", "journald", "--log-level", "info"].map(Into::into));
    let mut command = names.command(words);
    Namespace::replaced(Path::new("/run"), &host).apply(&mut command);
    Outcome::of_command(&mut command).succeeded();
    take_by(
        |method, path, body| ask(&names.of("web").join("api.sock"), method, path, body),
        &names.scratch().fresh("snapshot"),
    );
    let mut bytes = [0; 4096];
    let record = loop {
        let len = journal.recv(&mut bytes).expect("a record of the snapshot");
        let record = fields(&bytes[..len]);
        if record["MESSAGE"].contains("paused the guest") {
            break record;
        }
    };
    let of = |name: &str| record.get(name).map(String::as_str);
    assert_eq!(["PRIORITY", "SYSLOG_IDENTIFIER", "VOLT_VM"].map(of), ["6", "volt-vmm", "web"].map(Some));
    assert!(record["TARGET"].starts_with("volt_"), "{record:?}");
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
