//! volt-vmm's own paths: one VM through its life, its events, and acts that do not wait for each other.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};
use volt_tests::rest::connect;
use volt_tests::{Exposition, Guest, Outcome, limited, needs, patience, small_guest, wait_until};

use crate::snapshot::diffs::counting;
use crate::snapshot::two_files::Pair;

/// A client that follows the VM's events.
struct Events(BufReader<UnixStream>);

impl Events {
    fn follow(guest: &Guest) -> Self {
        let mut stream = connect(guest.socket());
        stream.set_read_timeout(Some(patience())).unwrap();
        stream.write_all(b"GET /v1/vm/events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        Self(BufReader::new(stream))
    }

    /// The next event; none after the last.
    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        while self.0.read_line(&mut line).unwrap() > 0 {
            if let Some(data) = line.strip_prefix("data: ") {
                return Some(serde_json::from_str(data).unwrap());
            }
            // The end of a chunked body.
            if line == "0\r\n" {
                return None;
            }
            line.clear();
        }
        None
    }

    #[track_caller]
    fn tells(&mut self, expected: &Value) {
        assert_eq!(self.next().as_ref(), Some(expected));
    }
}

/// Boots the small guest in a process that waits.
fn boot(guest: &Guest, behaviour: &str, memory_mib: u64) {
    let boot = json!({"boot": {"kernel": small_guest(), "cmdline": behaviour}, "memory_mib": memory_mib});
    assert_eq!(guest.ask("PUT", "/v1/vm", &boot.to_string()), (204, String::new()));
}

pub(super) fn asked(guest: &Guest, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let (status, answer) = guest.ask(method, path, &body.to_string());
    (status, serde_json::from_str(&answer).unwrap_or(Value::Null))
}

fn state(guest: &Guest) -> String {
    asked(guest, "GET", "/v1/vm", &json!({})).1["state"].as_str().unwrap().to_owned()
}

#[test]
fn vm_lives_by_the_native_paths_alone() {
    needs!(kvm);
    let mut guest = Guest::waiting();
    assert_eq!(state(&guest), "not started");
    boot(&guest, "count mib=8", 64);
    guest.next_number("count");
    for wanted in ["paused", "running"] {
        assert_eq!(asked(&guest, "PATCH", "/v1/vm", &json!({"state": wanted})).0, 204);
        assert_eq!(state(&guest), wanted);
    }
    let path = guest.scratch().fresh("snapshot");
    let (status, taken) = asked(&guest, "POST", "/v1/vm/snapshots", &json!({"path": path}));
    assert_eq!(status, 201, "{taken}");
    let number = |field: &str| taken[field].as_u64().unwrap();
    assert!(number("passes") > 0 && number("pages") >= number("pages_in_pause"), "{taken}");
    assert!(number("paused_us") > 0 && state(&guest) == "running", "{taken}");
    assert_eq!(asked(&guest, "DELETE", "/v1/vm", &Value::Null).0, 204);
    assert_eq!(guest.wait_exit().status, 0);

    let mut restored = Guest::waiting();
    let snapshot = json!({"snapshot": {"path": path, "paused": true, "rewindable": true}});
    assert_eq!(asked(&restored, "PUT", "/v1/vm", &snapshot).0, 204);
    assert_eq!(state(&restored), "paused");
    assert_eq!(asked(&restored, "PATCH", "/v1/vm", &json!({"state": "running"})).0, 204);
    restored.next_number("count");
    let (status, rewound) = asked(&restored, "POST", "/v1/vm/rewinds", &Value::Null);
    assert!(status == 200 && rewound["pages"].as_u64() > Some(0), "{rewound}");
    let (status, answer) = asked(&restored, "PUT", "/v1/vm", &snapshot);
    assert!(status == 400 && answer["fault_message"].as_str().unwrap().contains("was started already"));
}

#[test]
fn events_tell_states_progress_and_the_end() {
    needs!(kvm);
    let guest = Guest::waiting();
    let (mut early, path) = (Events::follow(&guest), guest.scratch().fresh("snapshot"));
    early.tells(&json!({"event": "state", "state": "not started"}));
    boot(&guest, "count mib=8", 64);
    early.tells(&json!({"event": "state", "state": "running"}));
    guest.pause();
    early.tells(&json!({"event": "state", "state": "paused"}));
    let mut late = Events::follow(&guest);
    late.tells(&json!({"event": "state", "state": "paused"}));
    assert_eq!(asked(&guest, "POST", "/v1/vm/snapshots", &json!({"path": path})).0, 201);
    guest.resume();
    assert_eq!(asked(&guest, "DELETE", "/v1/vm", &Value::Null).0, 204);
    for client in [&mut early, &mut late] {
        let mut events: Vec<_> = std::iter::from_fn(|| client.next()).collect();
        assert_eq!(events.pop(), Some(json!({"event": "ended", "cause": "stopped"})));
        assert_eq!(events.pop(), Some(json!({"event": "state", "state": "running"})));
        assert!(!events.is_empty() && events.iter().all(|event| event["event"] == "snapshot_progress"));
    }
}

