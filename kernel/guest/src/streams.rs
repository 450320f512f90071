//! Streams to the host over TCP and vsock, which return the host's bytes or compare their own bytes on
//! return.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::console;
use crate::outcome::Outcome;
use crate::sleepers::in_background;
use crate::system;

/// `vsock-echo PORT`: listens on a port, and returns each stream's bytes until the stream ends.
pub(crate) fn vsock_echo(port: u32) -> Outcome {
    let listener = system::vsock_listen(port).map_err(|error| format!("port {port}: {error}"))?;
    in_background(move || {
        while let Ok(stream) = system::accept(&listener) {
            let _ = in_background(move || echo(stream));
        }
    })
}

/// `vsock-send PORT KIB STREAMS`: opens STREAMS concurrent streams to a port of the host.
///
/// Each sends KIB of its own, expects the same back, and prints a line for it.
pub(crate) fn vsock_send(port: u32, kib: u64, streams: u64) -> Outcome {
    let failed = |error: std::io::Error| format!("port {port}: {error}");
    let all = (0..streams).map(|_| system::vsock_connect(port).map_err(failed));
    let all: Vec<_> = all.collect::<Result<_, _>>()?;
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..)
            .zip(all)
            .map(|(number, stream)| scope.spawn(move || compare(stream, kib, number)))
            .collect();
        senders.into_iter().try_for_each(|sender| sender.join().map_err(|_| "a sender panicked")?)
    })
}

/// `tcp-echo PORT`: as `vsock-echo`, over TCP.
pub(crate) fn tcp_echo(port: u16) -> Outcome {
    let listener = TcpListener::bind(("0.0.0.0", port)).map_err(|error| format!("port {port}: {error}"))?;
    in_background(move || {
        for stream in listener.incoming().flatten() {
            let _ = in_background(move || echo(stream.into()));
        }
    })
}

/// `tcp-send ADDRESS:PORT KIB`: as one stream of `vsock-send`, over TCP.
pub(crate) fn tcp_send(to: &str, kib: u64) -> Outcome {
    let stream = TcpStream::connect(to).map_err(|error| format!("{to}: {error}"))?;
    compare(stream.into(), kib, 0)
}

/// `tcp-sink PORT KIB`: reads all streams to a port, and acknowledges every KIB with a byte.
pub(crate) fn tcp_sink(port: u16, kib: u64) -> Outcome {
    let listener = TcpListener::bind(("0.0.0.0", port)).map_err(|error| format!("port {port}: {error}"))?;
    in_background(move || {
        for mut stream in listener.incoming().flatten() {
            let mut bytes = vec![0; (kib as usize) << 10];
            while stream.read_exact(&mut bytes).and_then(|()| stream.write_all(b".")).is_ok() {}
        }
    })
}

/// `tcp-source PORT`: sends to each client of a port until the client closes.
pub(crate) fn tcp_source(port: u16) -> Outcome {
    let listener = TcpListener::bind(("0.0.0.0", port)).map_err(|error| format!("port {port}: {error}"))?;
    in_background(move || {
        for mut stream in listener.incoming().flatten() {
            while stream.write_all(&[0x5a; 1 << 14]).is_ok() {}
        }
    })
}

/// `http ADDRESS:PORT METHOD PATH [FIELD]`: sends a request, with a header field `NAME:VALUE`, and prints the
/// status and the body of the answer.
pub(crate) fn http(to: &str, method: &str, path: &str, field: &str) -> Outcome {
    let failed = |error: std::io::Error| format!("{to}: {error}");
    let mut stream = TcpStream::connect(to).map_err(failed)?;
    let field = if field.is_empty() { String::new() } else { format!("{field}\r\n") };
    let request = format!("{method} {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n{field}\r\n");
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(failed)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("an answer without a head")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    console::line(&format!("http {status} {body}"));
    Ok(())
}

/// `net INTERFACE ADDRESS/PREFIX [GATEWAY]`: gives an interface an IPv4 address and brings it up.
pub(crate) fn configure(interface: &str, address: &str, gateway: Option<&str>) -> Outcome {
    let (ip, prefix) = address.split_once('/').ok_or("wants ADDRESS/PREFIX")?;
    let ip = ip.parse().map_err(|_| format!("{ip}: no address"))?;
    let prefix: u32 =
        prefix.parse().ok().filter(|prefix| *prefix <= 32).ok_or("wants a prefix of 0 to 32")?;
    system::configure_interface(interface, ip, prefix).map_err(|error| format!("{interface}: {error}"))?;
    let Some(gateway) = gateway else { return Ok(()) };
    let gateway = gateway.parse().map_err(|_| format!("{gateway}: no address"))?;
    system::add_default_route(gateway).map_err(|error| format!("route: {error}"))
}

/// Streams of `*-echo` that the other end reset.
static RESET: AtomicU64 = AtomicU64::new(0);

/// `streams-reset`: prints how many streams of `vsock-echo` and `tcp-echo` were reset.
pub(crate) fn streams_reset() -> Outcome {
    console::line(&format!("reset {}", RESET.load(Ordering::Relaxed)));
    Ok(())
}

fn echo(stream: OwnedFd) {
    let mut stream = File::from(stream);
    let mut bytes = vec![0; 1 << 16];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(count) if stream.write_all(&bytes[..count]).is_ok() => {}
            _ => {
                RESET.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    }
}

fn compare(stream: OwnedFd, kib: u64, number: usize) -> Outcome {
    let failed = |error: std::io::Error| error.to_string();
    let stream = File::from(stream);
    let (mut sender, mut receiver) = (stream.try_clone().map_err(failed)?, stream);
    let len = (kib as usize) << 10;
    let pattern: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251 + number * 101) as u8).collect();
    let mut found = vec![0; len];
    std::thread::scope(|scope| {
        let sent = scope.spawn(|| sender.write_all(&pattern));
        receiver.read_exact(&mut found).map_err(failed)?;
        sent.join().map_err(|_| "the sender panicked")?.map_err(failed)
    })?;
    if found != pattern {
        return Err("corrupt: what came back is not what was sent".to_owned());
    }
    console::line(&format!("came back {len}"));
    Ok(())
}
