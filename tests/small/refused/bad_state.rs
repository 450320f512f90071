//! A `state.json` that is damaged, of a newer format, or of a CPU with more features is refused before use.

use std::fs;

use serde_json::{Value, json};
use volt_tests::damage::overwrite;
use volt_tests::state_file::{HEAD, sealed_text};
use volt_tests::{Boot, Guest, Snapshot, needs};
use volt_vmm::Store;

fn snapshot() -> Snapshot {
    let mut guest = Guest::boot("count");
    guest.wait_for("count");
    guest.snapshot()
}

/// Opens the snapshot through the library.
fn opened(snapshot: &Snapshot) -> Result<volt_vmm::Snapshot, String> {
    let (store, name) = Store::split(snapshot.directory()).unwrap();
    volt_vmm::Snapshot::open(&store, &name).map_err(|error| volt_vmm::report(&error))
}

fn refused(snapshot: &Snapshot, words: &[&str]) {
    let state = snapshot.state_path();
    snapshot.try_restore().refused(&[&[state.to_str().unwrap()], words].concat());
}

#[test]
fn missing_or_empty_state_file_is_refused() {
    needs!(kvm);
    let snapshot = snapshot();
    overwrite(snapshot.state_path(), "");
    refused(&snapshot, &["is empty"]);
    fs::remove_file(snapshot.state_path()).unwrap();
    refused(&snapshot, &["is missing"]);
    fs::create_dir(snapshot.state_path()).unwrap();
    refused(&snapshot, &["not a regular file"]);
}

#[test]
fn missing_snapshot_is_refused() {
    needs!(kvm);
    let snapshot = snapshot();
    fs::remove_dir_all(snapshot.directory()).unwrap();
    snapshot.try_restore().refused(&[snapshot.directory().to_str().unwrap(), "no such directory"]);
    fs::write(snapshot.directory(), "a file").unwrap();
    snapshot.try_restore().refused(&[snapshot.directory().to_str().unwrap(), "not a directory"]);
}

#[test]
fn truncated_state_file_is_refused() {
    needs!(kvm);
    let snapshot = snapshot();
    let whole = fs::read(snapshot.state_path()).unwrap();
    let everywhere =
        (0..40).chain((40..whole.len()).step_by(whole.len() / 200)).chain(whole.len() - 40..whole.len());
    for len in everywhere {
        overwrite(snapshot.state_path(), &whole[..len]);
        let error = opened(&snapshot).unwrap_err();
        assert!(
            error.contains("state.json") && (error.contains("cut off") || error.contains("empty")),
            "{len}: {error}"
        );
        if len % 1000 == 0 {
            refused(&snapshot, &[]);
        }
    }
    fs::write(snapshot.state_path(), [&whole[..], b" "].concat()).unwrap();
    refused(&snapshot, &["checksum"]);
}

#[test]
fn flipped_bit_is_refused() {
    needs!(kvm);
    let snapshot = snapshot();
    let whole = fs::read(snapshot.state_path()).unwrap();
    // Each bit of the head, then one bit of every few bytes, at changing positions.
    let head = (0..40 * 8).map(|bit| (bit / 8, bit % 8));
    let rest = (40..whole.len()).step_by(whole.len() / 500).map(|byte| (byte, byte * 5 % 8));
    for (step, (byte, bit)) in head.chain(rest).enumerate() {
        let mut damaged = whole.clone();
        damaged[byte] ^= 1 << bit;
        overwrite(snapshot.state_path(), damaged);
        let error = opened(&snapshot).unwrap_err();
        assert!(
            error.contains("state.json") && (error.contains("checksum") || error.contains("begin")),
            "{error}"
        );
        if step % 100 == 0 {
            refused(&snapshot, &[]);
        }
    }
    fs::write(snapshot.state_path(), &whole).unwrap();
    opened(&snapshot).unwrap();
}

#[test]
fn clocks_jump_only_from_a_snapshot_with_a_time_of_day() {
    needs!(kvm);
    let snapshot = snapshot();
    let has_time = snapshot.state()["machine"]["clock"]["flags"].as_u64().unwrap() & 4 != 0;
    let realtime = ["--clock", "realtime"];
    if has_time {
        snapshot.restore_as(&realtime).wait_for("count");
    }
    snapshot.edit(|state| state["machine"]["clock"]["flags"] = 2.into());
    snapshot.try_restore_as(&realtime).refused(&["clock: realtime needs the time of day", "use continue"]);
    snapshot.restore().wait_for("count");
}

#[test]
fn clocks_that_a_request_lets_jump_need_a_time_of_day_too() {
    needs!(kvm);
    let snapshot = snapshot();
    snapshot.edit(|state| state["machine"]["clock"]["flags"] = 2.into());
    let of_firecracker = |field: &str, value: Value| {
        let body = json!({"snapshot_path": snapshot.directory(), "resume_vm": true, field: value});
        ("/snapshot/load", body)
    };
    let own = |clock: &str| ("/v1/vm", json!({"snapshot": {"path": snapshot.directory(), "clock": clock}}));
    let asked = |(path, body): (&str, Value)| {
        let guest = Guest::waiting();
        let (status, answer) = guest.ask("PUT", path, &body.to_string());
        (guest, status, answer)
    };
    for request in [
        of_firecracker("clock_realtime", true.into()),
        of_firecracker("clock", "realtime".into()),
        own("realtime"),
    ] {
        let (_guest, status, answer) = asked(request.clone());
        assert!(
            status == 400 && answer.contains("clock: realtime needs the time of day"),
            "{request:?}: {answer}"
        );
    }
    for request in [of_firecracker("clock_realtime", false.into()), own("continue")] {
        let (mut guest, status, answer) = asked(request.clone());
        assert_eq!((status, answer), (204, String::new()), "{request:?}");
        guest.wait_for("count");
    }
}

