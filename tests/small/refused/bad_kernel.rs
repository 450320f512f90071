//! Kernels and initrds that cannot be booted: an error that names the file, status 1, and no guest.

use std::fs;
use std::path::Path;

use volt_tests::{Boot, Scratch, needs, small_guest};

fn refused(kernel: &Path, words: &[&str]) {
    let words = [&[kernel.to_str().unwrap(), "kernel"], words].concat();
    Boot::kernel(kernel, "hello").outcome().refused(&words);
}

#[test]
fn a_kernel_that_is_not_there() {
    needs!(kvm);
    refused(&Scratch::new().path("nothing"), &["open", "No such file"]);
}

#[test]
fn a_directory_a_device_or_an_empty_file_as_kernel() {
    needs!(kvm);
    let scratch = Scratch::new();
    refused(scratch.directory(), &["is a directory"]);
    refused("/dev/zero".as_ref(), &["is a device"]);
    let empty = scratch.path("empty");
    fs::write(&empty, "").unwrap();
    refused(&empty, &["empty"]);
}

#[test]
fn a_file_that_is_no_kernel() {
    needs!(kvm);
    let scratch = Scratch::new();
    let file = scratch.path("text");
    for content in [&b"x"[..], b"#!/bin/sh\necho this is no kernel\n", &[0xff; 100_000], b"\x7fELF"] {
        fs::write(&file, content).unwrap();
        refused(&file, &[]);
    }
}

#[test]
fn a_truncated_kernel() {
    needs!(kvm);
    let scratch = Scratch::new();
    let file = scratch.path("cut");
    let whole = fs::read(small_guest()).unwrap();
    // The headers, and a byte of the one loaded segment, which ends before the section headers do.
    for len in [10, 51, 63, 64, 100, 119, 4095, 4096, 5000] {
        fs::write(&file, &whole[..len]).unwrap();
        refused(&file, &[]);
    }
}

#[test]
fn an_initrd_that_is_larger_than_memory_or_not_there() {
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
fn a_command_line_that_is_too_long() {
    needs!(kvm);
    Boot::small(&"x".repeat(100_000)).outcome().refused(&["command line", "100000"]);
}
