//! Linux fetches metadata from its network device by its own TCP.

use std::fs;

use serde_json::json;
use volt_tests::{Boot, Guest, Network, Scratch, needs};

/// Sends a request to the service, and returns status and body.
fn fetch(guest: &mut Guest, request: &str) -> String {
    let lines = guest.order(&format!("http 169.254.169.254:80 {request}"));
    let text = lines.join("\n");
    text.strip_prefix("http ").unwrap_or_else(|| panic!("{request}: {text}")).to_owned()
}

#[test]
fn linux_gets_a_token_and_data_before_and_after_a_restore() {
    needs!(linux, network);
    let (network, scratch) = (Network::new(), Scratch::new());
    let config = scratch.fresh("config.json");
    let long = "0123456789".repeat(4000);
    let vm = json!({"boot": {"kernel": "/overridden"}, "devices": {
        "networks": [{"id": "eth0", "backend": {"tap": "tap0"}}],
        "metadata": {"networks": ["eth0"], "require_token": true},
    }});
    fs::write(&config, vm.to_string()).unwrap();
    let boot = Boot::linux().device(["--config-file", config.to_str().unwrap()]);
    let mut guest = boot.inside(network.namespace()).start();
    guest.wait_until_ready();
    guest.order("net eth0 169.254.1.2/16");
    let put = |guest: &Guest, user_data: &str| {
        let content = json!({"latest": {"user-data": user_data, "meta-data": {"id": "i-1"}}}).to_string();
        assert_eq!(guest.ask("PUT", "/mmds", &content).0, 204);
    };
    let token_of = |guest: &mut Guest| {
        let answer = fetch(guest, "PUT /latest/api/token X-metadata-token-ttl-seconds:600");
        answer.strip_prefix("200 ").unwrap_or_else(|| panic!("{answer}")).to_owned()
    };
    put(&guest, &long);
    let token = token_of(&mut guest);
    let with = |token: &str, path: &str| format!("GET {path} X-metadata-token:{token}");
    assert!(fetch(&mut guest, "GET /latest").starts_with("401 "));
    assert_eq!(fetch(&mut guest, &with(&token, "/latest")), "200 meta-data/\nuser-data");
    assert_eq!(fetch(&mut guest, &with(&token, "/latest/user-data")), format!("200 {long}"));

    let snapshot = guest.snapshot();
    drop(guest);
    let mut clone = snapshot.restore_inside(network.namespace(), &[]);
    assert!(fetch(&mut clone, &with(&token, "/latest")).starts_with("401 "));
    let token = token_of(&mut clone);
    assert!(fetch(&mut clone, &with(&token, "/latest")).starts_with("404 "));
    put(&clone, "clone");
    assert_eq!(fetch(&mut clone, &with(&token, "/latest/user-data")), "200 clone");
}
