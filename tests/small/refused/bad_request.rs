//! The API refuses bad requests, and the guest does not notice them.

use std::io::{Read, Write};

use volt_tests::{Guest, limited, needs, rest};

#[test]
fn unknown_paths_methods_fields_and_values_are_refused() {
    needs!(kvm);
    let mut guest = Guest::boot("count");
    guest.wait_for("count");
    for (method, path, body, status, words) in [
        ("GET", "/nowhere", "", 400, "Invalid request method and/or path: GET /nowhere."),
        ("GET", "/../etc/passwd", "", 400, "Invalid request method and/or path"),
        ("PUT", "/vm", "{}", 400, "path: PUT /vm."),
        ("DELETE", "/", "", 400, "path: DELETE /."),
        ("GET", "/snapshot/create", "", 400, "path: GET /snapshot/create."),
        ("GET", "/v1/nowhere", "", 404, "no such path: /v1/nowhere"),
        ("POST", "/v1/vm", "{}", 405, "POST is not allowed on /v1/vm"),
        ("PATCH", "/vm", r#"{"state":"Paused","now":true}"#, 400, "unknown field `now`"),
        ("PATCH", "/vm", r#"{"state":"Asleep"}"#, 400, "unknown variant `Asleep`"),
        ("PATCH", "/vm", r#"{"state":"#, 400, "EOF"),
        ("PATCH", "/vm", "", 400, "empty"),
        ("PATCH", "/vm", "\u{0}\u{1}", 400, "request body"),
        (
            "PUT",
            "/snapshot/create",
            r#"{"snapshot_path":"/x","compress":"gzip"}"#,
            400,
            "write lz4, zstd or zstd:LEVEL",
        ),
        ("PUT", "/snapshot/create", r#"{"snapshot_path":"/x","pack":1}"#, 400, "unknown field `pack`"),
        ("PUT", "/snapshot/create", r#"{"snapshot_path":["/x"]}"#, 400, "invalid type"),
        ("PUT", "/snapshot/create", r#"{"snapshot_path":""}"#, 400, "snapshot"),
        ("PUT", "/snapshot/create", r#"{"snapshot_path":"/nowhere/x"}"#, 400, "/nowhere"),
        ("PUT", "/snapshot/load", r#"{"snapshot_path":"/x","resume":true}"#, 400, "unknown field `resume`"),
        ("PUT", "/snapshot/load", r#"{"snapshot_path":"/x"}"#, 400, "was started already"),
    ] {
        let (answered, fault) = guest.ask(method, path, body);
        assert_eq!(answered, status, "{method} {path} {body}: {fault}");
        let fault: serde_json::Value = serde_json::from_str(&fault).unwrap();
        assert!(fault["fault_message"].as_str().unwrap().contains(words), "{method} {path} {body}: {fault}");
    }
    guest.next_number("count");
    assert_eq!(guest.messages(), "");
}

#[test]
fn malformed_request_is_refused() {
    needs!(kvm);
    let mut guest = Guest::boot("count");
    guest.wait_for("count");
    for nonsense in [
        &b"\r\n\r\n"[..],
        b"hello\n\n",
        &[0xff; 1000],
        b"GET / HTTP/9.9\r\n\r\n",
        b"PATCH /vm HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ] {
        let mut stream = rest::connect(guest.socket());
        let _ = stream.write_all(nonsense);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = limited("the API answers nonsense", || stream.read_to_end(&mut answer));
        assert!(!answer.starts_with(b"HTTP/1.1 2"), "{nonsense:?}");
    }
    let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(70_000));
    for (request, status) in [
        (&b"\xff\xff HTTP\r\n\r\n"[..], "400 Bad Request"),
        (b"PATCH /vm HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "400 Bad Request"),
        (long.as_bytes(), "431 Request Header Fields Too Large"),
    ] {
        let mut stream = rest::connect(guest.socket());
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = limited("the API answers nonsense", || stream.read_to_end(&mut answer));
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{answer}");
        assert!(answer.ends_with("\r\n\r\n"), "the body is empty: {answer}");
    }
    assert_eq!(guest.ask("GET", "/", "").0, 200);
    guest.next_number("count");
}

#[test]
fn failed_load_leaves_the_process_ready_for_the_next() {
    needs!(kvm);
    let mut original = Guest::boot("count");
    original.wait_for("count");
    let snapshot = original.snapshot();
    let mut guest = Guest::waiting();
    let (status, fault) = guest.ask("PUT", "/snapshot/load", r#"{"snapshot_path":"/nowhere"}"#);
    assert!(status == 400 && fault.contains("/nowhere"), "{fault}");
    let load = format!(r#"{{"snapshot_path":{:?},"resume_vm":true}}"#, snapshot.directory());
    assert_eq!(guest.ask("PUT", "/snapshot/load", &load).0, 204);
    guest.next_number("count");
}
