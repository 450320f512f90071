//! Answers of the REST API, `--json` outputs and the state file keep their fields, because programs read
//! them. The path and type of each value are compared with tests/golden/answers.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use volt_tests::{Boot, Guest, Outcome, Scratch, needs};

const EXPECTED: &str = include_str!("../../golden/answers");

/// Adds the path and type of each value in `value`. Elements of a list count as one. All MSRs count as one,
/// too, because the host decides which exist.
fn add_fields(of: &str, value: &Value, to: &mut BTreeSet<String>) {
    let mut add = |kind: &str| to.insert(format!("{of}: {kind}"));
    match value {
        Value::Null => drop(add("null")),
        Value::Bool(_) => drop(add("boolean")),
        Value::Number(_) => drop(add("number")),
        Value::String(_) => drop(add("text")),
        Value::Array(all) if all.is_empty() => drop(add("empty list")),
        Value::Array(all) => all.iter().for_each(|value| add_fields(&format!("{of}[]"), value, to)),
        Value::Object(all) if all.is_empty() => drop(add("empty object")),
        Value::Object(all) => {
            for (name, value) in all {
                let name = if name.starts_with("0x") { "MSR" } else { name };
                add_fields(&format!("{of}.{name}"), value, to);
            }
        }
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Compares the fields of `answers` with those expected for `part`. For an intended change, `VOLT_GOLDEN`
/// names a directory that receives the found fields.
fn keep_their_fields(part: &str, answers: &[(&str, Value)]) {
    let mut fields = BTreeSet::new();
    for (name, answer) in answers {
        add_fields(name, answer, &mut fields);
    }
    let found: String = fields.iter().map(|field| format!("{part} {field}\n")).collect();
    let expected: String = EXPECTED
        .lines()
        .filter(|line| line.split(' ').next() == Some(part))
        .map(|line| format!("{line}\n"))
        .collect();
    if let Some(directory) = std::env::var_os("VOLT_GOLDEN") {
        fs::write(Path::new(&directory).join(part), &found).expect("write what was found");
    }
    let gone: Vec<_> = expected.lines().filter(|line| !fields.contains(&line[part.len() + 1..])).collect();
    let new: Vec<_> = found.lines().filter(|line| !expected.contains(&format!("{line}\n"))).collect();
    assert!(gone.is_empty() && new.is_empty(), "gone: {gone:#?}\nnew: {new:#?}");
}

/// Starts a guest with each device that needs no privilege.
fn guest() -> (Scratch, Guest) {
    let scratch = Scratch::new();
    let (base, layer) = (scratch.path("base.img"), scratch.path("layer"));
    fs::write(&base, vec![7; 64 << 10]).unwrap();
    let disk = format!("id=root,path={},layer={},layer-size=1M", base.display(), layer.display());
    let vsock = format!("cid=3,socket={}", scratch.path("vsock").display());
    let balloon = "statistics=1,hinting,reporting";
    let console = scratch.path("console");
    let console = console.to_str().unwrap();
    let options = ["--disk", &disk, "--vsock", &vsock, "--rng", "--balloon", balloon, "--console", console];
    let mut guest = Boot::small("count mib=8").device(options).start();
    guest.wait_for("count");
    (scratch, guest)
}

fn get(guest: &Guest, path: &str) -> Value {
    let (status, body) = guest.ask("GET", path, "");
    assert_eq!(status, 200, "{path}: {body}");
    parsed(&body)
}

#[test]
fn answers_over_rest_keep_their_fields() {
    needs!(kvm, page_faults);
    let (_scratch, guest) = guest();
    let paths = ["/", "/version", "/machine-config", "/vm/config", "/v1/vm", "/v1/vm/memory", "/balloon"];
    let mut answers: Vec<_> = paths.iter().map(|path| (*path, get(&guest, path))).collect();
    // A child would have the vsock socket of the VM.
    let fork = json!({ "children": [{ "api_socket": guest.scratch().path("child") }] }).to_string();
    answers.push(("curable error", parsed(&guest.ask("POST", "/v1/vm/fork", &fork).1)));
    let snapshot = guest.snapshot_as(&["--compress", "lz4"]);
    // The restored VM has the same vsock socket.
    guest.kill();
    let mut restored = snapshot.restore();
    restored.wait_for("count");
    answers.push(("packed /v1/vm/memory", get(&restored, "/v1/vm/memory")));
    answers.push(("/v1/vm/rewind", parsed(&restored.ask("PUT", "/v1/vm/rewind", "").1)));
    answers.push(("error", parsed(&restored.ask("PUT", "/v1/boot", "{}").1)));
    keep_their_fields("rest", &answers);
}

#[test]
fn firecrackers_requests_keep_their_fields() {
    needs!(kvm);
    let (scratch, guest) = (Scratch::new(), Guest::waiting());
    let file = scratch.path("file");
    fs::write(&file, vec![7; 64 << 10]).unwrap();
    let limit = json!({ "bandwidth": { "size": 1, "one_time_burst": 1, "refill_time": 1 },
                        "ops": { "size": 1, "one_time_burst": 1, "refill_time": 1 } });
    for (path, body) in [
        ("/boot-source", json!({ "kernel_image_path": file, "initrd_path": file, "boot_args": "x" })),
        (
            "/machine-config",
            json!({ "vcpu_count": 2, "mem_size_mib": 64, "smt": false, "track_dirty_pages": false }),
        ),
        (
            "/drives/root",
            json!({ "drive_id": "root", "path_on_host": file, "is_root_device": false,
                    "is_read_only": false, "cache_type": "Writeback", "io_engine": "Async",
                    "rate_limiter": limit }),
        ),
        (
            "/drives/data",
            json!({ "drive_id": "data", "path_on_host": file, "is_root_device": false,
                    "beneath_path": file, "layer_path": file, "layer_size": 65536 }),
        ),
        (
            "/network-interfaces/eth0",
            json!({ "iface_id": "eth0", "host_dev_name": "tap0", "guest_mac": "02:00:00:00:00:01",
                    "rx_rate_limiter": limit, "tx_rate_limiter": limit }),
        ),
        (
            "/network-interfaces/eth1",
            json!({ "iface_id": "eth1", "passt": { "forward": [[8080, 80]] }, "mtu": 1400,
                    "offload": false }),
        ),
        ("/vsock", json!({ "vsock_id": "v", "guest_cid": 3, "uds_path": scratch.path("vsock") })),
        ("/entropy", json!({})),
        (
            "/balloon",
            json!({ "amount_mib": 1, "deflate_on_oom": true, "stats_polling_interval_s": 1,
                    "free_page_hinting": true, "free_page_reporting": true }),
        ),
    ] {
        let (status, answer) = guest.ask("PUT", path, &body.to_string());
        assert_eq!(status, 204, "{path}: {answer}");
    }
    let answers = ["/machine-config", "/vm/config"].map(|path| (path, get(&guest, path)));
    keep_their_fields("firecracker", &answers);
}

#[test]
fn json_outputs_and_state_files_keep_their_fields() {
    needs!(kvm, page_faults);
    let (_scratch, guest) = guest();
    let (raw, packed) = (guest.snapshot(), guest.snapshot_as(&["--compress", "lz4"]));
    let diff = guest.snapshot_as(&["--diff"]);
    let mut answers = Vec::new();
    for (name, snapshot) in [("raw", &raw), ("packed", &packed), ("diff", &diff)] {
        answers.push((name, "inspect", parsed(&snapshot.inspect(&["--json"]))));
        answers.push((name, "state.metadata", snapshot.state()["metadata"].take()));
    }
    answers.push(("raw", "state", raw.state()));
    guest.kill();
    let mut recorded = raw.restore_as(&["--record", "100ms"]);
    recorded.wait_for("count");
    let ended = recorded.ask("PUT", "/v1/vm/record", "");
    assert_eq!(ended.0, 200, "{}", ended.1);
    answers.push(("recording", "answer", parsed(&ended.1)));
    let bench = ["snapshot", "bench", raw.directory().to_str().unwrap(), "--json", "--rounds", "1"];
    answers.push(("bench", "answer", parsed(&Outcome::of(bench).succeeded().stdout)));
    answers.push(("doctor", "answer", parsed(&Outcome::of(["doctor", "--json"]).succeeded().stdout)));
    let named: Vec<_> =
        answers.into_iter().map(|(name, what, answer)| (format!("{name} {what}"), answer)).collect();
    let named: Vec<_> = named.iter().map(|(name, answer)| (name.as_str(), answer.clone())).collect();
    keep_their_fields("files", &named);
}
