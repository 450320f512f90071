//! `layer-size=` limits a guest's writes to its layer, so a guest cannot fill the host's disk.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use volt_tests::{Boot, Guest, Outcome, Scratch, needs};

/// Bytes of a cluster in a layer.
const CLUSTER: u64 = 64 << 10;
/// The option that puts each sector of the guest in its own cluster.
const APART: &str = "sectors=48 stride=128";

fn files(scratch: &Scratch) -> (PathBuf, PathBuf) {
    let (base, layer) = (scratch.fresh("base"), scratch.fresh("layer"));
    std::fs::write(&base, vec![7; 4 << 20]).unwrap();
    (base, layer)
}

/// Checks that the guest gets an I/O error after this many clusters.
fn assert_full_after(guest: &mut Guest, clusters: u64, layer: &Path) {
    guest.wait_for("WRONG disk write");
    guest.wait_exit();
    let output = guest.output();
    let number = |line: &str| line.strip_prefix("sector ").and_then(|number| number.trim().parse().ok());
    let written: Vec<u64> = output.lines().filter_map(number).collect();
    assert_eq!(written, (1..=clusters).collect::<Vec<_>>(), "{output}");
    let status = output.lines().find(|line| line.starts_with("WRONG disk write")).unwrap();
    assert!(status.trim_end().ends_with("found 0x0000000000000001"), "{status}: not an I/O error");
    let taken = std::fs::metadata(layer).unwrap().blocks() * 512;
    assert!(taken <= (clusters + 2) * CLUSTER, "{taken} bytes for {clusters} clusters and their maps");
}

#[test]
fn write_beyond_the_layer_size_fails_in_the_guest() {
    needs!(kvm);
    for engine in ["sync", "io_uring"] {
        let scratch = Scratch::new();
        let (base, layer) = files(&scratch);
        let (base, at) = (base.display(), layer.display());
        let words = format!("path={base},layer={at},layer-size=256K,engine={engine}");
        let mut guest = Boot::small(&format!("disk {APART}")).device(["--disk".to_owned(), words]).start();
        assert_full_after(&mut guest, 4, &layer);
    }
}

#[test]
fn rest_api_sets_the_layer_size() {
    needs!(kvm);
    let scratch = Scratch::new();
    let (base, layer) = files(&scratch);
    let mut guest = Guest::waiting();
    let put = |path: &str, body: Value| {
        let (status, answer) = guest.ask("PUT", path, &body.to_string());
        assert_eq!(status, 204, "{path}: {answer}");
    };
    put(
        "/boot-source",
        json!({"kernel_image_path": volt_tests::small_guest(), "boot_args": format!("disk {APART}")}),
    );
    put("/machine-config", json!({"vcpu_count": 1, "mem_size_mib": 64}));
    put(
        "/drives/root",
        json!({"drive_id": "root", "path_on_host": base, "is_root_device": false, "layer_path": layer,
            "layer_size": 3 * CLUSTER}),
    );
    put("/actions", json!({"action_type": "InstanceStart"}));
    assert_full_after(&mut guest, 3, &layer);
}

#[test]
fn clone_keeps_the_layer_size_unless_it_gets_another() {
    needs!(kvm);
    let scratch = Scratch::new();
    let (base, layer) = files(&scratch);
    let words = format!("id=root,path={},layer={},layer-size=1M", base.display(), layer.display());
    let mut guest =
        Boot::small(&format!("disk {APART} until=3")).device(["--disk".to_owned(), words]).start();
    guest.wait_for("done");
    let size = |guest: &Guest| -> Value {
        let (_, config) = guest.ask("GET", "/vm/config", "");
        serde_json::from_str::<Value>(&config).unwrap()["drives"][0]["layer_size"].take()
    };
    assert_eq!(size(&guest), json!(1 << 20));
    let snapshot = guest.snapshot();
    assert_eq!(size(&snapshot.restore()), json!(1 << 20));
    assert_eq!(size(&snapshot.restore_as(&["--disk", "id=root,layer-size=2M"])), json!(2 << 20));
}

#[test]
fn layer_size_without_a_layer_or_below_a_cluster_is_refused() {
    let scratch = Scratch::new();
    let (base, layer) = files(&scratch);
    let kernel = volt_tests::small_guest();
    let refused = |words: String, expected: &[&str]| {
        let kernel = kernel.to_str().unwrap();
        Outcome::of(["run", "--kernel", kernel, "--disk", &words]).refused(expected);
    };
    let base = base.display();
    refused(format!("path={base},layer-size=1M"), &["disks", "give the layer too"]);
    refused(format!("path={base},layer={},layer-size=4K", layer.display()), &["disks", "64 KiB"]);
    assert!(!layer.exists());
}