#[test]
fn end_of_the_guest_is_told_with_its_cause() {
    needs!(kvm);
    for (behaviour, cause) in
        [("hello", "poweroff"), ("reboot", "reboot"), ("panic", "panicked"), ("triple-fault", "triple_fault")]
    {
        let guest = Guest::waiting();
        let mut events = Events::follow(&guest);
        events.tells(&json!({"event": "state", "state": "not started"}));
        boot(&guest, behaviour, 64);
        let last = std::iter::from_fn(|| events.next()).last();
        assert_eq!(last, Some(json!({"event": "ended", "cause": cause})), "{behaviour}");
    }
}

/// Boots a guest that has written 256 MiB.
pub(super) fn booted_large() -> Guest {
    let mut guest = Guest::waiting();
    boot(&guest, "count mib=256", 320);
    while guest.next_number("count") < 256 * 4 {}
    guest
}

/// Takes a snapshot that lasts for a while, and calls `meanwhile`. Returns the snapshot's answer.
pub(super) fn during_a_snapshot(guest: &Guest, meanwhile: impl FnOnce()) -> (u16, Value) {
    let path = guest.scratch().fresh("slow");
    let body = json!({"path": path, "compress": "zstd:22"});
    let answer = thread::scope(|scope| {
        let snapshot = scope.spawn(|| asked(guest, "POST", "/v1/vm/snapshots", &body));
        wait_until("a snapshot", || {
            let (status, progress) = asked(guest, "GET", "/v1/vm/snapshots/current", &Value::Null);
            let begun = status == 200 && progress["done_bytes"].as_u64() > Some(0);
            begun || snapshot.is_finished()
        });
        if snapshot.is_finished() {
            panic!("the snapshot ended too early: {:?}", snapshot.join().unwrap());
        }
        meanwhile();
        snapshot.join().unwrap()
    });
    let left: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().flatten().collect();
    assert!(!path.exists() && left.iter().all(|file| !file.file_name().to_string_lossy().contains("slow")));
    answer
}

#[test]
fn snapshot_is_cancelled_by_a_request_and_leaves_nothing() {
    needs!(kvm);
    let mut guest = booted_large();
    let (status, answer) = during_a_snapshot(&guest, || {
        assert_eq!(asked(&guest, "DELETE", "/v1/vm/snapshots/current", &Value::Null).0, 202);
    });
    assert!(status == 400 && answer["fault_message"].as_str().unwrap().contains("cancelled"), "{answer}");
    guest.next_number("count");
}

#[test]
fn end_of_the_vm_waits_for_no_snapshot() {
    needs!(kvm);
    let mut guest = booted_large();
    // More snapshots than calls have room for.
    let (status, answer) = thread::scope(|scope| {
        for number in 0..5 {
            let (guest, path) = (&guest, guest.scratch().fresh(&format!("other-{number}")));
            scope.spawn(move || guest.ask("POST", "/v1/vm/snapshots", &json!({"path": path}).to_string()));
        }
        during_a_snapshot(&guest, || {
            assert_eq!(asked(&guest, "DELETE", "/v1/vm", &Value::Null).0, 204);
        })
    });
    assert!(status == 400 && answer["fault_message"].is_string(), "{answer}");
    assert_eq!(guest.wait_exit().status, 0);
}

#[test]
fn guest_that_obeys_a_shutdown_powers_off() {
    needs!(kvm);
    let mut guest = Guest::waiting();
    let mut events = Events::follow(&guest);
    events.tells(&json!({"event": "state", "state": "not started"}));
    boot(&guest, "obey", 64);
    guest.wait_for("ready");
    assert_eq!(asked(&guest, "PUT", "/v1/vm/shutdown", &json!({"timeout_ms": 600_000})).0, 202);
    let last = std::iter::from_fn(|| events.next()).last();
    assert_eq!(last, Some(json!({"event": "ended", "cause": "poweroff"})));
    let ended = guest.wait_exit();
    assert!(ended.status == 0 && ended.stdout.ends_with("obeying\n"), "{ended:?}");
}

