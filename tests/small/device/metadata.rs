//! A small guest fetches metadata from its network device, by frames of its own TCP.

use std::fs;

use serde_json::{Value, json};
use volt_tests::wire::KIND;
use volt_tests::{Child, Guest, Outcome, Recorder, Scratch, Wire, needs, rest, small_guest};
use volt_vmm::config::devices::{NetBackend, NetConfig};
use volt_vmm::config::metadata::MetadataConfig;
use volt_vmm::config::overrides::NetOverride;
use volt_vmm::config::{Devices, Overrides};
use volt_vmm::{MetadataStore, RestoreOptions, Snapshot, Store, Vm, VmConfig};

/// Returns a name for a tap that no other test uses.
fn tap(name: &str) -> String {
    format!("m{}{name}", std::process::id())
}

/// Sends a request that succeeds.
#[track_caller]
fn put(guest: &Guest, path: &str, body: &Value) {
    let answer = guest.ask("PUT", path, &body.to_string());
    assert_eq!(answer, (204, String::new()), "{path} {body}");
}

/// Boots a guest by Firecracker's requests, with such a service and this content.
fn boot(tap: &str, service: Value, content: Option<&Value>) -> Guest {
    boot_with("", tap, service, content)
}

/// Boots such a guest with more words on its command line.
fn boot_with(words: &str, tap: &str, service: Value, content: Option<&Value>) -> Guest {
    let mut guest = Guest::waiting();
    put(
        &guest,
        "/boot-source",
        &json!({
            "kernel_image_path": small_guest(), "boot_args": format!("metadata requests=50 {words}"),
        }),
    );
    put(&guest, "/machine-config", &json!({"vcpu_count": 1, "mem_size_mib": 64}));
    put(&guest, "/network-interfaces/eth0", &json!({"iface_id": "eth0", "host_dev_name": tap}));
    let mut config = json!({"network_interfaces": ["eth0"]});
    config.as_object_mut().unwrap().extend(service.as_object().unwrap().clone());
    put(&guest, "/mmds/config", &config);
    content.into_iter().for_each(|content| put(&guest, "/mmds", content));
    put(&guest, "/actions", &json!({"action_type": "InstanceStart"}));
    guest.wait_for("ready");
    guest
}

/// Gives the guest an order, and returns its answer.
fn order(guest: &mut Guest, order: &str) -> String {
    guest.type_in(order).next_line(&format!("{order} "))
}

fn content() -> Value {
    json!({"latest": {"user-data": "hello", "meta-data": {"id": 7}}})
}

#[test]
fn guest_gets_metadata_with_the_token_that_the_version_requires() {
    needs!(kvm, network);
    for (version, without) in [("V1", "200 hello"), ("V2", "401 ")] {
        let mut guest = boot(&tap(version), json!({ "version": version }), Some(&content()));
        assert!(order(&mut guest, "p").starts_with(without), "{version}: {}", guest.output());
        assert!(order(&mut guest, "t").starts_with("200 "), "{version}: {}", guest.output());
        assert_eq!(order(&mut guest, "g"), "200 hello", "{version}");
        assert!(!guest.output().contains("WRONG"), "{}", guest.output());
    }
}

