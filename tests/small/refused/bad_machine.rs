//! Impossible machines: the error names the option.

use std::fs;

use volt_tests::{Boot, Outcome, Scratch, needs, small_guest};

#[test]
fn bad_memory_size_is_refused() {
    for (memory, words) in [
        ("0", "needs memory"),
        ("0M", "needs memory"),
        ("67108865B", "4 KiB pages"),
        ("64001B", "4 KiB pages"),
        ("lots", "not a number"),
        ("512Q", "unit"),
        ("", "not a number"),
        ("99999999999999999999G", "not a number"),
        ("18446744073709551615T", "too large"),
    ] {
        Boot::small("hello").memory(memory).outcome().refused(&["memory", words]);
    }
}

#[test]
fn unmappable_memory_size_is_refused() {
    needs!(kvm);
    // The host decides which limit is met first: its memory, its address space, or that of any host.
    for tib in [256_u64, 1024, 1_000_000] {
        let outcome = Boot::small("hello").memory(&format!("{tib}T")).outcome();
        outcome.refused(&["memory", &format!("{} MiB", tib << 20)]);
    }
}

#[test]
fn memory_too_small_for_the_kernel_is_refused() {
    needs!(kvm);
    let kernel = small_guest();
    Boot::small("hello").memory("1M").outcome().refused(&[kernel.to_str().unwrap(), "1 MiB"]);
}

#[test]
fn bad_number_of_vcpus_is_refused() {
    for vcpus in [0, 33, 255, 256, 1_000_000] {
        Boot::small("hello").vcpus(vcpus).outcome().refused(&["vcpus", "1 to 32"]);
    }
}

#[test]
fn missing_broken_or_unknown_configuration_is_refused() {
    let scratch = Scratch::new();
    let file = scratch.path("vm.json");
    let name = file.to_str().unwrap();
    let run = || Outcome::of(["run", "--config-file", name]);
    run().refused(&["config file", name, "No such file"]);
    for (text, words) in [
        ("", "EOF"),
        ("{", "EOF"),
        ("[]", "line 1"),
        (r#"{"boot":{"kernel":"/k"},"vcpu":1}"#, "unknown field `vcpu`"),
        (r#"{"boot":{"kernel":"/k","intird":"/i"}}"#, "unknown field `intird`"),
        (r#"{"vcpus":1}"#, "missing field `boot`"),
        (r#"{"boot":{"kernel":"/k"},"vcpus":-1}"#, "-1"),
        (r#"{"boot":{"kernel":"/k"},"memory_mib":"1G"}"#, "1G"),
    ] {
        fs::write(&file, text).unwrap();
        run().refused(&["config file", name, words]);
    }
    for (text, words) in [
        (r#"{"boot":{"kernel":"/k"},"vcpus":33}"#, ["vcpus", "1 to 32"]),
        (r#"{"boot":{"kernel":"/k"},"memory_mib":0}"#, ["memory", "0"]),
    ] {
        fs::write(&file, text).unwrap();
        run().refused(&words);
    }
}

#[test]
fn bad_arguments_end_with_status_2_and_an_error() {
    for arguments in [
        &["run"][..],
        &["restore"],
        &["fly"],
        &["run", "--kernel", "k", "--vcpus", "two"],
        &["--snapshot", "d"],
    ] {
        let outcome = Outcome::of(arguments);
        assert!(
            outcome.status == 2 && outcome.stdout.is_empty() && outcome.stderr.contains("error"),
            "{outcome:?}"
        );
    }
}

fn devices_on_cmdline(irqchip: &str) -> Outcome {
    Boot::small("hello").device(["--rng", "--devices-on-cmdline"]).irqchip(irqchip).outcome()
}

#[test]
fn devices_on_cmdline_with_a_split_irqchip_are_refused() {
    devices_on_cmdline("split").refused(&["irqchip: split", "kernel command line", "use kernel"]);
}

#[test]
fn devices_on_cmdline_with_kvms_irqchip_boot() {
    needs!(kvm);
    devices_on_cmdline("kernel").succeeded();
}