/// The process ends once it has finished the snapshot.
#[test]
fn shutdown_and_stop_wait_for_no_snapshot() {
    needs!(kvm);
    for by_command in [false, true] {
        let mut guest = booted_large();
        let (mut events, path) = (Events::follow(&guest), guest.scratch().fresh("slow"));
        let body = json!({"path": path, "compress": "zstd:22"}).to_string();
        let mut client = connect(guest.socket());
        let head = "POST /v1/vm/snapshots HTTP/1.1\r\nHost: localhost\r\nContent-Length: ";
        client.write_all(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
        wait_until("a snapshot", || {
            let (status, progress) = asked(&guest, "GET", "/v1/vm/snapshots/current", &Value::Null);
            status == 200 && progress["done_bytes"].as_u64() > Some(0)
        });
        let socket = guest.socket().to_str().unwrap().to_owned();
        thread::scope(|scope| {
            let stop = by_command.then(|| scope.spawn(|| Outcome::of(["stop", "-t", "1", &socket])));
            if !by_command {
                assert_eq!(asked(&guest, "PUT", "/v1/vm/shutdown", &json!({"timeout_ms": 100})).0, 202);
            }
            let last = std::iter::from_fn(|| events.next()).last();
            assert_eq!(last, Some(json!({"event": "ended", "cause": "stopped"})));
            assert!(!path.exists(), "the snapshot goes on");
            guest.signal(Signal::KILL);
            guest.wait_exit();
            if let Some(stop) = stop {
                stop.join().unwrap().succeeded();
            }
        });
    }
}

#[test]
fn device_that_the_guest_misuses_is_told_and_counted() {
    needs!(kvm);
    let guest = Guest::waiting();
    let mut events = Events::follow(&guest);
    events.tells(&json!({"event": "state", "state": "not started"}));
    let image = guest.scratch().fresh("image");
    fs::File::create(&image).unwrap().set_len(64 * 512).unwrap();
    let devices = json!({"disks": [{"id": "d", "path": image}]});
    let boot = json!({"kernel": small_guest(), "cmdline": "disk until=1 ending=5"});
    let config = json!({"boot": boot, "memory_mib": 64, "devices": devices});
    assert_eq!(guest.ask("PUT", "/v1/vm", &config.to_string()), (204, String::new()));
    events.tells(&json!({"event": "state", "state": "running"}));
    let told = events.next().unwrap();
    assert_eq!((&told["event"], &told["device"]), (&"device_failed".into(), &"disk-d".into()), "{told}");
    assert!(told["problem"].as_str().is_some_and(|problem| !problem.is_empty()), "{told}");
    let metrics = Exposition::parse(&guest.ask("GET", "/metrics", "").1);
    assert_eq!(metrics.get(r#"volt_vmm_device_failures_total{device="disk-d"}"#), 1.0);
    assert_eq!(state(&guest), "running");
}

/// The load waits for a memory handler that does not answer.
#[test]
fn start_is_cancelled_by_a_request_and_ends_the_process() {
    needs!(kvm, page_faults);
    let counted = counting(8);
    let pair = Pair::fresh(counted.scratch());
    pair.take(&counted, "Full");
    for (method, path, status) in [("DELETE", "/v1/vm", 204), ("PUT", "/v1/vm/shutdown", 202)] {
        let mut guest = Guest::waiting();
        let socket = guest.scratch().fresh("handler");
        let handler = UnixListener::bind(&socket).unwrap();
        let snapshot = json!({"path": pair.state, "memory_handler": socket, "handler_patience": 600});
        let answer = thread::scope(|scope| {
            let load = scope.spawn(|| asked(&guest, "PUT", "/v1/vm", &json!({"snapshot": snapshot})));
            let connected = limited("the load connects", || handler.accept().unwrap());
            let (answered, answer) = asked(&guest, method, path, &json!({}));
            assert_eq!(answered, status, "{answer}");
            drop((connected, handler));
            load.join().unwrap()
        });
        assert_eq!(answer.0, 400, "{answer:?}");
        assert_eq!(guest.wait_exit().status, 0);
    }
}

#[test]
fn guest_that_ignores_a_shutdown_is_ended_after_the_limit() {
    needs!(kvm);
    let mut guest = Guest::waiting();
    boot(&guest, "count mib=8", 64);
    guest.next_number("count");
    guest.pause();
    let (status, _) = asked(&guest, "PUT", "/v1/vm/shutdown", &json!({"timeout_ms": 300}));
    assert_eq!(status, 202);
    guest.next_number("count");
    assert_eq!(guest.wait_exit().status, 0);
}
