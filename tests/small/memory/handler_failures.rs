//! Memory handlers that fail: none listens, or it closes, waits, ignores faults, or dies.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use volt_tests::{Boot, Conduct, Guest, MemoryHandler, Outcome, Snapshot, needs, wait_until};

use crate::snapshot::diffs::{counting, goes_on};
use crate::snapshot::two_files::Pair;

/// Seconds that the VMs here wait for their handler.
const PATIENCE: u64 = 1;
/// The longest time to the end of a VM whose handler is gone: the patience, and a slow host.
const LIMIT: Duration = Duration::from_secs(15);

fn counted() -> Pair {
    let guest = counting(8);
    let pair = Pair::fresh(guest.scratch());
    pair.take(&guest, "Full");
    pair
}

/// Loads a state file with the handler at a socket, within the patience.
fn load(state: &Path, socket: &Path) -> (Guest, u16, String) {
    let guest = Guest::waiting();
    let backend = json!({"backend_type": "Uffd", "backend_path": socket, "patience": PATIENCE});
    let body = json!({"snapshot_path": state, "mem_backend": backend, "resume_vm": true});
    let (status, answer) = guest.ask("PUT", "/snapshot/load", &body.to_string());
    (guest, status, answer)
}

/// Checks that a load fails with these words, and that the process then has no VM and takes another.
fn refused(pair: &Pair, socket: &Path, words: &str) {
    let (mut guest, status, answer) = load(&pair.state, socket);
    assert!(status == 400 && answer.contains(words), "{words:?}: {status} {answer}");
    assert!(answer.contains(socket.to_str().unwrap()), "{answer}");
    let (_, described) = guest.ask("GET", "/v1/vm", "");
    assert!(described.contains("not started"), "{described}");
    let body = json!({"snapshot_path": pair.state, "mem_file_path": pair.memory, "resume_vm": true});
    assert_eq!(guest.ask("PUT", "/snapshot/load", &body.to_string()), (204, String::new()));
    goes_on(&mut guest, 8);
}

/// Waits for the end of a VM, and checks its status and cause.
fn ends(guest: &mut Guest, since: Instant, words: &[&str]) {
    let outcome = guest.wait_exit();
    assert!(since.elapsed() < LIMIT, "it took {:?}", since.elapsed());
    assert_eq!(outcome.status, 5, "{outcome:?}");
    let all = [&["its memory cannot be read", "memory handler at"], words].concat();
    all.iter().for_each(|word| assert!(outcome.stderr.contains(word), "{word}: {}", outcome.stderr));
    assert!(!outcome.stdout.contains("WRONG"), "{}", outcome.stdout);
}

#[test]
fn socket_without_a_handler_is_refused() {
    needs!(kvm, page_faults);
    let pair = counted();
    refused(&pair, Path::new("/missing/handler"), "No such file or directory");
    refused(&pair, &pair.memory, "it is not a socket");
    refused(&pair, pair.scratch.directory(), "it is not a socket");
    let path = pair.scratch.fresh("datagram");
    let _datagram = UnixDatagram::bind(&path).unwrap();
    refused(&pair, &path, "rotocol wrong type for socket");
    let mut dead = MemoryHandler::serving(&pair.memory, &pair.scratch);
    dead.kill();
    refused(&pair, dead.socket(), "no process listens there");
}

#[test]
fn handler_that_closes_at_once_or_never_reads_is_refused() {
    needs!(kvm, page_faults);
    let pair = counted();
    for (conduct, words) in [
        (Conduct::Closes, "it closed the connection before it read the message"),
        (Conduct::Waits, "it has not read the message"),
    ] {
        let handler = MemoryHandler::start(conduct, &pair.memory, &pair.scratch);
        refused(&pair, handler.socket(), words);
    }
    let handler = MemoryHandler::start(Conduct::Closes, &pair.memory, &pair.scratch);
    let outcome = Outcome::of([
        "restore",
        pair.state.to_str().unwrap(),
        "--memory-handler",
        handler.socket().to_str().unwrap(),
    ]);
    outcome.refused(&["memory handler at", "it closed the connection before it read the message"]);
}

