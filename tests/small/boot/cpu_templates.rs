//! A guest sees its CPU through a template, before and after a restore.

use std::fs;

use serde_json::{Value, json};
use volt_tests::cpu::{bitmap, dump, seen_cpu, template_of, with_bit, write_template};
use volt_tests::{Boot, Guest, Outcome, Scratch, Snapshot, needs, small_guest};

/// A bit of EDX of leaf 1, which every x86-64 CPU has.
const SSE2: u32 = 1 << 26;
/// Content of a static template.
const T2: &str = include_str!("../../../api/src/rest/firecracker/names/static_cpu/T2.json");
/// IA32_SYSENTER_CS, which is 0 in a fresh vCPU.
const SYSENTER_CS: u32 = 0x174;

fn without_sse2() -> Value {
    template_of("0x1", "0x0", 0, "edx", "0b0xxxxxxxxxxxxxxxxxxxxxxxxxx")
}

/// Starts a guest that tells leaf 1 of CPUID and IA32_SYSENTER_CS, under a template.
fn under(template: &Value) -> Guest {
    let scratch = Scratch::new();
    let file = write_template(&scratch, template);
    let option = ["--cpu-template".into(), file.into_os_string()];
    let boot = Boot::small(&format!("cpu leaf=1 msr={SYSENTER_CS}")).scratch(&scratch);
    let mut guest = boot.device(option).start();
    guest.wait_for("ready");
    guest
}

fn without_template() -> Guest {
    under(&json!({}))
}

#[test]
fn masked_bit_is_hidden_before_and_after_a_restore() {
    needs!(kvm, cpuid);
    let plain = seen_cpu(&mut without_template(), true);
    assert_ne!(plain.registers[3] & SSE2, 0);
    let mut guest = under(&without_sse2());
    let masked = seen_cpu(&mut guest, true);
    assert_eq!(masked.registers[3], plain.registers[3] & !SSE2);
    assert_eq!(masked.registers[..3], plain.registers[..3]);
    let snapshot = guest.snapshot();
    // The features of the host are compared if its digest differs.
    snapshot.edit(|state| state["metadata"]["host_features"] = Value::Null);
    let mut restored = snapshot.restore();
    assert_eq!(seen_cpu(&mut restored, true), masked);
    assert_eq!(seen_cpu(&mut restored.snapshot().restore(), true), masked);
}

#[test]
fn snapshot_has_the_template_and_the_masked_leaves() {
    needs!(kvm);
    let features = |snapshot: &Snapshot| -> u64 {
        let state = snapshot.state();
        let leaves = state["machine"]["vcpus"][0]["cpuid"].as_array().unwrap();
        leaves.iter().find(|leaf| leaf["function"] == 1).unwrap()["edx"].as_u64().unwrap()
    };
    let plain = without_template().snapshot();
    let masked = under(&without_sse2()).snapshot();
    assert_eq!(features(&masked), features(&plain) & !u64::from(SSE2));
    assert_eq!(masked.state()["config"]["cpu_template"]["cpuid"][0]["leaf"], "0x1");
    // A snapshot of the restored guest keeps both.
    let again = masked.restore().snapshot();
    assert_eq!(features(&again), features(&masked));
    assert_eq!(again.state()["config"]["cpu_template"], masked.state()["config"]["cpu_template"]);
    let none = Boot::small("count").start().snapshot();
    assert_eq!(none.state()["config"].get("cpu_template"), None);
}

#[test]
fn msr_of_a_template_is_set_at_the_boot_and_restored() {
    needs!(kvm);
    assert_eq!(seen_cpu(&mut without_template(), true).msr, Some(0));
    let template = json!({"msr_modifiers": [{"addr": "0x174", "bitmap": "0b1000"}]});
    let mut guest = under(&template);
    assert_eq!(seen_cpu(&mut guest, true).msr, Some(8));
    let snapshot = guest.snapshot();
    assert_eq!(seen_cpu(&mut snapshot.restore(), true).msr, Some(8));
    // The saved value counts, and not the template's.
    snapshot.edit(|state| state["machine"]["vcpus"][0]["msrs"]["0x174 sysenter_cs"] = 16.into());
    assert_eq!(seen_cpu(&mut snapshot.restore(), true).msr, Some(16));
}

#[test]
fn dump_of_the_host_is_a_template_that_changes_nothing() {
    needs!(kvm);
    let plain = seen_cpu(&mut without_template(), true);
    let dumped = dump();
    assert_eq!(seen_cpu(&mut under(&dumped), true), plain);
    let scratch = Scratch::new();
    let file = write_template(&scratch, &dumped);
    let check = Outcome::of(["cpu".as_ref(), "check".as_ref(), file.as_os_str()]);
    assert_eq!(check.succeeded().stdout, "this host fits\n");
}