#[test]
fn guest_sees_changes_of_the_host_in_the_form_that_it_accepts() {
    needs!(kvm, network);
    let mut guest = boot(&tap("change"), json!({"ipv4_address": "169.254.169.254"}), None);
    assert!(order(&mut guest, "p").starts_with("404 "), "nothing was put");
    assert_eq!(guest.ask("PATCH", "/mmds", "{}").0, 400);
    put(&guest, "/mmds", &content());
    assert_eq!(order(&mut guest, "j"), r#"200 "hello""#);
    let patch = json!({"latest": {"user-data": {"b": 1, "a": {}}}}).to_string();
    assert_eq!(guest.ask("PATCH", "/mmds", &patch).0, 204);
    assert_eq!(order(&mut guest, "p"), "200 a/");
    guest.wait_for("b\n");
    assert_eq!(order(&mut guest, "j"), r#"200 {"a":{},"b":1}"#);
    let again = guest.ask("PUT", "/mmds/config", r#"{"network_interfaces":["eth0"]}"#);
    assert!(again.0 == 400 && again.1.contains("was started already"), "{again:?}");
    let compatible = boot(&tap("imds"), json!({"imds_compat": true}), Some(&content()));
    let mut compatible = compatible;
    assert_eq!(order(&mut compatible, "j"), "200 hello");
}

#[test]
fn backend_sees_no_frame_of_the_service() {
    needs!(kvm, network);
    let tap = tap("wire");
    let mut guest = boot(&tap, json!({}), Some(&content()));
    let wire = Wire::of(&tap);
    let received = || fs::read_to_string(format!("/sys/class/net/{tap}/statistics/rx_packets")).unwrap();
    assert_eq!(order(&mut guest, "p"), "200 hello");
    for (act, frames) in [("c", "0"), ("k", "0")] {
        guest.type_in(act);
        assert_eq!(guest.next_number("requests"), 50);
        assert_eq!(received().trim(), frames, "{act}");
    }
    order(&mut guest, "x");
    assert_eq!(wire.receive()[12..14], KIND.to_be_bytes(), "other frames go there");
    assert_eq!(received().trim(), "1");
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
}

#[test]
fn clone_has_the_service_but_neither_data_nor_tokens() {
    needs!(kvm, network);
    let mut guest = boot(&tap("orig"), json!({"version": "V2"}), Some(&content()));
    assert!(order(&mut guest, "t").starts_with("200 "), "{}", guest.output());
    guest.pause();
    let snapshot = guest.snapshot();
    guest.resume();
    assert!(!fs::read_to_string(snapshot.state_path()).unwrap().contains("hello"), "data is in the snapshot");
    assert_eq!(order(&mut guest, "g"), "200 hello", "the VM itself has both");

    let mut clone = snapshot.restore_as(&["--net", &format!("id=eth0,tap={}", tap("one"))]);
    let config: Value = serde_json::from_str(&clone.ask("GET", "/vm/config", "").1).unwrap();
    assert_eq!(config["mmds-config"]["version"], "V2", "{config}");
    assert_eq!(clone.ask("GET", "/mmds", ""), (200, "{}".to_owned()));
    assert!(order(&mut clone, "g").starts_with("401 "), "{}", clone.output());
    assert!(order(&mut clone, "t").starts_with("200 "), "{}", clone.output());
    assert!(order(&mut clone, "g").starts_with("404 "), "{}", clone.output());
    put(&clone, "/mmds", &json!({"latest": {"user-data": "clone"}}));
    assert_eq!(order(&mut clone, "g"), "200 clone");
    assert_eq!(order(&mut guest, "g"), "200 hello");

    // Data that a client gives before it loads a snapshot is that of the clone.
    let mut loaded = Guest::waiting();
    put(&loaded, "/mmds", &json!({"latest": {"user-data": "before"}}));
    let load = json!({
        "snapshot_path": snapshot.directory(), "resume_vm": true,
        "network_overrides": [{"iface_id": "eth0", "host_dev_name": tap("two")}],
    });
    put(&loaded, "/snapshot/load", &load);
    assert!(order(&mut loaded, "t").starts_with("200 "), "{}", loaded.output());
    assert_eq!(order(&mut loaded, "g"), "200 before");
}

#[test]
fn child_of_a_fork_has_the_limits_of_its_parent() {
    needs!(kvm);
    let words = ["--mmds-size-limit", "30", "--http-api-max-payload-size", "1000"];
    let guest = Guest::of_firecracker(&words);
    put(&guest, "/boot-source", &json!({"kernel_image_path": small_guest(), "boot_args": "count mib=1"}));
    put(&guest, "/machine-config", &json!({"vcpu_count": 1, "mem_size_mib": 64}));
    put(&guest, "/actions", &json!({"action_type": "InstanceStart"}));
    let directory = guest.scratch().directory().to_owned();
    let children = Child::fork(guest.socket(), &directory, &[("a", json!({}))], false);
    let text = |len: usize| json!("x".repeat(len)).to_string();
    for socket in [guest.socket(), children[0].socket()] {
        let put = |len| rest::ask(socket, "PUT", "/mmds", &text(len));
        assert_eq!(put(28), (204, String::new()));
        let (status, answer) = put(29);
        assert!(status == 413 && answer.contains("limit of 30 bytes"), "{status} {answer}");
        let (status, answer) = put(999);
        assert!(status == 413 && answer.contains("longer than 1000 bytes"), "{status} {answer}");
    }
}

#[test]
fn connection_of_before_a_restore_is_answered_by_a_reset() {
    needs!(kvm, network);
    let mut guest = boot_with("rounds=1000000000", &tap("open"), json!({}), Some(&content()));
    // The snapshot falls between requests on one connection, which has no end.
    guest.type_in("k").next_number("requests");
    let snapshot = guest.snapshot();
    guest.next_number("requests");
    let mut clone = snapshot.restore_as(&["--net", &format!("id=eth0,tap={}", tap("late"))]);
    clone.wait_for("WRONG reset connection");
}

#[test]
fn clones_in_one_process_share_no_data() {
    needs!(kvm, network);
    let (scratch, recorder) = (Scratch::new(), Recorder::default());
    let backend = |name: &str| NetBackend::Tap(tap(name));
    let store = MetadataStore::default();
    store.put(json!("of the original")).unwrap();
    let devices = Devices::default()
        .network(NetConfig::new("eth0", backend("lib")))
        .metadata(MetadataConfig::new(["eth0"]).store(store));
    let config = VmConfig::new(small_guest()).cmdline("metadata").memory_mib(64).devices(devices);
    let vm = Vm::builder().config(config).console(recorder.console()).start().unwrap();
    recorder.wait_for("ready");
    let snapshots = Store::open(&format!("file://{}", scratch.directory().display())).unwrap();
    vm.snapshot(&snapshots, "warm").unwrap();
    let warm = Snapshot::open(&snapshots, "warm").unwrap();
    let on_tap = |name: &str| {
        let other = NetOverride { id: "eth0".into(), backend: Some(backend(name)), ..NetOverride::default() };
        RestoreOptions::default().overrides(Overrides { networks: vec![other], ..Overrides::default() })
    };
    let given = MetadataStore::default();
    let one = warm.restore_with(on_tap("given").metadata(given.clone())).unwrap();
    let other = warm.restore_with(on_tap("none")).unwrap();
    let child = vm.fork([on_tap("child")]).unwrap().pop().unwrap();
    let store = |vm: &Vm| vm.config().devices.metadata.unwrap().store;
    given.put(json!("given")).unwrap();
    store(&other).put(json!("of the other")).unwrap();
    let contents = [&vm, &one, &other, &child].map(|vm| store(vm).content());
    let expected = [Some(json!("of the original")), Some(json!("given")), Some(json!("of the other")), None];
    assert_eq!(contents, expected);
}

#[test]
fn metadata_of_a_file_is_there_from_the_start() {
    needs!(kvm, network);
    let scratch = Scratch::new();
    let (config, metadata) = (scratch.fresh("config.json"), scratch.fresh("metadata.json"));
    let vm = json!({
        "boot-source": {"kernel_image_path": small_guest(), "boot_args": "metadata once=1"},
        "machine-config": {"vcpu_count": 1, "mem_size_mib": 64},
        "network-interfaces": [{"iface_id": "eth0", "host_dev_name": tap("file")}],
        "mmds-config": {"network_interfaces": ["eth0"], "version": "V1"},
    });
    fs::write(&config, vm.to_string()).unwrap();
    fs::write(&metadata, content().to_string()).unwrap();
    let run = |more: &[&str]| {
        let words = ["--no-api", "--config-file", config.to_str().unwrap()];
        Outcome::of(words.iter().chain(more).map(std::ffi::OsStr::new))
    };
    let metadata = ["--metadata", metadata.to_str().unwrap()];
    let done = run(&metadata);
    assert!(done.status == 0 && done.stdout.contains("p 200 hello"), "{done:?}");
    let done = run(&[&metadata[..], &["--mmds-size-limit", "20"]].concat());
    assert!(done.status == 1 && done.stderr.contains("exceeds the limit of 20 bytes"), "{done:?}");
}
