//! CPU templates that are invalid or do not fit this host: the error names the part.

use std::fs;

use serde_json::{Value, json};
use volt_tests::cpu::{bitmap, dump, template_of, with_bit, write_template};
use volt_tests::{Boot, Guest, Outcome, Scratch, needs, small_guest};

/// Boots under the template in this text, which is refused.
fn refused_text(text: &str, words: &[&str]) {
    let scratch = Scratch::new();
    let file = scratch.path("template.json");
    fs::write(&file, text).unwrap();
    let boot = Boot::small("hello").device(["--cpu-template".into(), file.clone().into_os_string()]);
    boot.outcome().refused(words);
}

fn refused(template: &Value, words: &[&str]) {
    refused_text(&template.to_string(), words);
}

/// A feature bit that this host lacks: leaf, subleaf, register, bit and name.
type Lacking = (&'static str, &'static str, &'static str, usize, &'static str);

/// Finds a feature in a register of the host that it lacks.
fn lacking(candidates: &[Lacking]) -> Option<Lacking> {
    let mut dump = dump();
    let is_absent = |(leaf, subleaf, register, bit, _): &&Lacking| {
        let mut digits = bitmap(&mut dump, leaf, subleaf, register).as_str().unwrap().chars().rev();
        digits.nth(*bit) == Some('0')
    };
    candidates.iter().find(is_absent).copied()
}