#[test]
fn intersection_of_dumps_has_the_features_of_the_poorest_host() {
    needs!(kvm, cpuid);
    let scratch = Scratch::new();
    let mut poorer = dump();
    let edx = bitmap(&mut poorer, "0x1", "0x0", "edx");
    *edx = with_bit(edx, 26, '0');
    let mut other = dump();
    let ecx = bitmap(&mut other, "0x1", "0x0", "ecx");
    *ecx = with_bit(ecx, 0, '0'); // sse3
    let files = [dump(), poorer, other].map(|dump| write_template(&scratch, &dump));
    let fleet = scratch.path("fleet.json");
    let output = ["--output".as_ref(), fleet.as_os_str()];
    let words = ["cpu".as_ref(), "intersect".as_ref()].into_iter().chain(files.iter().map(AsRef::as_ref));
    Outcome::of(words.chain(output)).succeeded();
    let template: Value = serde_json::from_str(&fs::read_to_string(&fleet).unwrap()).unwrap();
    let plain = seen_cpu(&mut without_template(), true);
    let [eax, ebx, ecx, edx] = plain.registers;
    let common = seen_cpu(&mut under(&template), true);
    assert_eq!(common.registers, [eax, ebx, ecx & !1, edx & !SSE2]);
}

#[test]
fn cpu_config_of_a_request_counts_from_the_start_on() {
    needs!(kvm, cpuid);
    let plain = seen_cpu(&mut without_template(), false);
    let mut guest = Guest::waiting_with(&[]);
    let put = |guest: &Guest, path, body: &Value| {
        let (status, answer) = guest.ask("PUT", path, &body.to_string());
        assert_eq!(status, 204, "{path}: {answer}");
    };
    put(&guest, "/boot-source", &json!({"kernel_image_path": small_guest(), "boot_args": "cpu leaf=1"}));
    put(&guest, "/machine-config", &json!({"vcpu_count": 1, "mem_size_mib": 64}));
    put(&guest, "/cpu-config", &without_sse2());
    put(&guest, "/actions", &json!({"action_type": "InstanceStart"}));
    guest.wait_for("ready");
    let [eax, ebx, ecx, edx] = plain.registers;
    assert_eq!(seen_cpu(&mut guest, false).registers, [eax, ebx, ecx, edx & !SSE2]);
    let config: Value = serde_json::from_str(&guest.ask("GET", "/vm/config", "").1).unwrap();
    assert_eq!(config["cpu-config"]["cpuid_modifiers"][0]["modifiers"][0]["register"], "edx", "{config}");
    let (status, fault) = guest.ask("PUT", "/cpu-config", &without_sse2().to_string());
    assert!(status == 400 && fault.contains("was started already"), "{fault}");
}

/// Lets a template leave ERMS as it is, which the lab's processor lacks (scripts/lab.sh).
fn leave_erms(template: &mut Value) {
    const ERMS: usize = 9;
    let leaves = template["cpuid_modifiers"].as_array_mut().unwrap();
    let features = leaves.iter_mut().find(|leaf| leaf["leaf"] == "0x7").unwrap();
    let ebx = features["modifiers"].as_array_mut().unwrap().iter_mut().find(|one| one["register"] == "ebx");
    let bitmap = &mut ebx.unwrap()["bitmap"];
    let mut bits: Vec<char> = bitmap.as_str().unwrap().chars().filter(|bit| *bit != '_').collect();
    let at = bits.len() - 1 - ERMS;
    assert_eq!(bits[at], '1');
    bits[at] = 'x';
    *bitmap = bits.into_iter().collect::<String>().into();
}

#[test]
fn content_of_a_static_template_changes_exactly_its_bits() {
    needs!(kvm, cpuid);
    let plain = seen_cpu(&mut without_template(), false);
    // T2 without its models: it needs of a host what each of these CPUs has.
    let mut template: Value = serde_json::from_str(T2).unwrap();
    leave_erms(&mut template);
    let scratch = Scratch::new();
    let file = write_template(&scratch, &template);
    let check = Outcome::of(["cpu".as_ref(), "check".as_ref(), file.as_os_str()]);
    if check.status == 1 {
        return volt_tests::need::skip(&check.stdout);
    }
    let mut guest = under(&template);
    let masked = seen_cpu(&mut guest, false).registers;
    let [eax, ebx, ecx, edx] = plain.registers;
    assert_eq!(masked[0], eax & 0xf000_c000 | 0x0003_06f2);
    assert_eq!(masked[1..], [ebx, ecx & !0x0004_cdfc, edx & !0xe864_1080 | 0x1080]);
    assert_eq!(seen_cpu(&mut guest.snapshot().restore(), false).registers, masked);
}
