//! The files of a snapshot.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use serde_json::Value;
use volt_tests::state_file::{CRC, HEAD, HEAD_LEN};
use volt_tests::{Boot, Guest, needs};

#[test]
fn state_json_begins_with_the_checksum_of_the_rest() {
    needs!(kvm);
    let mut guest = Guest::boot("count");
    guest.wait_for("count");
    let bytes = fs::read(guest.snapshot().state_path()).unwrap();
    assert!(bytes.starts_with(HEAD.as_bytes()));
    let (head, rest) = bytes.split_at(HEAD_LEN);
    assert_eq!(head, format!("{HEAD}{:016x}\",", CRC.checksum(rest)).as_bytes());
}

#[test]
fn state_json_has_version_and_metadata() {
    needs!(kvm);
    let mut guest = Boot::small("count").memory("96M").vcpus(2).start();
    guest.wait_for("count");
    let snapshots = [guest.snapshot(), guest.snapshot()];
    let state = snapshots[0].state();
    assert_eq!((&state["version"], &state["arch"]), (&Value::from(4), &Value::from("x86_64")));
    let metadata = &state["metadata"];
    assert_eq!((&metadata["memory_bytes"], &metadata["vcpus"]), (&Value::from(96 << 20), &Value::from(2)));
    assert_eq!(metadata["volt_vmm"], env!("CARGO_PKG_VERSION"));
    let created = metadata["created"].as_str().unwrap();
    assert!(created.len() == 20 && created.ends_with('Z') && created.starts_with("20"), "{created}");
    for field in ["cpu_vendor", "microcode", "kernel", "kvm_module"] {
        assert!(!metadata["host"][field].as_str().unwrap().is_empty(), "{field}");
    }
    let id = metadata["id"].as_str().unwrap();
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    assert_ne!(snapshots[1].state()["metadata"]["id"], *id, "two snapshots have one id");
    assert_eq!(state["config"]["boot"]["cmdline"], "count");
}

#[test]
fn registers_are_readable_and_blobs_are_base64() {
    needs!(kvm);
    let mut guest = Boot::small("special").irqchip("kernel").start();
    guest.next_number("round");
    let state = guest.snapshot().state();
    let vcpu = &state["machine"]["vcpus"][0];
    assert!(vcpu["regs"]["rip"].as_u64().unwrap() >= 0x10_0000);
    assert_eq!(vcpu["sregs"]["cr2"], 0xcafe_0000_u32);
    assert_eq!(vcpu["debug_regs"]["db"][2], 0xabc_3000);
    let msrs = &vcpu["msrs"];
    assert_eq!(msrs["0xc0000081 star"], 0x23_0010_0000_0000_u64);
    assert_eq!(msrs["0x200 mtrr_base0"], 0xc000_0006_u32);
    assert_eq!(msrs["0x250 mtrr_fix_64k_00000"], 0x0606_0606_0606_0600_u64);
    for blob in ["xsave", "lapic"] {
        let text = vcpu[blob].as_str().unwrap();
        assert!(
            text.len() > 1000 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b)),
            "{blob}"
        );
    }
    assert!(vcpu["cpuid"].as_array().unwrap().len() > 5);
    let devices: Vec<_> = state["machine"]["devices"].as_object().unwrap().keys().collect();
    assert!(devices.contains(&&"com1".to_owned()), "{devices:?}");
    for chip in ["pic_master", "pic_slave", "ioapic"] {
        assert!(state["machine"]["irqchip"][chip].is_string(), "{chip}");
    }
}

#[test]
fn only_the_owner_can_read_a_snapshot() {
    needs!(kvm);
    let mut guest = Guest::boot("count");
    guest.wait_for("count");
    let snapshot = guest.snapshot();
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(snapshot.state_path()), mode(snapshot.memory_path())), (0o400, 0o400));
    assert_eq!(mode(snapshot.directory().to_owned()), 0o700);
}

#[test]
fn memory_file_has_holes_for_zero_pages() {
    needs!(kvm);
    let mut guest = Boot::small("count mib=2").memory("1G").start();
    guest.wait_for("count");
    let snapshot = guest.snapshot();
    let metadata = fs::metadata(snapshot.memory_path()).unwrap();
    assert_eq!(metadata.len(), 1 << 30);
    assert!(metadata.blocks() * 512 < 16 << 20, "{} bytes on disk", metadata.blocks() * 512);
    // A second generation is no larger: pages that were mapped but not written stay holes.
    let mut restored = snapshot.restore();
    restored.next_number("count");
    let blocks = fs::metadata(restored.snapshot().memory_path()).unwrap().blocks();
    assert!(blocks <= metadata.blocks() + 64, "{blocks} {}", metadata.blocks());
}
