//! Vsock: many streams from both sides at once, and their end at a restore.

use std::os::unix::net::UnixListener;
use std::thread::scope;

use volt_tests::streams::{await_ready, bytes_of, echoes, send_back};
use volt_tests::vsock::connect;
use volt_tests::{Boot, Scratch, limited, needs, wait_until};

#[test]
fn two_hundred_streams_move_data_both_ways_at_once() {
    needs!(linux);
    const EACH_WAY: usize = 100;
    let scratch = Scratch::new();
    let socket = scratch.fresh("vsock");
    let words = format!("cid=5,socket={}", socket.display());
    let mut guest = Boot::linux().device(["--vsock".to_owned(), words]).start();
    guest.wait_until_ready();
    guest.order("vsock-echo 1000");
    let listener = UnixListener::bind(format!("{}_2000", socket.display())).unwrap();
    let streams: Vec<_> = (0..EACH_WAY).map(|_| connect(&socket, 1000)).collect();
    scope(|scope| {
        // All streams are connected before one of them sends.
        guest.type_in(&format!("vsock-send 2000 128 {EACH_WAY}\n"));
        let accept = || (0..EACH_WAY).map(|_| listener.accept().unwrap().0).collect::<Vec<_>>();
        let accepted = limited("the guest's streams connect", accept);
        for stream in accepted {
            scope.spawn(move || assert_eq!(send_back(&stream), 128 << 10));
        }
        for (number, stream) in streams.iter().enumerate() {
            scope.spawn(move || echoes(stream, &bytes_of(number, 128 << 10)));
        }
    });
    for _ in 0..EACH_WAY {
        assert_eq!(guest.next_number("came back"), 128 << 10);
    }
    guest.wait_for("ok vsock-send");
}

#[test]
fn restore_resets_connections_and_keeps_listeners() {
    needs!(linux);
    let scratch = Scratch::new();
    let (socket, other) = (scratch.fresh("vsock"), scratch.fresh("other"));
    let words = format!("cid=5,socket={}", socket.display());
    let mut guest = Boot::linux().device(["--vsock".to_owned(), words]).start();
    guest.wait_until_ready();
    guest.order("vsock-echo 1000");
    let stream = connect(&socket, 1000);
    echoes(&stream, b"before");
    let snapshot = guest.snapshot();
    echoes(&stream, b"the original goes on");
    let mut clone = snapshot.restore_as(&["--vsock", &format!("socket={}", other.display())]);
    // The clone's connection is reset, and its listener serves the clone's own socket.
    wait_until("the clone's stream is reset", || clone.order("streams-reset") == ["reset 1"]);
    assert_eq!(guest.order("streams-reset"), ["reset 0"]);
    echoes(&connect(&other, 1000), b"anyone there?");
    drop(guest);
    echoes(&connect(&other, 1000), b"still?");
    let listener = UnixListener::bind(format!("{}_2000", other.display())).unwrap();
    scope(|scope| {
        scope.spawn(|| {
            await_ready("the clone connects", &listener);
            send_back(&listener.accept().unwrap().0)
        });
        assert_eq!(clone.order("vsock-send 2000 512 1"), [format!("came back {}", 512 << 10)]);
    });
}