#[test]
fn text_that_is_no_template_is_refused_with_its_fault() {
    for (text, words) in [
        ("", "EOF"),
        ("[1]", "invalid"),
        (r#"{"cpuid_modifier":[]}"#, "unknown field `cpuid_modifier`"),
        (r#"{"reg_modifiers":[]}"#, "reg_modifiers: for aarch64 only"),
        (r#"{"vcpu_features":[]}"#, "vcpu_features: for aarch64 only"),
        (r#"{"kvm_capabilities":["many"]}"#, "kvm_capabilities: \"many\""),
        (r#"{"msr_modifiers":[{"addr":"0x10","bitmap":"0b1"}]}"#, "MSR 0x10 (tsc) belongs to"),
    ] {
        refused_text(text, &["CPU template ", "template.json: ", words]);
    }
    let bitmap = |bitmap: &str| template_of("0x7", "0x0", 1, "ebx", bitmap);
    refused(&bitmap(&"0".repeat(33)), &["more than 32 bits"]);
    refused(&bitmap("0b2"), &["'2'"]);
    refused(&template_of("0x7", "0x0", 1, "efx", "0b1"), &["unknown variant `efx`"]);
    let leaf = json!({"leaf": "0x7", "subleaf": "0x0", "flags": 1, "modifiers": []});
    refused(&json!({"cpuid_modifiers": [leaf, leaf]}), &["leaf 0x7 subleaf 0x0 is given twice"]);
    Boot::small("hello").device(["--cpu-template", "/no/such"]).outcome().refused(&["read CPU template"]);
}

#[test]
fn feature_that_the_host_lacks_is_named() {
    needs!(kvm);
    let candidates = [
        ("0x7", "0x0", "ebx", 4, "hle"),
        ("0x7", "0x0", "ebx", 26, "avx512pf"),
        ("0x1", "0x0", "ecx", 6, "smx"),
    ];
    let Some((leaf, subleaf, register, bit, name)) = lacking(&candidates) else {
        return volt_tests::need::skip("this host has all features");
    };
    let template = template_of(leaf, subleaf, 1, register, &format!("0b1{}", "x".repeat(bit)));
    refused(&template, &["cpu_template: needs", name, "clear these bits"]);
    let scratch = Scratch::new();
    let file = write_template(&scratch, &template);
    let check = |more: &[&str]| {
        let words = ["cpu".as_ref(), "check".as_ref(), file.as_os_str()];
        Outcome::of(words.into_iter().chain(more.iter().map(AsRef::as_ref)))
    };
    let told = check(&[]);
    assert_eq!((told.status, told.stdout), (1, format!("this host lacks:\n  {name}\n")));
    let told = check(&["--json"]);
    let result: Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!((told.status, result), (1, json!({"fits": false, "missing": [name]})));
}

#[test]
fn msr_or_capability_that_kvm_lacks_is_named() {
    needs!(kvm);
    refused(
        &json!({"msr_modifiers": [{"addr": "0x12345", "bitmap": "0b1"}]}),
        &["cpu_template: cannot set MSR 0x12345", "leave it out"],
    );
    // A value that no CPU takes: a base that is no canonical address.
    let bitmap = format!("0b01{}", "x".repeat(62));
    refused(
        &json!({"msr_modifiers": [{"addr": "0xc0000102", "bitmap": bitmap}]}),
        &["cpu_template: cannot set MSR 0xc0000102 (kernel_gs_base)"],
    );
    refused(&json!({"kvm_capabilities": ["9999"]}), &["KVM capability 9999"]);
}

#[test]
fn template_of_another_vendor_is_refused() {
    needs!(kvm);
    let vendor = bitmap(&mut dump(), "0x0", "0x0", "ebx").clone();
    let is_intel = vendor == Value::String(format!("0b{:032b}", u32::from_le_bytes(*b"Genu")));
    let (name, made_for) = if is_intel { ("T2A", "AuthenticAMD") } else { ("T2", "GenuineIntel") };
    let guest = Guest::waiting_with(&[]);
    let put = |path, body: &Value| guest.ask("PUT", path, &body.to_string());
    let kernel = json!({"kernel_image_path": small_guest(), "boot_args": "hello"});
    assert_eq!(put("/boot-source", &kernel).0, 204);
    let machine = json!({"vcpu_count": 1, "mem_size_mib": 64, "cpu_template": name});
    assert_eq!(put("/machine-config", &machine).0, 204);
    let (status, fault) = put("/actions", &json!({"action_type": "InstanceStart"}));
    let start = format!("cpu_template: template {name} needs from this host");
    assert!(status == 400 && fault.contains(&start) && fault.contains(made_for), "{fault}");
    // A refused start leaves the VM to be configured again.
    assert_eq!(guest.ask("PATCH", "/machine-config", r#"{"cpu_template":"None"}"#).0, 204);
    assert_eq!(put("/actions", &json!({"action_type": "InstanceStart"})).0, 204);
    let mut other = dump();
    *bitmap(&mut other, "0x0", "0x0", "ebx") = with_bit(&vendor, 31, '1');
    refused(&other, &["vendor ", "this CPU is of"]);
}

#[test]
fn dumps_of_several_vendors_have_no_intersection() {
    needs!(kvm);
    let scratch = Scratch::new();
    let mut other = dump();
    let vendor = bitmap(&mut other, "0x0", "0x0", "ebx");
    *vendor = with_bit(vendor, 31, '1');
    let (here, other) = (write_template(&scratch, &dump()), write_template(&scratch, &other));
    let words = ["cpu".as_ref(), "intersect".as_ref(), here.as_os_str(), other.as_os_str()];
    Outcome::of(words).refused(&["dumps: ", "CPUs of one vendor"]);
    let empty = write_template(&scratch, &json!({}));
    let words = ["cpu".as_ref(), "intersect".as_ref(), empty.as_os_str()];
    Outcome::of(words).refused(&["dumps: ", "no dump of a host"]);
}

#[test]
fn snapshot_with_a_feature_that_the_host_lacks_is_refused_and_named() {
    needs!(kvm);
    let mut guest = Guest::boot("count");
    guest.next_number("count");
    let snapshot = guest.snapshot();
    let check = |path: &std::path::Path| {
        Outcome::of(["cpu".as_ref(), "check".as_ref(), "--snapshot".as_ref(), path.as_os_str()])
    };
    check(snapshot.directory()).succeeded();
    check(&snapshot.state_path()).succeeded();
    snapshot.edit(|state| {
        state["metadata"]["host_features"] = Value::Null;
        let leaves = state["machine"]["vcpus"][0]["cpuid"].as_array_mut().unwrap();
        let leaf = leaves.iter_mut().find(|leaf| leaf["function"] == 7 && leaf["index"] == 0).unwrap();
        leaf["ebx"] = (leaf["ebx"].as_u64().unwrap() | 1 << 26).into();
        // The abilities of the CPU are compared under a template.
        state["config"]["cpu_template"] = json!({"msrs": [{"index": "0x10a", "bits": "0b1"}]});
        state["machine"]["vcpus"][0]["msrs"]["0x10a arch_capabilities"] = (1_u64 << 40).into();
    });
    snapshot.try_restore().refused(&["features that this host lacks", "MSR 0x10a bit 40, avx512pf"]);
    let told = check(snapshot.directory());
    assert_eq!((told.status, &*told.stdout), (1, "this host lacks:\n  MSR 0x10a bit 40\n  avx512pf\n"));
    check(&snapshot.directory().join("none")).refused(&["none"]);
}