#[test]
fn newer_version_is_named() {
    needs!(kvm);
    let snapshot = snapshot();
    snapshot.edit(|state| state["version"] = 5.into());
    refused(&snapshot, &["format version 5", "newer volt-vmm"]);
    snapshot.edit(|state| state["version"] = 2.into());
    opened(&snapshot).unwrap();
    snapshot.edit(|state| state["arch"] = "aarch64".into());
    refused(&snapshot, &["aarch64"]);
    // Only the version field of a newer format is known.
    fs::write(snapshot.state_path(), sealed_text(r#""version":7,"arch":"x86_64","new":[]}"#)).unwrap();
    refused(&snapshot, &["format version 7"]);
}

#[test]
fn meaningless_state_with_a_right_checksum_is_refused() {
    needs!(kvm);
    let snapshot = snapshot();
    for body in
        ["", "}", "\"version\":1", "\"version\":1,\"arch\":\"x86_64\"}", "\u{0}\u{0}", "\"version\":\"one\"}"]
    {
        overwrite(snapshot.state_path(), sealed_text(body));
        refused(&snapshot, &[]);
    }
    fs::write(snapshot.state_path(), HEAD).unwrap();
    refused(&snapshot, &[]);
}

#[test]
fn contradictory_state_is_refused() {
    needs!(kvm);
    let mut guest = Boot::small("count").irqchip("kernel").start();
    guest.wait_for("count");
    let whole = guest.snapshot();
    let refused = |change: &dyn Fn(&mut Value), words: &[&str]| {
        let copy = whole.copy();
        copy.edit(change);
        copy.try_restore().refused(words);
    };
    refused(&|state| state["metadata"]["memory_bytes"] = (128 << 20).into(), &["state.json", "contradicts"]);
    refused(&|state| state["config"]["vcpus"] = 2.into(), &["state.json", "contradicts"]);
    refused(&|state| state["machine"]["vcpus"] = [0; 0].as_slice().into(), &["vcpus"]);
    refused(&|state| state["machine"]["vcpus"][0]["regs"]["rip"] = "high".into(), &["decode", "high"]);
    refused(&|state| state["machine"]["vcpus"][0]["lapic"] = "AAAA".into(), &["lapic"]);
    refused(&|state| state["machine"]["vcpus"][0]["xsave"] = "AAAA".into(), &["xsave"]);
    refused(&|state| state["machine"]["irqchip"]["ioapic"] = "AAAA".into(), &["ioapic"]);
    refused(&|state| state["machine"]["devices"]["toaster"] = 7.into(), &["toaster"]);
    refused(&|state| drop(state["machine"]["devices"].as_object_mut().unwrap().remove("com1")), &["com1"]);
    refused(&|state| state["surprise"] = 1.into(), &["state.json", "surprise"]);
}

#[test]
fn cpu_feature_that_this_host_lacks_is_named() {
    needs!(kvm);
    let snapshot = snapshot();
    // Only one family of processors, long gone, had AVX-512ER, and no KVM of today offers it.
    let show_avx512er = |state: &mut serde_json::Value| {
        let leaves = state["machine"]["vcpus"][0]["cpuid"].as_array_mut().unwrap();
        let mut leaf = leaves[0].clone();
        leaves.retain(|leaf| leaf["function"] != 7 || leaf["index"] != 0);
        for (field, value) in [
            ("function", 7),
            ("index", 0),
            ("flags", 1),
            ("eax", 0),
            ("ebx", 1 << 27),
            ("ecx", 0),
            ("edx", 0),
        ] {
            leaf[field] = value.into();
        }
        leaves.push(leaf);
    };
    snapshot.edit(show_avx512er);
    // The host's features decide. An older snapshot does not record them.
    let of_another_host =
        |state: &mut serde_json::Value| state["metadata"]["host_features"] = "0".repeat(32).into();
    let of_before = |state: &mut serde_json::Value| {
        drop(state["metadata"].as_object_mut().unwrap().remove("host_features"));
    };
    let edits: [&dyn Fn(&mut Value); 2] = [&of_another_host, &of_before];
    for edit in edits {
        snapshot.edit(edit);
        snapshot.try_restore().refused(&[snapshot.directory().to_str().unwrap(), "lacks", "avx512er"]);
        assert!(opened(&snapshot).unwrap_err().contains("avx512er"));
    }
}

#[test]
fn host_with_the_same_features_is_accepted() {
    needs!(kvm);
    let snapshot = snapshot();
    snapshot.edit(|state| {
        state["metadata"]["host"]["microcode"] = "0x1".into();
        state["metadata"]["host_features"] = "0".repeat(32).into();
    });
    snapshot.restore().next_number("count");
}
