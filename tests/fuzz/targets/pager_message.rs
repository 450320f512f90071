//! Fuzzes the packets between a VM and its pager: a packet that is accepted is the same after it is sent
//! again.
#![no_main]

use std::os::fd::AsFd;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use serde::Serialize;
use serde::de::DeserializeOwned;
use volt_fuzz::edit::{Edit, edited};
use volt_fuzz::files::in_memory;
use volt_vmm::fuzzing::message::{PagerRequest, PagerResponse};
use volt_vmm::fuzzing::packets::{receive, send};

const SEEDS: [&str; 9] = [
    r#"{"Base":{"version":3,"memory_len":1048576}}"#,
    r#"{"Serve":{"start":65536,"len":1048576}}"#,
    r#""Complete""#,
    r#""Done""#,
    r#"{"Refused":"why"}"#,
    r#"{"Fetched":{"chunk_len":65536,"touched":3,"prefetch":null}}"#,
    r#"{"NotPrefetched":"why"}"#,
    r#""Alive""#,
    r#"{"Unreadable":{"start":0,"end":4096,"why":"damaged"}}"#,
];

#[derive(Debug, Arbitrary)]
struct Input {
    any: Option<Vec<u8>>,
    seed: u8,
    edits: Vec<Edit>,
    files: u8,
}

fn check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8], files: usize) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("sockets");
    let (near, far) = pair();
    let file = in_memory(&[]);
    let beside = vec![file.as_fd(); files];
    if bytes.is_empty() || volt_fuzz::messages::send(&near, bytes, &beside).is_err() {
        return;
    }
    let Ok(Some((message, fd))) = receive::<T>(&far, RecvFlags::DONTWAIT) else { return };
    assert_eq!(fd.is_some(), files == 1);
    let (near, far) = pair();
    // Escapes may make a message longer than it came.
    if send(&near, &message, fd.as_ref().map(AsFd::as_fd), SendFlags::DONTWAIT).is_ok() {
        let again = receive::<T>(&far, RecvFlags::DONTWAIT).expect("its own message").expect("a message");
        assert_eq!(again.0, message);
    }
}

fuzz_target!(|input: Input| {
    let Input { any, seed, edits, files } = input;
    let text = edited(SEEDS[usize::from(seed) % SEEDS.len()], edits);
    let bytes = any.unwrap_or(text.into_bytes());
    check::<PagerRequest>(&bytes, usize::from(files % 4));
    check::<PagerResponse>(&bytes, usize::from(files % 4));
});
