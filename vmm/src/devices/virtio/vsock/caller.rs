//! A program of the host that has connected and has yet to say to which port of the guest: `CONNECT <port>\n`.

use std::os::unix::net::UnixStream;

use rustix::net::{RecvFlags, recv};

/// The longest line; the longest that makes sense has 19 bytes.
const LONGEST: usize = 32;

/// The caller.
#[derive(Debug)]
pub(super) struct Caller {
    pub stream: UnixStream,
    /// What it has said of its line.
    said: Vec<u8>,
}

/// What a caller wants.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Nothing yet.
    Unsaid,
    /// This port.
    Port(u32),
    /// Something else, or nothing ever.
    Nonsense,
}

impl Caller {
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, said: Vec::new() }
    }

    /// Reads up to the end of the line and not beyond: what follows is for the guest.
    pub fn listen(&mut self) -> Wish {
        loop {
            let mut bytes = [0; LONGEST];
            let room = &mut bytes[..LONGEST - self.said.len()];
            let seen = match recv(&self.stream, &mut *room, RecvFlags::PEEK) {
                Ok((_, seen)) if seen > 0 => seen,
                Err(rustix::io::Errno::AGAIN) => return Wish::Unsaid,
                Err(rustix::io::Errno::INTR) => continue,
                _ => return Wish::Nonsense,
            };
            let end = room[..seen].iter().position(|byte| *byte == b'\n');
            let line = &mut room[..end.map_or(seen, |end| end + 1)];
            let Ok((_, taken)) = recv(&self.stream, &mut *line, RecvFlags::empty()) else {
                return Wish::Nonsense;
            };
            self.said.extend_from_slice(&line[..taken]);
            if self.said.ends_with(b"\n") {
                return port(&self.said).map_or(Wish::Nonsense, Wish::Port);
            }
            if self.said.len() == LONGEST {
                return Wish::Nonsense;
            }
        }
    }
}

fn port(line: &[u8]) -> Option<u32> {
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let (verb, port, rest) = (words.next()?, words.next()?, words.next());
    if !verb.eq_ignore_ascii_case("CONNECT") || rest.is_some() {
        return None;
    }
    port.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn the_line_may_come_in_pieces_and_what_follows_is_left() {
        let (mut host, stream) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut caller = Caller::new(stream);
        for piece in ["", "CONN", "ECT 10", "24"] {
            host.write_all(piece.as_bytes()).unwrap();
            assert_eq!(caller.listen(), Wish::Unsaid);
        }
        host.write_all(b"\nGET / HTTP/1.1").unwrap();
        assert_eq!(caller.listen(), Wish::Port(1024));
        let mut rest = [0; 14];
        caller.stream.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"GET / HTTP/1.1");
    }

    #[test]
    fn nonsense_is_seen_as_such() {
        let lines = ["\n", "CONNECT\n", "CONNECT x\n", "CONNECT 4294967296\n", "CONNECT 1 2\n", "HELLO 1\n"];
        let long = "x".repeat(LONGEST);
        for line in lines.into_iter().chain([long.as_str(), "CONNECT \u{0661}\n"]) {
            let (mut host, stream) = UnixStream::pair().unwrap();
            stream.set_nonblocking(true).unwrap();
            host.write_all(line.as_bytes()).unwrap();
            assert_eq!(Caller::new(stream).listen(), Wish::Nonsense, "{line}");
        }
    }
}