#[test]
fn options_for_other_memory_are_refused_beside_a_handler() {
    needs!(kvm, page_faults);
    let pair = counted();
    let handler = MemoryHandler::serving(&pair.memory, &pair.scratch);
    let guest = Guest::waiting();
    for (field, value) in [
        ("unpack", json!(true)),
        ("pager", json!({})),
        ("isolate_base", json!(true)),
        ("record", json!("console")),
    ] {
        let mut body = handler.load(&pair.state);
        body[field] = value;
        let (status, answer) = guest.ask("PUT", "/snapshot/load", &body.to_string());
        assert!(status == 400 && answer.contains("the memory handler alone fills"), "{status} {answer}");
    }
    let (file, socket) = (&pair.memory, handler.socket());
    for (snapshot, words) in [
        (json!({"path": pair.state, "memory_path": file, "memory_handler": socket}), "give one of them"),
        (json!({"path": pair.state, "handler_patience": 1}), "handler_patience: is for a memory_handler"),
    ] {
        let (status, answer) = guest.ask("PUT", "/v1/vm", &json!({"snapshot": snapshot}).to_string());
        assert!(status == 400 && answer.contains(words), "{status} {answer}");
    }
    // The handler serves one VM, so no request above has reached it.
    let mut guest = Guest::waiting();
    let snapshot = json!({"path": pair.state, "memory_handler": socket, "handler_patience": 60});
    let made = guest.ask("PUT", "/v1/vm", &json!({"snapshot": snapshot}).to_string());
    assert_eq!(made, (204, String::new()));
    goes_on(&mut guest, 8);
}

#[test]
fn killed_handler_ends_the_vm_within_the_limit() {
    needs!(kvm, page_faults);
    let pair = counted();
    let mut handler = MemoryHandler::serving(&pair.memory, &pair.scratch);
    let (mut guest, status, answer) = load(&pair.state, handler.socket());
    assert_eq!((status, &*answer), (204, ""));
    guest.next_number("count");
    let since = Instant::now();
    handler.kill();
    ends(&mut guest, since, &["it closed its connection, and no page came for 1 s"]);
}

#[test]
fn handler_that_ignores_faults_ends_the_vm_within_the_limit() {
    needs!(kvm, page_faults);
    let pair = counted();
    let handler = MemoryHandler::start(Conduct::Ignores, &pair.memory, &pair.scratch);
    let since = Instant::now();
    let (mut guest, status, answer) = load(&pair.state, handler.socket());
    // The restore itself may touch memory.
    if status == 204 {
        ends(&mut guest, since, &["no page came for 1 s: it is stopped, or too slow"]);
    } else {
        assert!(answer.contains("no page came for 1 s"), "{answer}");
    }
    assert!(handler.count("ignored") > 0);
}

