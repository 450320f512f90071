//! Bytes between a client and a program in a guest, in both directions until both have ended.
//!
//! Each direction has one buffer: it reads again once the receiver has taken all. An end is passed on behind
//! the last byte, and the other direction goes on.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use volt_agent_client::PortStream;

/// Bytes that are under way in one direction.
const BUFFER: usize = 64 << 10;
/// The other side has gone.
const GONE: PollFlags = PollFlags::HUP.union(PollFlags::ERR);

/// One direction.
#[derive(Debug)]
struct Way {
    buffer: Vec<u8>,
    /// The bytes that the receiver has not taken.
    waiting: Range<usize>,
    is_over: bool,
}

impl Way {
    /// A direction whose first bytes, which fit into the buffer, have come already.
    fn beginning_with(mut buffer: Vec<u8>) -> Self {
        let waiting = 0..buffer.len();
        buffer.resize(BUFFER, 0);
        Self { buffer, waiting, is_over: false }
    }

    fn reads(&self) -> bool {
        !self.is_over && self.waiting.is_empty()
    }

    /// Passes what comes and goes without a wait. `end` tells the receiver the end.
    ///
    /// # Errors
    /// The sender broke off.
    fn step(&mut self, mut from: impl Read, mut to: impl Write, end: impl FnOnce()) -> io::Result<()> {
        if self.reads() {
            match from.read(&mut self.buffer) {
                Ok(0) => {
                    self.is_over = true;
                    end();
                }
                Ok(count) => self.waiting = 0..count,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        while !self.waiting.is_empty() {
            match to.write(&self.buffer[self.waiting.clone()]) {
                Ok(count) => self.waiting.start += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The receiver takes no more. Its own bytes may still come.
                Err(_) => (self.is_over, self.waiting) = (true, 0..0),
            }
        }
        Ok(())
    }
}

/// Passes bytes until both directions have ended, or one side has gone.
///
/// # Errors
/// A side broke off, or the host refuses. The caller closes both.
pub(super) fn pass(client: &TcpStream, guest: PortStream) -> io::Result<()> {
    let PortStream { stream: guest, unread } = guest;
    client.set_nodelay(true)?;
    client.set_nonblocking(true)?;
    guest.set_nonblocking(true)?;
    pass_both(client, &guest, unread)
}

fn pass_both(mut client: &TcpStream, mut guest: &UnixStream, unread: Vec<u8>) -> io::Result<()> {
    let (mut to_guest, mut to_client) = (Way::beginning_with(Vec::new()), Way::beginning_with(unread));
    // An end fails only for a side that has gone.
    let end_guest = || drop(guest.shutdown(Shutdown::Write));
    let end_client = || drop(client.shutdown(Shutdown::Write));
    loop {
        to_guest.step(&mut client, &mut guest, end_guest)?;
        to_client.step(&mut guest, &mut client, end_client)?;
        if to_guest.is_over && to_client.is_over {
            return Ok(());
        }
        let sides = [(client.as_fd(), &to_guest, &to_client), (guest.as_fd(), &to_client, &to_guest)];
        if await_any(sides)? {
            return Ok(());
        }
    }
}

/// Waits until a side can go on. Each is a socket with the ways from it and to it. Returns whether one whose
/// own way is over has gone: the bytes that come for it reach nobody.
fn await_any(sides: [(BorrowedFd<'_>, &Way, &Way); 2]) -> io::Result<bool> {
    let (mut polled, mut are_over) = (Vec::with_capacity(2), Vec::with_capacity(2));
    for (side, from, to) in sides {
        let mut awaited = PollFlags::empty();
        awaited.set(PollFlags::IN, from.reads());
        awaited.set(PollFlags::OUT, !to.waiting.is_empty());
        // A side that has gone would wake the loop while its last bytes wait for the other.
        if from.is_over || !awaited.is_empty() {
            polled.push(PollFd::from_borrowed_fd(side, awaited));
            are_over.push(from.is_over);
        }
    }
    match poll(&mut polled, None) {
        Err(rustix::io::Errno::INTR) => return Ok(false),
        result => result?,
    };
    let gone = |polled: &PollFd<'_>| polled.revents().intersects(GONE);
    Ok(polled.iter().zip(are_over).any(|(polled, is_over)| is_over && gone(polled)))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// The far ends of a client and a program whose bytes a thread passes. The program has sent `unread`.
    fn passed(unread: &[u8]) -> (TcpStream, UnixStream, thread::JoinHandle<io::Result<()>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (near, _) = listener.accept().unwrap();
        let (stream, program) = UnixStream::pair().unwrap();
        let guest = PortStream { stream, unread: unread.to_vec() };
        (client, program, thread::spawn(move || pass(&near, guest)))
    }

    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|number| (number >> 8) as u8 ^ number as u8).collect()
    }

    #[test]
    fn answer_comes_whole_after_the_end_of_the_question() {
        let (mut client, mut program, passing) = passed(b"banner ");
        let question = bytes(3 << 20);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut found = Vec::new();
                program.read_to_end(&mut found).unwrap();
                program.write_all(&found).unwrap();
                program.shutdown(Shutdown::Write).unwrap();
            });
            client.write_all(&question).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).unwrap();
            assert!(answer == [b"banner ", &question[..]].concat(), "{} bytes", answer.len());
        });
        passing.join().unwrap().unwrap();
    }

    #[test]
    fn client_that_reads_nothing_holds_the_program_back() {
        let (client, mut program, passing) = passed(b"");
        program.set_write_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
        let mut sent = 0;
        let piece = bytes(64 << 10);
        let error = loop {
            match program.write(&piece) {
                Ok(count) => sent += count,
                Err(error) => break error,
            }
            assert!(sent < 64 << 20, "nothing holds it back");
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        drop((client, program));
        // Both sides have left bytes unread or unsent.
        let _ = passing.join().unwrap();
    }

    #[test]
    fn program_that_has_gone_ends_the_connection_of_an_idle_client() {
        let (mut client, program, passing) = passed(b"");
        drop(program);
        passing.join().unwrap().unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn program_that_reads_no_more_still_answers() {
        let (mut client, mut program, passing) = passed(b"");
        program.shutdown(Shutdown::Read).unwrap();
        client.write_all(b"question").unwrap();
        program.write_all(b"answer").unwrap();
        drop(program);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "answer");
        drop(client);
        passing.join().unwrap().unwrap();
    }
}
