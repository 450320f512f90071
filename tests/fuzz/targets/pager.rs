//! Fuzzes a pager by one of its VMs, which sends any packets and descriptors. Another VM is still heard.
#![no_main]

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_fuzz::Dir;
use volt_fuzz::edit::{Edit, edited};
use volt_fuzz::files::in_memory;
use volt_fuzz::messages::{connect, receive, send};
use volt_fuzz::snapshots::{How, MEMORY, Pages, packed};
use volt_vmm::snapshot::serve_pager;

/// Most packets of a VM.
const PACKETS: usize = 12;
const REQUESTS: [&str; 6] = [
    r#"{"Base":{"version":3,"memory_len":1048576}}"#,
    r#"{"Serve":{"start":65536,"len":1048576}}"#,
    r#""Complete""#,
    r#""Prefetch""#,
    r#""Fetched""#,
    r#""Ping""#,
];

#[derive(Debug, Arbitrary)]
struct Packet {
    request: u8,
    edits: Vec<Edit>,
    any: Option<Vec<u8>>,
    beside: Beside,
    more: bool,
}

#[derive(Debug, Arbitrary)]
enum Beside {
    Nothing,
    List(Vec<(u8, u8)>),
    Memory(bool),
    Device,
    Userfault,
}

impl Beside {
    fn file(&self) -> Option<OwnedFd> {
        Some(match self {
            Self::Nothing => return None,
            Self::List(ranges) => {
                let numbers = ranges.iter().flat_map(|(first, count)| [u32::from(*first), u32::from(*count)]);
                in_memory(&numbers.flat_map(u32::to_le_bytes).collect::<Vec<_>>()).into()
            }
            Self::Memory(whole) => {
                let memory = rustix::fs::memfd_create("volt-ram", rustix::fs::MemfdFlags::ALLOW_SEALING);
                let memory = File::from(memory.expect("a file in memory"));
                memory.set_len(if *whole { MEMORY as u64 } else { 4096 }).expect("a file in memory");
                memory.into()
            }
            Self::Device => File::open("/dev/null").expect("a device").into(),
            Self::Userfault => volt_vmm::fuzzing::userfaultfd()?,
        })
    }
}

/// The pager's socket. The pager runs as long as the fuzzer.
fn socket() -> &'static PathBuf {
    static SOCKET: OnceLock<PathBuf> = OnceLock::new();
    static DIR: OnceLock<Dir> = OnceLock::new();
    SOCKET.get_or_init(|| {
        let dir = DIR.get_or_init(Dir::new);
        let (path, group) = (dir.join("pagers"), None);
        let how: How = arbitrary::Unstructured::new(&[0; 16]).arbitrary().expect("enough bytes");
        let pages: Pages =
            arbitrary::Unstructured::new(&[1, 2, 3, 4, 5, 6]).arbitrary().expect("enough bytes");
        let mut memory = vec![0; MEMORY];
        pages.write(&mut memory);
        let pack = in_memory(&packed(&memory, &how).0);
        let (told, listens) = std::sync::mpsc::channel();
        let directory = path.clone();
        std::thread::spawn(move || {
            let hour = Duration::from_secs(3600);
            serve_pager(pack, "memory.pack".as_ref(), (&directory, group), hour, || {
                told.send(()).expect("a fuzzer that waits");
            })
            .expect("a pager that works");
        });
        listens.recv().expect("a pager that listens");
        let mut names =
            std::fs::read_dir(path).expect("a directory").map(|entry| entry.expect("a file").path());
        names.find(|name| name.extension().is_none_or(|end| end != "lock")).expect("a socket")
    })
}

fuzz_target!(|packets: Vec<Packet>| {
    let (hostile, other) = (connect(socket()), connect(socket()));
    for packet in packets.into_iter().take(PACKETS) {
        let Packet { request, edits, any, beside, more } = packet;
        let text = edited(REQUESTS[usize::from(request) % REQUESTS.len()], edits);
        let bytes = any.unwrap_or(text.into_bytes());
        let file = beside.file();
        let files: Vec<_> = file.iter().chain(file.iter().filter(|_| more)).map(AsFd::as_fd).collect();
        // The pager may have ended the connection.
        if !bytes.is_empty() && send(&hostile, &bytes, &files).is_err() {
            break;
        }
    }
    // Answers to the hostile VM are not read: a full socket must not stop the pager.
    send(&other, br#""Ping""#, &[]).expect("a pager that lives");
    let mut answer = Vec::new();
    receive(&other).take(64).read_to_end(&mut answer).expect("an answer");
    assert_eq!(answer, br#""Alive""#);
});
