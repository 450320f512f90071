//! HTTP on one connection: requests are answered one after another, and the next one waits in the receive
//! window meanwhile.

use std::time::{Duration, Instant};

use smoltcp::socket::tcp::{Socket, State};

use super::request::{LONGEST, Parsed, Request, parse};
use super::response::Response;

/// Longest time between two requests, and for one request to arrive and its answer to leave.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time for the guest to close its end after the service did.
const GOODBYE: Duration = Duration::from_secs(5);

/// The state of a connection beside its socket.
#[derive(Debug)]
pub(super) struct Connection {
    /// The bytes of an answer that have not left.
    unsent: Vec<u8>,
    /// The connection ends after the answer.
    closing: bool,
    /// It was counted as made, and not as ended.
    pub is_counted: bool,
    /// When the connection ends unless something happens.
    pub deadline: Instant,
}

impl Connection {
    pub fn new(now: Instant) -> Self {
        Self { unsent: Vec::new(), closing: false, is_counted: false, deadline: now + PATIENCE }
    }

    /// Answers the requests that have arrived, as far as the send window allows.
    pub fn serve(
        &mut self,
        socket: &mut Socket<'_>,
        now: Instant,
        mut answer: impl FnMut(&Request<'_>) -> Response,
    ) {
        if now >= self.deadline {
            self.end(socket, now);
        }
        while socket.may_send() {
            if !self.unsent.is_empty() {
                let sent = socket.send_slice(&self.unsent).unwrap_or(0);
                self.unsent.drain(..sent);
                if !self.unsent.is_empty() {
                    return;
                }
            }
            if self.closing {
                socket.close();
                self.deadline = now + GOODBYE;
                return;
            }
            let mut bytes = [0; LONGEST];
            let arrived = socket.peek_slice(&mut bytes).unwrap_or(0);
            let (len, response, keep_alive) = match parse(&bytes[..arrived]) {
                Parsed::Partial => {
                    if !socket.may_recv() || socket.state() == State::CloseWait {
                        // The guest sends no more, so this request never becomes whole.
                        self.closing = true;
                        continue;
                    }
                    return;
                }
                Parsed::Whole(request, len) => (len, answer(&request), request.keep_alive),
                Parsed::Refused(refusal) => (arrived, Response::to_refusal(refusal), false),
            };
            // Never fails: the bytes were just seen.
            let _ = socket.recv_slice(&mut bytes[..len]);
            self.unsent = response.to_bytes(keep_alive);
            self.closing = !keep_alive;
            self.deadline = now + PATIENCE;
        }
    }

    /// Ends a connection whose time is over: an idle one in order, one that stalls at once.
    fn end(&mut self, socket: &mut Socket<'_>, now: Instant) {
        let is_idle =
            socket.state() == State::Established && socket.recv_queue() == 0 && self.unsent.is_empty();
        if is_idle && !self.closing {
            self.closing = true;
        } else {
            socket.abort();
        }
        self.deadline = now + GOODBYE;
    }
}
