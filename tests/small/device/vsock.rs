//! A small guest talks over vsock by looking, and is told in a clone that its connections are gone.

use std::io::{Read, Write};
use std::path::Path;

use volt_tests::streams::echoes;
use volt_tests::vsock::{connect, listen};
use volt_tests::{Boot, Guest, Scratch, limited, needs};

/// Where the guest connects to when it is told to.
const HOST_PORT: u32 = 2000;

/// Data goes through connections both ways: one that the host opens, and one that the guest does.
fn talks(guest: &mut Guest, socket: &Path) {
    let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at / 5) as u8).collect();
    echoes(&connect(socket, 1000), &bytes);
    let listener = listen(socket, HOST_PORT);
    guest.type_in("c");
    let (stream, _) = limited("the guest connects", || listener.accept()).unwrap();
    echoes(&stream, &bytes);
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
}

/// Waits until the guest has been told of the reset. Its CID then.
fn cid_after_reset(guest: &mut Guest) -> u64 {
    guest.next_line("reset");
    guest.next_number("cid")
}

#[test]
fn connections_end_with_a_reset_in_a_clone_that_has_another_address() {
    needs!(kvm);
    let scratch = Scratch::new();
    let (socket, others) = (scratch.fresh("vsock"), scratch.fresh("other"));
    let mut guest =
        Boot::small("vsock").device(["--vsock".into(), format!("cid=5,socket={}", socket.display())]).start();
    assert_eq!(guest.next_number("cid"), 5);
    talks(&mut guest, &socket);
    // In the middle of what is under way.
    let mut stream = connect(&socket, 1000);
    let sent = [7; 20_000];
    stream.write_all(&sent).unwrap();
    let snapshot = guest.snapshot();
    let mut found = [0; 20_000];
    stream.read_exact(&mut found).unwrap();
    assert!(found == sent, "the original goes on");
    echoes(&stream, b"and on");

    let words = format!("cid=7,socket={}", others.display());
    let mut clone = snapshot.restore_as(&["--vsock", &words]);
    assert_eq!(cid_after_reset(&mut clone), 7);
    talks(&mut clone, &others);
    // Its own clone is told again, and keeps its address.
    let again = clone.snapshot();
    drop(clone);
    let mut clone = again.restore();
    assert_eq!(cid_after_reset(&mut clone), 7);
    talks(&mut clone, &others);
    assert!(!guest.output().contains("reset"), "{}", guest.output());
}
