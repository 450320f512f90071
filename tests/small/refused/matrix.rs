//! Bad input to each path and field of both faces, generated from their descriptions. Each answer is in the
//! documented form and names what is wrong, and the VM runs on.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use volt_tests::openapi::{Description, Operation};
use volt_tests::{Guest, needs, small_guest};

const FIRECRACKERS: &str = include_str!("../../clients/firecracker.json");
const METHODS: [&str; 5] = ["GET", "PUT", "POST", "PATCH", "DELETE"];
/// These end the VM, or never end themselves.
const UNTRIED: [(&str, &str); 3] =
    [("GET", "/v1/vm/events"), ("PUT", "/v1/vm/shutdown"), ("DELETE", "/v1/vm")];
/// Longest body of a request.
const LONGEST_BODY: usize = 1 << 20;

fn both_faces(guest: &Guest) -> [Description; 2] {
    let (status, native) = guest.ask("GET", "/openapi.json", "");
    assert_eq!(status, 200);
    [Description::parse(&native), Description::parse(FIRECRACKERS)]
}

/// Starts a process whose files are in a directory of its own.
fn waiting() -> Guest {
    let directory = small_guest().parent().unwrap().to_str().unwrap().to_owned();
    Guest::waiting_in_scratch(&["--confine", "strict", "--allow-path", &directory])
}

fn booted() -> Guest {
    let mut guest = waiting();
    let boot = json!({"boot": {"kernel": small_guest(), "cmdline": "count mib=8"}});
    assert_eq!(guest.ask("PUT", "/v1/vm", &boot.to_string()), (204, String::new()));
    guest.next_number("count");
    guest
}

/// Checks that the process reports nothing, unless the host lacks what its confinement wants.
fn says_nothing(guest: &Guest) {
    let messages = guest.messages();
    assert!(messages.lines().all(|line| line.contains("strict confinement lacks")), "{messages}");
}

/// Collects what is wrong with answers, so that one run of a test tells it of all requests.
#[derive(Default)]
struct Wrong(Vec<String>);

impl Wrong {
    /// Sends a request that must be refused with one of these statuses, in the documented form and with these
    /// words. Returns the answer.
    fn refused(
        &mut self,
        guest: &Guest,
        (method, path): (&str, &str),
        body: &str,
        statuses: &[u16],
        words: &str,
    ) -> String {
        let (status, answer) = guest.ask(method, path, body);
        let parsed: Option<Value> = serde_json::from_str(&answer).ok();
        let message = parsed.as_ref().and_then(|answer| answer["fault_message"].as_str()).unwrap_or_default();
        // The state may be refused first.
        let is_told = message.contains(words) || message.contains("was started already");
        if !statuses.contains(&status) || message.is_empty() || !is_told {
            let body: String = body.chars().take(200).collect();
            self.0
                .push(format!("{method} {path} {body}: {status}, not {statuses:?} with {words:?}: {answer}"));
        }
        answer
    }

    fn end(self, requests: usize) {
        assert!(self.0.is_empty(), "{} of {requests} requests:\n{}", self.0.len(), self.0.join("\n"));
    }
}

/// Tries all bad bodies. Returns the number of requests.
fn try_bad_bodies(guest: &Guest) -> usize {
    let (mut wrong, mut requests) = (Wrong::default(), 0);
    for description in both_faces(guest) {
        for operation in description.operations() {
            let Operation { method, path, .. } = &operation;
            for bad in description.bad_bodies(&operation) {
                requests += 1;
                let to = (method.as_str(), path.as_str());
                let seen = wrong.0.len();
                let answer = wrong.refused(guest, to, &bad.body.to_string(), &[400], &bad.words);
                if let (Some(described), Some((_, listed))) = (&bad.fields, answer.split_once("expected ")) {
                    let listed: BTreeSet<_> =
                        listed.split('`').skip(1).step_by(2).map(str::to_owned).collect();
                    if listed != *described {
                        wrong.0.push(format!("fields {listed:?} are not as described: {described:?}"));
                    }
                }
                if let Some(problem) = wrong.0.get_mut(seen) {
                    *problem = format!("{}: {problem}", bad.what);
                }
            }
        }
    }
    wrong.end(requests);
    requests
}

#[test]
fn every_bad_field_is_refused_by_its_name_before_the_start() {
    needs!(kvm);
    let guest = waiting();
    let requests = try_bad_bodies(&guest);
    assert!(requests > 700, "only {requests}");
    assert!(guest.ask("GET", "/v1/vm", "").1.contains("not started"));
    says_nothing(&guest);
}

#[test]
fn every_bad_field_is_refused_by_its_name_of_a_running_vm() {
    needs!(kvm);
    let mut guest = booted();
    try_bad_bodies(&guest);
    guest.next_number("count");
    says_nothing(&guest);
}

#[test]
fn body_that_is_missing_no_json_or_too_long_is_refused_everywhere() {
    needs!(kvm);
    let mut guest = booted();
    let (mut wrong, mut requests) = (Wrong::default(), 0);
    let long = format!("\"{}\"", "x".repeat(LONGEST_BODY));
    for description in both_faces(&guest) {
        for operation in description.operations() {
            if description.good_body(&operation).is_none() {
                continue;
            }
            let to = (operation.method.as_str(), operation.path.as_str());
            if operation.needs_body {
                wrong.refused(&guest, to, "", &[400], "empty");
            }
            for body in ["{", "text", "\u{0}\u{1}", "{}}"] {
                wrong.refused(&guest, to, body, &[400], "request body");
            }
            wrong.refused(&guest, to, &long, &[413], "longer than 1048576 bytes");
            assert!(operation.statuses.contains(&413), "{to:?} does not document status 413");
            requests += 6;
        }
    }
    wrong.end(requests);
    guest.next_number("count");
}

