//! The VM's end of the socket to a process beside it: one request at a time, each with its answer.
//!
//! Requests and answers are numbered. A request that was given up after an error of the socket leaves its
//! answer there, and the next request must not take that for its own: it would get the descriptor of another
//! file.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::message::{self, Answer, Request};

/// One end of a socket, whose other end a process beside the VM's serves.
#[derive(Debug)]
pub(super) struct Channel {
    socket: OwnedFd,
    /// The number of the last request.
    last: u64,
}

impl Channel {
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, last: 0 }
    }

    /// Sends a request without waiting for an answer.
    ///
    /// # Errors
    /// The other end is gone.
    pub fn tell(&mut self, request: &Request, beside: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.last += 1;
        message::send(&self.socket, &(self.last, request), beside).map_err(or_ended)
    }

    /// Sends a request. Returns its answer and the descriptors beside it.
    ///
    /// # Errors
    /// The other end refuses, or is gone.
    pub fn ask(
        &mut self,
        request: &Request,
        beside: &[BorrowedFd<'_>],
    ) -> io::Result<(Answer, Vec<OwnedFd>)> {
        self.tell(request, beside)?;
        self.answer_to(self.last)
    }

    /// Sends requests, and then waits for their answers. The other end works while more are sent.
    pub fn ask_all(&mut self, requests: &[Request]) -> Vec<io::Result<(Answer, Vec<OwnedFd>)>> {
        let mut tell = |request| self.tell(request, &[]).map(|()| self.last);
        let numbers: Vec<_> = requests.iter().map(&mut tell).collect();
        numbers.into_iter().map(|number| self.answer_to(number?)).collect()
    }

    /// Waits for the answer to the request with this number.
    fn answer_to(&self, wanted: u64) -> io::Result<(Answer, Vec<OwnedFd>)> {
        loop {
            let received = message::receive::<(Option<u64>, Answer)>(&self.socket).map_err(or_ended)?;
            let ((number, answer), fds) = received.ok_or_else(ended)?;
            // An answer without a number is to a request that did not arrive whole.
            if number.is_some_and(|number| number != wanted) {
                continue;
            }
            return match answer {
                Answer::Failed { errno: Some(errno), .. } => Err(io::Error::from_raw_os_error(errno)),
                Answer::Failed { reason, .. } => Err(io::Error::other(reason)),
                answer => Ok((answer, fds)),
            };
        }
    }
}

/// The error if the process at the other end has ended.
pub(super) fn ended() -> io::Error {
    io::Error::new(
        io::ErrorKind::BrokenPipe,
        "the process that opens files (or the one that starts programs) has ended",
    )
}

fn or_ended(error: io::Error) -> io::Error {
    if message::is_end(&error) { ended() } else { error }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (Channel, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        (Channel::new(near), far)
    }

    #[test]
    fn answer_to_an_abandoned_request_is_dropped() {
        let (mut channel, far) = pair();
        let server = thread::spawn(move || {
            while let Some(((number, request), _)) = message::receive::<(u64, Request)>(&far).unwrap() {
                let Request::StatusOf { pid } = request else { unreachable!() };
                let answer = Answer::Ended { status: pid.cast_signed() };
                message::send(&far, &(Some(number), answer), &[]).unwrap();
            }
        });
        channel.tell(&Request::StatusOf { pid: 1 }, &[]).unwrap();
        let (answer, _) = channel.ask(&Request::StatusOf { pid: 2 }, &[]).unwrap();
        assert!(matches!(answer, Answer::Ended { status: 2 }), "{answer:?}");
        drop(channel);
        server.join().unwrap();
    }

    #[test]
    fn requests_that_are_sent_together_get_their_own_answers() {
        let (mut channel, far) = pair();
        let server = thread::spawn(move || {
            while let Some(((number, request), _)) = message::receive::<(u64, Request)>(&far).unwrap() {
                let answer = match request {
                    Request::StatusOf { pid: 2 } => Answer::failed(&io::ErrorKind::NotFound.into()),
                    Request::StatusOf { pid } => Answer::Ended { status: pid.cast_signed() },
                    _ => unreachable!(),
                };
                message::send(&far, &(Some(number), answer), &[]).unwrap();
            }
        });
        let answers = channel.ask_all(&[1, 2, 3].map(|pid| Request::StatusOf { pid }));
        let answers: Vec<_> = answers.into_iter().map(|answer| answer.map(|(answer, _)| answer)).collect();
        assert!(
            matches!(answers[..], [Ok(Answer::Ended { status: 1 }), Err(_), Ok(Answer::Ended { status: 3 })]),
            "{answers:?}"
        );
        drop(channel);
        server.join().unwrap();
    }

    #[test]
    fn end_of_the_other_process_is_named() {
        let (mut channel, far) = pair();
        drop(far);
        let error = channel.ask(&Request::Seal, &[]).unwrap_err();
        assert_eq!(error.to_string(), ended().to_string());
        // The other end was closed while a request waited there.
        let (mut channel, far) = pair();
        channel.tell(&Request::Seal, &[]).unwrap();
        drop(far);
        let error = channel.ask(&Request::Seal, &[]).unwrap_err();
        assert_eq!(error.to_string(), ended().to_string());
    }
}
