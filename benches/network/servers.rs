//! Servers beyond the host, and the names that lead there.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use volt_benches::networks::{Beyond, resolve};
use volt_benches::peer::Role;
use volt_benches::{OrSay, Result};

/// A record of TLS, an alert: the server's first word. Its length is known to the guest's init.
const RECORD: [u8; 7] = [21, 3, 3, 0, 2, 2, 40];
/// An answer with a body that does not end.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n\
    Content-Length: 1000000000000000\r\n\r\n";
/// Longest first message of a client.
const LONGEST: usize = 16 << 10;

/// A server by its act, at an address of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    Sink,
    Source,
    Echo,
}

impl Server {
    const ALL: [Self; 3] = [Self::Sink, Self::Source, Self::Echo];

    pub fn name(self) -> &'static str {
        match self {
            Self::Sink => "sink.example.test",
            Self::Source => "source.example.test",
            Self::Echo => "echo.example.test",
        }
    }

    pub fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(192, 0, 2, 77 + self as u8)
    }

    fn role(self) -> Role {
        match self {
            Self::Sink => Role::Sink,
            Self::Source => Role::MemorySource,
            Self::Echo => Role::Echo,
        }
    }
}

/// Addresses of all servers.
pub fn addresses() -> [Ipv4Addr; 3] {
    Server::ALL.map(Server::address)
}

/// Serves in the background, for as long as the program lives. Port 443 has TLS as far as its first messages;
/// port 80 answers a request.
///
/// # Errors
/// A port is taken.
pub fn serve(beyond: &Beyond) -> Result<()> {
    resolve(|name| Server::ALL.into_iter().find(|server| server.name() == name).map(Server::address))?;
    for server in Server::ALL {
        for (port, open) in [(443, open_tls as fn(&mut TcpStream) -> io::Result<()>), (80, open_http)] {
            let listen = || TcpListener::bind((server.address(), port)).or_say("listen beyond the host");
            let listener = beyond.inside(listen)?;
            std::thread::spawn(move || {
                for mut stream in listener.incoming().flatten() {
                    // The guest reports a stream that breaks.
                    std::thread::spawn(move || {
                        open(&mut stream)?;
                        server.role().play(stream)
                    });
                }
            });
        }
    }
    Ok(())
}

/// Reads the client's first message, and answers with a record.
fn open_tls(stream: &mut TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut head = [0; 5];
    stream.read_exact(&mut head)?;
    let mut message = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]])).min(LONGEST)];
    stream.read_exact(&mut message)?;
    stream.write_all(&RECORD)
}

/// Reads a request, and begins an answer.
fn open_http(stream: &mut TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut request, mut bytes) = (Vec::new(), [0; 4096]);
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut bytes)? {
            1.. if request.len() > LONGEST => return Err(io::ErrorKind::InvalidData.into()),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => request.extend_from_slice(&bytes[..len]),
        }
    }
    stream.write_all(ANSWER)
}
