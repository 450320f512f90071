//! A host program that has connected and has not yet named a port of the guest: `CONNECT <port>\n`.

use std::os::unix::net::UnixStream;

use rustix::net::{RecvFlags, recv};

/// Bytes of a line at most; the longest valid line has 19.
const MAX_LINE: usize = 32;

/// A connected host program.
#[derive(Debug)]
pub(super) struct Caller {
    pub stream: UnixStream,
    /// Another program, and not volt-vmm itself.
    pub is_program: bool,
    /// The part of the line that has arrived.
    line: Vec<u8>,
}

/// Request of a caller.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallerRequest {
    /// The line is incomplete.
    Incomplete,
    /// This port.
    Port(u32),
    /// The line is invalid, or will never be complete.
    Invalid,
}

impl Caller {
    pub fn new(stream: UnixStream, is_program: bool) -> Self {
        Self { stream, is_program, line: Vec::new() }
    }

    /// Reads up to the end of the line and not beyond: the bytes after it are for the guest.
    pub fn read_line(&mut self) -> CallerRequest {
        loop {
            let mut bytes = [0; MAX_LINE];
            let room = &mut bytes[..MAX_LINE - self.line.len()];
            let seen = match recv(&self.stream, &mut *room, RecvFlags::PEEK) {
                Ok((_, seen)) if seen > 0 => seen,
                Err(rustix::io::Errno::AGAIN) => return CallerRequest::Incomplete,
                Err(rustix::io::Errno::INTR) => continue,
                _ => return CallerRequest::Invalid,
            };
            let end = room[..seen].iter().position(|byte| *byte == b'\n');
            let line = &mut room[..end.map_or(seen, |end| end + 1)];
            let Ok((_, taken)) = recv(&self.stream, &mut *line, RecvFlags::empty()) else {
                return CallerRequest::Invalid;
            };
            self.line.extend_from_slice(&line[..taken]);
            if self.line.ends_with(b"\n") {
                return parse_port(&self.line).map_or(CallerRequest::Invalid, CallerRequest::Port);
            }
            if self.line.len() == MAX_LINE {
                return CallerRequest::Invalid;
            }
        }
    }
}

fn parse_port(line: &[u8]) -> Option<u32> {
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
    fn line_in_pieces_is_read_without_the_bytes_after_it() {
        let (mut host, stream) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut caller = Caller::new(stream, true);
        for piece in ["", "CONN", "ECT 10", "24"] {
            host.write_all(piece.as_bytes()).unwrap();
            assert_eq!(caller.read_line(), CallerRequest::Incomplete);
        }
        host.write_all(b"\nGET / HTTP/1.1").unwrap();
        assert_eq!(caller.read_line(), CallerRequest::Port(1024));
        let mut rest = [0; 14];
        caller.stream.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"GET / HTTP/1.1");
    }

    #[test]
    fn invalid_lines_are_recognized() {
        let lines = ["\n", "CONNECT\n", "CONNECT x\n", "CONNECT 4294967296\n", "CONNECT 1 2\n", "HELLO 1\n"];
        let long = "x".repeat(MAX_LINE);
        for line in lines.into_iter().chain([long.as_str(), "CONNECT \u{0661}\n"]) {
            let (mut host, stream) = UnixStream::pair().unwrap();
            stream.set_nonblocking(true).unwrap();
            host.write_all(line.as_bytes()).unwrap();
            assert_eq!(Caller::new(stream, true).read_line(), CallerRequest::Invalid, "{line}");
        }
    }
}
