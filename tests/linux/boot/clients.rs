//! Linux under clients of Firecracker, which others wrote.

use std::process::Command;

use volt_tests::boot::linux_cmdline;
use volt_tests::need::clients_directory;
use volt_tests::program::binary;
use volt_tests::{Scratch, needs, output};

#[test]
fn go_sdk_boots_snapshots_restores_and_shuts_down_linux() {
    needs!(linux, go_sdk);
    // The second needs a newer Go than some distributions have.
    let clients = ["go-sdk", "go-sdk-main"].map(|name| clients_directory().join(name));
    for client in clients.into_iter().filter(|client| client.exists()) {
        let scratch = Scratch::new();
        let mut command = Command::new(&client);
        command.arg("linux").env("VOLT_VMM", binary()).env("VOLT_BASE", scratch.directory());
        command.env("VOLT_BOOT_ARGS", linux_cmdline() + " quiet").env("VOLT_SECCOMP", "on");
        command.env("VOLT_USER", "0").env("VOLT_GROUP", "0");
        let done = output(&mut command);
        let (out, error) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{client:?}: {}\n{out}\n{error}", done.status);
        assert!(out.contains("first: shut down\n") && out.contains("clone: shut down\n"), "{out}");
    }
}
