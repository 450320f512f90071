//! A message with descriptors over a unix socket: its parts in one piece, with a checksum of the whole.
//!
//! ```text
//!   magic | version | length of each of three parts | descriptors | CRC-64 of all else     words of 8 bytes, little-endian
//!   part | part | part
//! ```
//!
//! The descriptors come with the first byte (SCM_RIGHTS). Bytes after the message stay in the socket.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg,
};

use crate::config::devices::MAX_DEVICES;
use crate::snapshot::format::crc::CRC;

const MAGIC: u64 = u64::from_le_bytes(*b"VOLTFORK");
const VERSION: u64 = 2;
pub const PARTS: usize = 3;
/// Words before the checksum: magic, version, parts, descriptors.
const WORDS: usize = 2 + PARTS + 1;
const HEADER: usize = (WORDS + 1) * 8;
/// The most descriptors: a base, the pages over it, a layer for each disk, and a working set.
const MOST_DESCRIPTORS: usize = 3 + MAX_DEVICES;

/// Encodes a message.
///
/// # Panics
/// There are more files than a message can have.
pub fn encode(parts: &[&[u8]; PARTS], files: usize) -> Vec<u8> {
    assert!(files <= MOST_DESCRIPTORS, "{files} descriptors");
    let mut message = Vec::with_capacity(HEADER + parts.iter().map(|part| part.len()).sum::<usize>());
    let lengths = parts.map(|part| part.len() as u64);
    for word in [MAGIC, VERSION].into_iter().chain(lengths).chain([files as u64]) {
        message.extend(word.to_le_bytes());
    }
    let mut digest = CRC.digest();
    digest.update(&message);
    parts.iter().for_each(|part| digest.update(part));
    message.extend(digest.finalize().to_le_bytes());
    parts.iter().for_each(|part| message.extend_from_slice(part));
    message
}

/// Sends the message, and waits until the receiver has taken it.
///
/// # Errors
/// The receiver is gone.
pub fn transmit(to: &UnixStream, message: &[u8], files: &[File]) -> io::Result<()> {
    let descriptors: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        rights.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let mut sent = 0;
    while sent < message.len() {
        let rest = &message[sent..];
        let done = match sent {
            0 => sendmsg(to, &[IoSlice::new(rest)], &mut rights, SendFlags::NOSIGNAL),
            _ => send(to, rest, SendFlags::NOSIGNAL),
        };
        match done {
            Ok(count) => sent += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// A received message.
#[derive(Debug)]
pub struct Received {
    pub parts: [Vec<u8>; PARTS],
    pub files: Vec<File>,
}

/// Receives a message whose parts are no longer than `longest`. `Err` in the result names the fault of the
/// message.
///
/// # Errors
/// The socket refuses.
pub fn receive(from: &UnixStream, longest: u64) -> io::Result<Result<Received, String>> {
    let mut header = [0; HEADER];
    let mut files = Vec::new();
    let mut read = 0;
    while read < HEADER {
        match receive_some(from, &mut header[read..], &mut files)? {
            Ok(0) => return Ok(Err(format!("is cut off after {read} bytes"))),
            Ok(count) => read += count,
            Err(problem) => return Ok(Err(problem)),
        }
    }
    let word = |at: usize| u64::from_le_bytes(header[at * 8..][..8].try_into().expect("8 bytes"));
    if word(0) != MAGIC || word(1) != VERSION {
        return Ok(Err("is not a message of this version of volt-vmm".to_owned()));
    }
    let mut digest = CRC.digest();
    digest.update(&header[..WORDS * 8]);
    let mut parts = [const { Vec::new() }; PARTS];
    for (at, part) in (2..).zip(&mut parts) {
        let len = word(at);
        if len > longest {
            return Ok(Err(format!("has a part of {len} bytes; a part has at most {longest}")));
        }
        let found = from.take(len).read_to_end(part)? as u64;
        if found != len {
            return Ok(Err(format!("is cut off: only {found} of the {len} bytes of a part arrived")));
        }
        digest.update(part);
    }
    if digest.finalize() != word(WORDS) {
        return Ok(Err("is damaged: the received bytes do not match its checksum".to_owned()));
    }
    let expected = word(WORDS - 1);
    if files.len() as u64 != expected {
        return Ok(Err(format!("came with {} descriptors, not {expected}", files.len())));
    }
    Ok(Ok(Received { parts, files }))
}

/// Reads some bytes, and the descriptors that come with them.
fn receive_some(
    from: &UnixStream,
    into: &mut [u8],
    files: &mut Vec<File>,
) -> io::Result<Result<usize, String>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match recvmsg(from, &mut [IoSliceMut::new(into)], &mut rights, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            // Reported like the end of the stream: the sender is gone.
            Err(Errno::CONNRESET) => return Err(ErrorKind::UnexpectedEof.into()),
            got => break got?,
        }
    };
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            files.extend(descriptors.map(File::from));
        }
    }
    match got.flags.contains(ReturnFlags::CTRUNC) {
        true => {
            Ok(Err("came with more descriptors than a message may have, or than this process may open"
                .to_owned()))
        }
        false => Ok(Ok(got.bytes)),
    }
}
