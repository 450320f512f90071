//! The bytes of the far side. They pass as they are, unless the guest has asked for another protocol: the
//! status of the response then tells which one the guest goes on with.

use httparse::{EMPTY_HEADER, Response, Status};
use smoltcp::socket::tcp::Socket;

use super::end::has_peer_ended;
use super::requests::{Ending, RequestStream};

/// Longest head of a response to an upgrade, in bytes.
pub(super) const LONGEST_RESPONSE_HEAD: usize = 16 << 10;
/// Most fields of such a head.
const MOST_FIELDS: usize = 128;
/// The response that grants an upgrade (RFC 9110, section 15.2.2).
const SWITCHING_PROTOCOLS: u16 = 101;

/// Passes bytes from `far` to `near` as far as there is room. Returns whether any did.
///
/// # Errors
/// The response to an upgrade is no HTTP/1.
pub(super) fn pass(
    far: &mut Socket<'_>,
    near: &mut Socket<'_>,
    requests: &mut RequestStream,
) -> Result<bool, Ending> {
    let mut has_moved = false;
    while far.can_recv() && near.can_send() {
        let room = near.send_capacity() - near.send_queue();
        let len = if requests.awaits_upgrade() {
            match answer_to_upgrade(far, requests)? {
                Some(len) if len <= room => len,
                Some(_) | None => break,
            }
        } else {
            room
        };
        has_moved |= copy(far, near, len);
    }
    Ok(has_moved)
}

/// Passes up to `len` bytes, for which there is room. Returns whether there were any.
pub(super) fn copy(far: &mut Socket<'_>, near: &mut Socket<'_>, len: usize) -> bool {
    let mut left = len;
    while left > 0 {
        let copied = far.recv(|bytes| {
            let copied = near.send_slice(&bytes[..bytes.len().min(left)]).unwrap_or(0);
            (copied, copied)
        });
        match copied {
            Ok(1..) => left -= copied.unwrap_or(0),
            Ok(0) | Err(_) => break,
        }
    }
    left < len
}

/// Reads the next response to an upgrade. Returns the length of its head, or `None` if that is not whole.
fn answer_to_upgrade(far: &mut Socket<'_>, requests: &mut RequestStream) -> Result<Option<usize>, Ending> {
    let mut bytes = [0; LONGEST_RESPONSE_HEAD];
    let arrived = far.peek_slice(&mut bytes).unwrap_or(0);
    let mut fields = [EMPTY_HEADER; MOST_FIELDS];
    let mut response = Response::new(&mut fields);
    match response.parse(&bytes[..arrived]) {
        Ok(Status::Complete(len)) => {
            match response.code {
                Some(SWITCHING_PROTOCOLS) => requests.answer_upgrade(true),
                Some(100..200) => {}
                _ => requests.answer_upgrade(false),
            }
            Ok(Some(len))
        }
        Ok(Status::Partial) if arrived < LONGEST_RESPONSE_HEAD && !has_peer_ended(far) => Ok(None),
        Ok(Status::Partial) | Err(_) => Err(Ending::Cut),
    }
}
