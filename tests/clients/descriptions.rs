//! schemathesis sends what the descriptions of both faces allow, and what they do not. No answer is a
//! server's error, and none lies outside of the description. The VM runs on.

use std::fs;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use serde_json::json;
use volt_tests::need::clients_directory;
use volt_tests::{Guest, needs, output, small_guest};

/// Serves a unix socket on a TCP port, which schemathesis needs. The thread lives as long as the test's
/// process.
fn port_of(socket: &Path) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let socket = socket.to_owned();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = UnixStream::connect(&socket) else { continue };
            join(client, server);
        }
    });
    port
}

/// Copies bytes both ways.
fn join(client: TcpStream, server: UnixStream) {
    let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    thread::spawn(move || {
        let _ = io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    });
    let (mut from_server, mut to_client) = (server, client);
    thread::spawn(move || {
        let _ = io::copy(&mut from_server, &mut to_client);
        let _ = to_client.shutdown(Shutdown::Write);
    });
}

/// Has schemathesis try all of a description but these paths.
fn try_all(guest: &Guest, description: &Path, without: &[&str]) {
    let mut command = Command::new(clients_directory().join("schemathesis"));
    command.arg("run").arg(description).current_dir(guest.scratch().directory());
    command.args(["--url", &format!("http://127.0.0.1:{}", port_of(guest.socket()))]);
    command.args(without.iter().flat_map(|path| ["--exclude-path", path]));
    let checks = [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
    ];
    command.args(["--checks", &checks.join(",")]);
    // The same requests in each run.
    command.args(["--generation-deterministic", "--max-examples", "10"]);
    command.args(["--no-color", "--request-timeout", "60", "--warnings", "off"]);
    let done = output(&mut command);
    let told = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{told}\n{}", String::from_utf8_lossy(&done.stderr));
    let sum = told.lines().find_map(|line| line.trim().split_once(" generated, ")).map(|(count, _)| count);
    assert!(sum.and_then(|count| count.parse().ok()).unwrap_or(0) > 200, "few requests: {told}");
}

/// The description of the native face, as the process itself gives it.
fn native(guest: &Guest) -> PathBuf {
    let (status, text) = guest.ask("GET", "/openapi.json", "");
    assert_eq!(status, 200);
    let path = guest.scratch().fresh("openapi.json");
    fs::write(&path, text).unwrap();
    path
}

fn firecrackers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/firecracker.json")
}

/// Starts a process that may open no file of others.
fn waiting() -> Guest {
    Guest::waiting_in_scratch(&["--confine", "strict"])
}

/// Boots the small guest, which counts, beside a balloon, whose answers need one.
fn boot(guest: &Guest) {
    let balloon = json!({"statistics_interval": 1, "hinting": true});
    let boot = json!({"boot": {"kernel": small_guest(), "cmdline": "count mib=8"},
                      "devices": {"balloon": balloon}});
    assert_eq!(guest.ask("PUT", "/v1/vm", &boot.to_string()).0, 204);
}

#[test]
fn native_face_without_a_vm_keeps_to_its_description() {
    needs!(kvm, clients);
    let guest = waiting();
    try_all(&guest, &native(&guest), &["/v1/vm/events"]);
    assert!(guest.ask("GET", "/v1/vm", "").1.contains("not started"));
}

#[test]
fn firecrackers_face_without_a_vm_keeps_to_its_description() {
    needs!(kvm, clients);
    let guest = waiting();
    try_all(&guest, &firecrackers(), &[]);
    assert!(guest.ask("GET", "/", "").1.contains("Not started"));
}

#[test]
fn both_faces_of_a_running_vm_keep_to_their_descriptions() {
    needs!(kvm, clients);
    let directory = small_guest().parent().unwrap().to_str().unwrap().to_owned();
    let mut guest = Guest::waiting_in_scratch(&["--confine", "strict", "--allow-path", &directory]);
    boot(&guest);
    guest.next_number("count");
    // These end the VM, or never end themselves.
    try_all(&guest, &native(&guest), &["/v1/vm/events", "/v1/vm/shutdown", "/v1/vm"]);
    try_all(&guest, &firecrackers(), &[]);
    guest.resume();
    guest.next_number("count");
}
