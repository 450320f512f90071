//! Kernels and initrds that cannot be booted: an error names the file, the status is 1, and no guest runs.

use std::fs;
use std::path::Path;

use volt_tests::{Boot, Scratch, needs, small_guest};

fn refused(kernel: &Path, words: &[&str]) {
    let words = [&[kernel.to_str().unwrap(), "kernel"], words].concat();
    Boot::kernel(kernel, "hello").outcome().refused(&words);
}

#[test]
fn missing_kernel_is_refused() {
    needs!(kvm);
    refused(&Scratch::new().path("nothing"), &["open", "No such file"]);
}

#[test]
fn directory_device_or_empty_file_as_kernel_is_refused() {
    needs!(kvm);
    let scratch = Scratch::new();
    refused(scratch.directory(), &["is a directory"]);
    refused("/dev/zero".as_ref(), &["is a device"]);
    let empty = scratch.path("empty");
    fs::write(&empty, "").unwrap();
    refused(&empty, &["empty"]);
}

#[test]
fn file_that_is_no_kernel_is_refused() {
    needs!(kvm);
    let scratch = Scratch::new();
    let file = scratch.path("text");
    for content in [&b"x"[..], b"#!/bin/sh\necho this is no kernel\n", &[0xff; 100_000], b"\x7fELF"] {
        fs::write(&file, content).unwrap();
        refused(&file, &[]);
    }
}

#[test]
fn truncated_kernel_is_refused() {
    needs!(kvm);
    let scratch = Scratch::new();
    let file = scratch.path("cut");
    let whole = fs::read(small_guest()).unwrap();
    // The cuts lie in the headers and in the one loaded segment. The section headers after it do not matter.
    for len in [10, 51, 63, 64, 100, 119, 4095, 4096, 5000] {
        fs::write(&file, &whole[..len]).unwrap();
        refused(&file, &[]);
    }
}

#[test]
fn too_large_or_missing_initrd_is_refused() {
    needs!(kvm);
    let scratch = Scratch::new();
    let initrd = scratch.path("initrd");
    fs::File::create(&initrd).unwrap().set_len(100 << 20).unwrap();
    let boot = || Boot::small("hello").initrd(&initrd);
    let name = initrd.to_str().unwrap();
    boot().outcome().refused(&["initrd", name, "100 MiB", "64 MiB"]);
    fs::remove_file(&initrd).unwrap();
    boot().outcome().refused(&["open", "initrd", name, "No such file"]);
}

#[test]
fn too_long_command_line_is_refused() {
    needs!(kvm);
    Boot::small(&"x".repeat(100_000)).outcome().refused(&["command line", "100000"]);
}
