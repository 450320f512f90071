//! Machines that cannot be: the error names the option.

use std::fs;

use volt_tests::{Boot, Outcome, Scratch, needs, small_guest};

#[test]
fn memory_of_0_or_not_whole_pages_or_without_sense() {
    for (memory, words) in [
        ("0", "needs memory"),
        ("0M", "needs memory"),
        ("67108865B", "4 KiB pages"),
        ("64001B", "4 KiB pages"),
        ("lots", "unit"),
        ("", "not a number"),
        ("99999999999999999999G", "not a number"),
        ("18446744073709551615T", "too large"),
    ] {
        Boot::small("hello").memory(memory).outcome().refused(&["memory", words]);
    }
}

#[test]
fn more_memory_than_a_host_can_map() {
    needs!(kvm);
    // Which limit is met first is the host's affair: its memory, its address space, or any host's.
    for tib in [256_u64, 1024, 1_000_000] {
        let outcome = Boot::small("hello").memory(&format!("{tib}T")).outcome();
        outcome.refused(&["memory", &format!("{} MiB", tib << 20)]);
    }
}

#[test]
fn less_memory_than_the_kernel_needs() {
    needs!(kvm);
    let kernel = small_guest();
    Boot::small("hello").memory("1M").outcome().refused(&[kernel.to_str().unwrap(), "1 MiB"]);
}

#[test]
fn none_or_too_many_vcpus() {
    for vcpus in [0, 33, 255, 256, 1_000_000] {
        Boot::small("hello").vcpus(vcpus).outcome().refused(&["vcpus", "1 to 32"]);
    }
}

#[test]
fn a_config_file_that_is_missing_broken_or_has_unknown_fields() {
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
fn arguments_that_make_no_sense_end_with_status_2_and_say_so() {
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
fn devices_on_the_command_line_without_pics() {
    devices_on_cmdline("split").refused(&["irqchip: split", "kernel command line", "use kernel"]);
}

#[test]
fn devices_on_the_command_line_with_pics() {
    needs!(kvm);
    devices_on_cmdline("kernel").succeeded();
}
