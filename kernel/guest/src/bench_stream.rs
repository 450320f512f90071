//! `bench-stream` and `bench-connect`: measure streams by the guest's clock. `ask` resolves a name for them.
//!
//! TO is `tcp:ADDRESS:PORT`, `tls:ADDRESS:PORT/NAME`, `http:ADDRESS:PORT/NAME` or `vsock:PORT`. A stream of
//! TLS begins with the client's first message and a record of the server; bytes that follow are plain. One of
//! HTTP begins with a request.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use crate::bench::Measurement;
use crate::client_hello::{client_hello, vector};
use crate::console;
use crate::outcome::Outcome;
use crate::system;

/// Bytes of one read or write of a stream.
const CHUNK: usize = 64 << 10;
/// Length of the server's record, an alert.
const RECORD: usize = 7;
/// How long a server of names may take, and how often it is asked.
const PATIENCE: Duration = Duration::from_secs(5);
const TRIES: usize = 3;

/// `bench-stream TO send|receive|ping MS`: moves bytes over a stream.
///
/// The other side of `send` reads to the end and closes, that of `receive` writes while it can, and that of
/// `ping` returns each byte. Bytes that are received in a quarter of MS before do not count: TCP starts
/// slowly.
pub(crate) fn stream(to: &str, act: &str, ms: u64) -> Outcome {
    let named = |error: std::io::Error| format!("{to}: {error}");
    let to_server = Target::parse(to)?;
    let mut stream = to_server.connect().map_err(named)?;
    stream.write_all(&to_server.opening()).map_err(named)?;
    if matches!(to_server, Target::Tls(..)) {
        stream.read_exact(&mut [0; RECORD]).map_err(named)?;
    }
    let mut bytes = vec![7; CHUNK];
    let mut move_bytes = |stream: &mut File, measurement: &mut Measurement| {
        let mut before = measurement.start;
        while before < measurement.end {
            let moved = match act {
                "send" => stream.write(&bytes),
                "receive" => stream.read(&mut bytes),
                "ping" => {
                    stream.write_all(&[1]).and_then(|()| stream.read_exact(&mut bytes[..1])).map(|()| 1)
                }
                _ => return Err(format!("no such way to use a stream: {act}")),
            };
            match moved.map_err(named)? {
                0 => return Err(format!("{to}: the other side has closed it")),
                moved => measurement.bytes += moved as u64,
            }
            let now = system::clock_ns(libc::CLOCK_MONOTONIC);
            measurement.times.push(now - before);
            before = now;
        }
        Ok(())
    };
    if act == "receive" {
        move_bytes(&mut stream, &mut Measurement::begin(ms / 4))?;
    }
    let mut measurement = Measurement::begin(ms);
    move_bytes(&mut stream, &mut measurement)?;
    if act == "send" {
        // The other side closes the stream after the last byte, so the time includes all bytes' arrival.
        system::shut_down_writing(stream.as_raw_fd()).map_err(named)?;
        let _ = stream.read(&mut [0]);
    }
    measurement.report();
    Ok(())
}

/// `bench-connect TO MS`: connects again and again for MS, and closes after the first byte of the answer.
pub(crate) fn connect(to: &str, ms: u64) -> Outcome {
    let named = |error: std::io::Error| format!("{to}: {error}");
    let to_server = Target::parse(to)?;
    let opening = to_server.opening();
    let mut measurement = Measurement::begin(ms);
    let mut before = measurement.start;
    while before < measurement.end {
        let mut stream = to_server.connect().map_err(named)?;
        stream.write_all(&opening).and_then(|()| stream.read_exact(&mut [0])).map_err(named)?;
        measurement.times.push(system::clock_ns(libc::CLOCK_MONOTONIC) - before);
        measurement.bytes += 1;
        drop(stream);
        before = system::clock_ns(libc::CLOCK_MONOTONIC);
    }
    measurement.report();
    Ok(())
}

/// `ask SERVER NAME`: asks a server for the IPv4 address of a name, and prints the last one of the answer
/// (RFC 1035, section 4.1).
pub(crate) fn ask(server: &str, name: &str) -> Outcome {
    let failed = |error: std::io::Error| format!("{server}: {error}");
    let labels = name.split('.').flat_map(|label| vector(1, label.as_bytes()));
    let head = [0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let question: Vec<u8> = head.into_iter().chain(labels).chain([0, 0, 1, 0, 1]).collect();
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(failed)?;
    socket.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let mut answer = [0; 512];
    let mut try_once = || {
        socket.send_to(&question, (server, 53))?;
        socket.recv(&mut answer)
    };
    let mut received = try_once();
    for _ in 1..TRIES {
        received = received.or_else(|_| try_once());
    }
    let len = received.map_err(failed)?;
    match answer[..len] {
        [_, _, _, flags, .., a, b, c, d] if flags & 0xf == 0 && len > question.len() => {
            console::line(&format!("address {a}.{b}.{c}.{d}"));
            Ok(())
        }
        _ => Err(format!("{name}: no address")),
    }
}

/// The other end of a stream.
enum Target<'a> {
    Tcp(&'a str),
    Tls(&'a str, &'a str),
    Http(&'a str, &'a str),
    Vsock(u32),
}

impl<'a> Target<'a> {
    fn parse(to: &'a str) -> Result<Self, String> {
        let unknown = || format!("no such stream: {to}");
        let (kind, rest) = to.split_once(':').ok_or_else(unknown)?;
        let named = || rest.split_once('/').ok_or_else(unknown);
        match kind {
            "tcp" => Ok(Self::Tcp(rest)),
            "tls" => named().map(|(address, name)| Self::Tls(address, name)),
            "http" => named().map(|(address, name)| Self::Http(address, name)),
            "vsock" => rest.parse().map(Self::Vsock).map_err(|_| format!("{rest}: no port")),
            _ => Err(unknown()),
        }
    }

    fn connect(&self) -> std::io::Result<File> {
        match self {
            Self::Tcp(address) | Self::Tls(address, _) | Self::Http(address, _) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                Ok(File::from(OwnedFd::from(stream)))
            }
            Self::Vsock(port) => system::vsock_connect(*port).map(File::from),
        }
    }

    /// Bytes that a stream begins with.
    fn opening(&self) -> Vec<u8> {
        match self {
            Self::Tcp(_) | Self::Vsock(_) => Vec::new(),
            Self::Tls(_, name) => client_hello(name),
            Self::Http(_, name) => format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n").into_bytes(),
        }
    }
}