/// The patience with the handler is ten minutes, and the pause has it, too. It does not wait if KVM leaves
/// the fault to a thread of its own and halts the vCPU (asynchronous page faults).
#[test]
fn scrape_and_stop_do_not_wait_for_a_pause_that_waits_for_memory() {
    needs!(kvm, page_faults);
    let pair = counted();
    let mut handler = MemoryHandler::serving(&pair.memory, &pair.scratch);
    let backend = json!({"backend_type": "Uffd", "backend_path": handler.socket(), "patience": 600});
    let mut guest = handler.restore(&pair.state, &json!({"mem_backend": backend}));
    guest.next_number("count");
    handler.kill();
    wait_until("the guest waits for memory", || guest.waits_for_memory());
    let since = Instant::now();
    std::thread::scope(|scope| {
        let pause = scope.spawn(|| guest.ask("PATCH", "/vm", r#"{"state":"Paused"}"#));
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(guest.ask("GET", "/metrics", "").0, 200);
        let paused = pause.is_finished();
        assert_eq!(guest.ask("PUT", "/v1/stop", ""), (204, String::new()));
        let answer = pause.join().unwrap().0;
        assert!(answer == 204 || answer == 400 && !paused, "{answer}");
    });
    assert_eq!(guest.wait_exit().status, 0);
    assert!(since.elapsed() < LIMIT, "it took {:?}", since.elapsed());
}

#[test]
fn stopped_handler_ends_a_balloon_that_waits_for_it() {
    needs!(kvm, page_faults);
    let mut guest = Boot::small("balloon mib=12").device(["--balloon"]).start();
    guest.wait_for("ready");
    let pair = Pair::fresh(guest.scratch());
    pair.take(&guest, "Full");
    let mut handler = MemoryHandler::serving(&pair.memory, &pair.scratch);
    let (mut guest, status, answer) = load(&pair.state, handler.socket());
    assert_eq!((status, &*answer), (204, ""));
    guest.type_in("c");
    assert_eq!(guest.next_number("checked"), 12 << 8);
    handler.kill();
    let since = Instant::now();
    // The drop of its pages waits for a handler that reads of it.
    assert_eq!(guest.ask("PATCH", "/balloon", r#"{"amount_mib":8}"#).0, 204);
    ends(&mut guest, since, &["no page came for 1 s"]);
}

#[test]
fn handler_that_closes_its_connection_serves_on() {
    needs!(kvm, page_faults);
    let pair = counted();
    let handler = MemoryHandler::start(Conduct::ServesWithoutConnection, &pair.memory, &pair.scratch);
    let (mut guest, status, answer) = load(&pair.state, handler.socket());
    assert_eq!((status, &*answer), (204, ""));
    goes_on(&mut guest, 8);
    // Without a fault, nobody waits for it.
    std::thread::sleep(Duration::from_secs(3 * PATIENCE));
    goes_on(&mut guest, 8);
}

#[test]
fn connection_to_a_handler_has_no_end_while_the_vm_runs() {
    needs!(kvm, page_faults);
    let pair = counted();
    let handler = MemoryHandler::start(Conduct::ServesUntilTheEnd, &pair.memory, &pair.scratch);
    let (mut guest, status, answer) = load(&pair.state, handler.socket());
    assert_eq!((status, &*answer), (204, ""));
    goes_on(&mut guest, 8);
    assert!(handler.mappings().is_array());
}

#[test]
fn snapshot_of_a_vm_with_a_dead_handler_fails() {
    needs!(kvm, page_faults);
    let pair = counted();
    let mut handler = MemoryHandler::serving(&pair.memory, &pair.scratch);
    let (mut guest, ..) = load(&pair.state, handler.socket());
    goes_on(&mut guest, 8);
    handler.kill();
    let since = Instant::now();
    let directory = pair.scratch.fresh("snapshot");
    let outcome = guest.try_snapshot(&directory);
    assert!(outcome.status != 0 && outcome.stderr.contains("no page came for 1 s"), "{outcome:?}");
    assert!(!directory.exists());
    ends(&mut guest, since, &["no page came for 1 s"]);
}

#[test]
fn interrupt_ends_a_vm_that_waits_for_its_handler() {
    needs!(kvm, page_faults);
    let pair = counted();
    let handler = MemoryHandler::start(Conduct::Ignores, &pair.memory, &pair.scratch);
    let options = ["--memory-handler", handler.socket().to_str().unwrap(), "--handler-patience", "3600"];
    let mut guest = Snapshot::at(pair.state.clone(), &pair.scratch).restore_as(&options);
    wait_until("a fault waits", || handler.count("ignored") > 0);
    let since = Instant::now();
    guest.signal(Signal::INT);
    guest.wait_exit();
    assert!(since.elapsed() < LIMIT, "it took {:?}", since.elapsed());
    let waiting = MemoryHandler::start(Conduct::Waits, &pair.memory, &pair.scratch);
    let options = ["--memory-handler", waiting.socket().to_str().unwrap(), "--handler-patience", "3600"];
    let mut guest = Snapshot::at(pair.state.clone(), &pair.scratch).restore_as(&options);
    std::thread::sleep(Duration::from_millis(300));
    guest.signal(Signal::INT);
    guest.wait_exit();
}
