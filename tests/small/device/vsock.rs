//! A small guest polls its vsock device, and a clone is told that its connections are gone.

use std::io::{Read, Write};
use std::path::Path;

use volt_tests::streams::echoes;
use volt_tests::vsock::{connect, listen};
use volt_tests::{Boot, Guest, Scratch, limited, needs};

/// The port that the guest connects to on request.
const HOST_PORT: u32 = 2000;

/// Checks that data goes both ways, through a connection of the host and through one of the guest.
fn talks(guest: &mut Guest, socket: &Path) {
    let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at / 5) as u8).collect();
    echoes(&connect(socket, 1000), &bytes);
    let listener = listen(socket, HOST_PORT);
    guest.type_in("c");
    let (stream, _) = limited("the guest connects", || listener.accept()).unwrap();
    echoes(&stream, &bytes);
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
}

/// Waits until the guest is told of the reset. Returns its CID.
fn cid_after_reset(guest: &mut Guest) -> u64 {
    guest.next_line("reset");
    guest.next_number("cid")
}

#[test]
fn clone_with_another_address_sees_its_connections_reset() {
    needs!(kvm);
    let scratch = Scratch::new();
    let (socket, others) = (scratch.fresh("vsock"), scratch.fresh("other"));
    let mut guest =
        Boot::small("vsock").device(["--vsock".into(), format!("cid=5,socket={}", socket.display())]).start();
    assert_eq!(guest.next_number("cid"), 5);
    talks(&mut guest, &socket);
    // The snapshot is taken while data is under way.
    let mut stream = connect(&socket, 1000);
    let sent = [7; 20_000];
    stream.write_all(&sent).unwrap();
    let snapshot = guest.snapshot();
    let mut found = [0; 20_000];
    stream.read_exact(&mut found).unwrap();
    assert!(found == sent, "the original's connection lost data");
    echoes(&stream, b"and on");

    let words = format!("cid=7,socket={}", others.display());
    let mut clone = snapshot.restore_as(&["--vsock", &words]);
    assert_eq!(cid_after_reset(&mut clone), 7);
    talks(&mut clone, &others);
    // A clone of the clone is told again and keeps the address.
    let again = clone.snapshot();
    drop(clone);
    let mut clone = again.restore();
    assert_eq!(cid_after_reset(&mut clone), 7);
    talks(&mut clone, &others);
    assert!(!guest.output().contains("reset"), "{}", guest.output());

    // Firecracker's request changes the socket alone.
    let mut loaded = Guest::waiting();
    let third = scratch.fresh("third");
    let load = serde_json::json!({"snapshot_path": snapshot.directory(), "resume_vm": true,
                                  "vsock_override": {"uds_path": third}});
    assert_eq!(loaded.ask("PUT", "/snapshot/load", &load.to_string()), (204, String::new()));
    assert_eq!(cid_after_reset(&mut loaded), 5);
    talks(&mut loaded, &third);
}

#[test]
fn ended_vm_removes_its_sockets() {
    needs!(kvm);
    for ends_by_signal in [false, true] {
        let scratch = Scratch::new();
        let (vsock, console) = (scratch.path("vsock"), scratch.path("console"));
        let mut guest = Boot::small("vsock")
            .device(["--vsock".into(), format!("cid=5,socket={}", vsock.display())])
            .device(["--console".into(), console.display().to_string()])
            .start();
        guest.next_number("cid");
        assert!(vsock.exists() && console.exists());
        if ends_by_signal {
            guest.signal(rustix::process::Signal::TERM);
        } else {
            assert_eq!(guest.ask("PUT", "/v1/stop", "").0, 204);
        }
        guest.wait_exit();
        assert!(!vsock.exists() && !console.exists(), "sockets are left: {:?}", scratch.list());
    }
}
