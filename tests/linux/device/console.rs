//! virtio-console: a terminal at a unix socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use volt_tests::streams::Limited;
use volt_tests::{Boot, Guest, Scratch, needs, wait_until};

fn connect(socket: &Path) -> UnixStream {
    let mut stream = None;
    wait_until("the console's socket is served", || {
        stream = UnixStream::connect(socket).ok();
        stream.is_some()
    });
    let stream = stream.unwrap();
    stream.limit().unwrap();
    stream
}

/// Waits until the guest says `text` on its console.
fn hears(mut stream: &UnixStream, text: &str) {
    let mut heard = Vec::new();
    while !String::from_utf8_lossy(&heard).contains(text) {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap_or_else(|error| {
            panic!("waited for {text:?}: {error}: heard {:?}", String::from_utf8_lossy(&heard))
        });
        heard.push(byte[0]);
    }
}

/// Sends a line each way.
fn talk(guest: &mut Guest, mut stream: &UnixStream, name: &str) {
    guest.order(&format!("write /dev/hvc0 this is {name}"));
    hears(stream, &format!("this is {name}\r\n"));
    guest.type_in("read-line /dev/hvc0\n");
    writeln!(stream, "welcome, {name}").unwrap();
    guest.wait_for(&format!("welcome, {name}")).wait_for("ok read-line");
}

#[test]
fn virtio_console_carries_lines_both_ways_also_in_a_clone() {
    needs!(linux);
    let scratch = Scratch::new();
    let (socket, other) = (scratch.fresh("console"), scratch.fresh("other"));
    let mut guest = Boot::linux().device(["--console".as_ref(), socket.as_os_str()]).start();
    guest.wait_until_ready();
    let stream = connect(&socket);
    talk(&mut guest, &stream, "the first");
    let snapshot = guest.snapshot();
    let mut clone = snapshot.restore_as(&["--console", other.to_str().unwrap()]);
    let others = connect(&other);
    talk(&mut clone, &others, "the clone");
    talk(&mut guest, &stream, "the first again");
    // A second client connects after the first has gone.
    drop(others);
    talk(&mut clone, &connect(&other), "the clone again");
}
