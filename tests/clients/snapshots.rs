//! A client of Firecracker takes a snapshot in two files, and runs another VM from it.

use std::fs;

use serde_json::Value;
use volt_tests::{MemoryHandler, needs};

use crate::jailed::{Files, GO_CLIENTS, has};

#[test]
fn go_sdk_snapshots_a_vm_and_restores_another() {
    needs!(kvm, root, clients);
    for client in GO_CLIENTS.into_iter().filter(|client| has(client)) {
        let files = Files::new();
        let told = files.run(client, &["snapshot"], &[("VOLT_SECCOMP", "on")]);
        check_snapshot(&files, &told);
    }
}

/// Checks what a client tells of its two VMs, their logs and their metrics.
fn check_snapshot(files: &Files, told: &str) {
    assert!(told.contains("restored in ") && told.contains("info: id=second state=Running\n"), "{told}");
    assert_eq!(told.matches("exit status 143").count(), 2, "SIGTERM ends both: {told}");
    let log = fs::read_to_string(files.scratch.path("jails").join("first.log")).unwrap();
    assert!(log.starts_with("20") && log.contains(" [first:") && log.contains("paused the guest"), "{log}");
    for (name, act) in [("first", "full_create_snapshot"), ("second", "load_snapshot")] {
        let text = fs::read_to_string(files.scratch.path("jails").join(format!("{name}.metrics"))).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        // One of the start, and one of the end.
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[1]["block_disk"]["write_count"].as_u64() > Some(0), "{text}");
        assert!(lines[1]["latencies_us"][act].as_u64() > Some(0), "{text}");
    }
}

#[test]
fn go_sdk_loads_memory_by_each_backend() {
    needs!(kvm, root, clients, page_faults);
    if !has("go-sdk-main") {
        return volt_tests::need::skip("no go-sdk-main");
    }
    for kind in ["File", "Uffd"] {
        let files = Files::new();
        files.run("go-sdk-main", &["take"], &[("VOLT_SECCOMP", "on")]);
        let memory = files.scratch.path("jails").join("memory");
        let handler = (kind == "Uffd").then(|| MemoryHandler::serving(&memory, &files.scratch));
        let path =
            handler.as_ref().map_or(memory.as_path(), MemoryHandler::socket).to_str().unwrap().to_owned();
        let backend = [("VOLT_SECCOMP", "on"), ("VOLT_BACKEND", kind), ("VOLT_BACKEND_PATH", path.as_str())];
        let told = files.run("go-sdk-main", &["load"], &backend);
        assert!(told.contains("info: id=second state=Running\n"), "{kind}: {told}");
        if let Some(handler) = handler {
            assert!(handler.mappings().as_array().is_some_and(|mappings| !mappings.is_empty()));
        }
    }
}

#[test]
fn fctools_snapshots_a_vm_and_restores_another() {
    needs!(kvm, root, clients);
    let files = Files::new();
    let told = files.run("volt-fctools", &["snapshot"], &[]);
    assert!(told.contains("info: id=second paused=false\n"), "{told}");
    assert_eq!(told.matches("ended: ").count(), 2, "{told}");
}