#[test]
fn path_or_method_that_does_not_exist_is_refused() {
    needs!(kvm);
    let mut guest = booted();
    let (mut wrong, mut requests) = (Wrong::default(), 0);
    for description in both_faces(&guest) {
        let mut methods = BTreeMap::<String, Vec<String>>::new();
        for Operation { method, path, .. } in description.operations() {
            methods.entry(path).or_default().push(method);
        }
        for (path, known) in methods {
            let is_native = path.starts_with("/v1/");
            // Any method of two of these is refused by the name of the device. The third also answers GET.
            let has_more = path.starts_with("/pmem") || path == "/hotplug/memory" || path == "/metrics";
            let is_unknown = |method: &&&str| !has_more && !known.iter().any(|known| known == **method);
            for method in METHODS.iter().filter(is_unknown) {
                let status = if is_native { 405 } else { 400 };
                wrong.refused(&guest, (method, &path), "{}", &[status], &path);
                requests += 1;
            }
            for method in METHODS {
                let nowhere = format!("{}/no/where", path.trim_end_matches('/'));
                let status = if is_native { 404 } else { 400 };
                wrong.refused(&guest, (method, &nowhere), "{}", &[status], &nowhere);
                requests += 1;
            }
        }
    }
    wrong.end(requests);
    guest.next_number("count");
}

#[test]
fn bad_id_in_a_path_is_refused() {
    needs!(kvm);
    let mut guest = booted();
    let (mut wrong, mut requests) = (Wrong::default(), 0);
    let long = "x".repeat(300);
    for description in both_faces(&guest) {
        for operation in description.operations() {
            let Some(start) = operation.path.strip_suffix("one") else { continue };
            let body = description.good_body(&operation).map(|body| body.to_string()).unwrap_or_default();
            for id in ["%FF", "%C3%28", "%zz", "%", "a%2Fb", "%00", "..", &long] {
                let path = format!("{start}{id}");
                wrong.refused(&guest, (&operation.method, &path), &body, &[400], "");
                requests += 1;
            }
        }
    }
    assert!(requests >= 48, "only {requests}");
    wrong.end(requests);
    guest.next_number("count");
}

/// Sends each operation what it allows. Returns its status and answer by method and path.
fn try_good_bodies(guest: &Guest) -> BTreeMap<String, (u16, String)> {
    let mut answers = BTreeMap::new();
    for description in both_faces(guest) {
        for operation in description.operations() {
            let to = (operation.method.as_str(), operation.path.as_str());
            if UNTRIED.contains(&to) {
                continue;
            }
            let body = description.good_body(&operation).map(|body| body.to_string()).unwrap_or_default();
            let (status, answer) = guest.ask(to.0, to.1, &body);
            assert!(
                operation.statuses.contains(&status),
                "{to:?} {body}: {status} is not documented: {answer}"
            );
            if status >= 400 {
                let fault: Value = serde_json::from_str(&answer).unwrap();
                assert!(
                    fault["fault_message"].as_str().is_some_and(|message| !message.is_empty()),
                    "{answer}"
                );
            }
            answers.insert(format!("{} {}", to.0, to.1), (status, answer));
        }
    }
    answers
}

#[test]
fn call_at_the_wrong_time_is_refused_by_the_state() {
    needs!(kvm);
    let guest = waiting();
    let too_early = try_good_bodies(&guest);
    let mut guest = booted();
    let too_late = try_good_bodies(&guest);
    // Changes of a VM that does not run, and those for a start of one that does.
    for (path, early, late) in [
        ("PATCH /vm", "has not been started", ""),
        ("PATCH /v1/vm", "has not been started", ""),
        ("POST /v1/vm/snapshots", "has not been started", ""),
        ("PATCH /drives/one", "has not been started", ""),
        ("PATCH /network-interfaces/one", "has not been started", ""),
        ("PATCH /balloon/hinting/stop", "has not been started", ""),
        ("PUT /actions", "before starting the microVM", ""),
        ("PUT /boot-source", "", "was started already"),
        ("PUT /machine-config", "", "was started already"),
        ("PATCH /machine-config", "", "was started already"),
        ("PUT /cpu-config", "", "was started already"),
        ("PUT /drives/one", "", "was started already"),
        ("PUT /vsock", "", "was started already"),
        ("PUT /entropy", "", "was started already"),
        ("PUT /balloon", "", "was started already"),
        ("PUT /serial", "", "was started already"),
        ("PUT /mmds/config", "", "was started already"),
        ("PUT /metrics", "", "after starting the microVM"),
        ("PUT /snapshot/load", "", "was started already"),
        ("PUT /v1/vm", "", "was started already"),
    ] {
        for (answers, words) in [(&too_early, early), (&too_late, late)] {
            let (status, answer) = &answers[path];
            assert!(
                words.is_empty() || *status == 400 && answer.contains(words),
                "{path}: {status} {answer}"
            );
        }
    }
    guest.resume();
    guest.next_number("count");
}
