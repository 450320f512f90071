//! Fuzzes a handover: the message by which a fork's child receives its VM, with a correct checksum or damage,
//! and any descriptors. A snapshot that is accepted can be handed over again.
#![no_main]

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rustix::fs::SealFlags;
use serde_json::json;
use volt_fuzz::edit::{Edit, edited};
use volt_fuzz::files::{Damage, in_memory};
use volt_fuzz::messages::send;
use volt_fuzz::snapshots::{How, MEMORY, Pages, packed, sealed, state};
use volt_vmm::Snapshot;
use volt_vmm::fuzzing::crc64;
use volt_vmm::internal::host;

#[derive(Debug, Arbitrary)]
struct Input {
    state: Vec<Edit>,
    over: Option<Pages>,
    lineage: Option<Pages>,
    pack: Option<How>,
    about: Vec<Edit>,
    sets: Vec<Damage>,
    files: Vec<Change>,
    announced: Option<u8>,
    lengths: Option<(u8, u64)>,
    damage: Vec<Damage>,
}

/// A change of the descriptors.
#[derive(Debug, Arbitrary)]
enum Change {
    Open(u8),
    Short(u8),
    Device(u8),
    Remove(u8),
    Add,
}

fn sealed_file(bytes: &[u8]) -> File {
    let file = rustix::fs::memfd_create("volt-ram", rustix::fs::MemfdFlags::ALLOW_SEALING);
    let file = File::from(file.expect("a file in memory"));
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).expect("a file in memory");
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).expect("a file in memory");
    file
}

impl Change {
    fn apply(&self, files: &mut Vec<File>) {
        let count = files.len().max(1);
        let (Self::Open(at) | Self::Short(at) | Self::Device(at) | Self::Remove(at)) = self else {
            files.push(in_memory(&[]));
            return;
        };
        let at = usize::from(*at) % count;
        match self {
            Self::Remove(_) if at < files.len() => drop(files.remove(at)),
            Self::Open(_) => files.get_mut(at).into_iter().for_each(|file| *file = in_memory(&[0; MEMORY])),
            Self::Short(_) => files.get_mut(at).into_iter().for_each(|file| *file = sealed_file(&[0; 4096])),
            _ => files
                .get_mut(at)
                .into_iter()
                .for_each(|file| *file = File::open("/dev/null").expect("a device")),
        }
    }
}

/// The message, and its descriptors.
fn message(input: Input) -> (Vec<u8>, Vec<File>) {
    let features = host::feature_digest().ok();
    let text = sealed(&edited(&state(&json!({"host_features": features})).to_string(), input.state));
    let (base, pack) = match &input.pack {
        None => (sealed_file(&[0; MEMORY]), json!(null)),
        Some(how) => {
            let (bytes, digest) = packed(&[7; MEMORY], how);
            (in_memory(&bytes), json!({"name": "/p", "file": {"pack": digest}, "pager": null}))
        }
    };
    let mut files = vec![base];
    let mut sets = Vec::new();
    if let Some(over) = &input.over {
        let mut memory = vec![0; MEMORY];
        over.write(&mut memory);
        files.push(sealed_file(&memory));
        sets.extend(over.set().bytes());
    }
    sets.extend(input.lineage.iter().flat_map(|pages| pages.set().bytes().collect::<Vec<_>>()));
    let lineage = input.lineage.is_some().then(|| json!({"memory_digest": "00000000000000aa", "path": "/b"}));
    let about = json!({"over": input.over.is_some(), "lineage": lineage, "layers": [], "pack": pack});
    let about = edited(&about.to_string(), input.about).into_bytes();
    input.sets.iter().for_each(|damage| damage.apply(&mut sets));
    let announced = input.announced.map_or(files.len() as u64, u64::from);
    input.files.iter().take(4).for_each(|change| change.apply(&mut files));
    let mut lengths = [&text, &about, &sets].map(|part| part.len() as u64);
    if let Some((part, len)) = input.lengths {
        lengths[usize::from(part) % 3] = len;
    }
    let words = [u64::from_le_bytes(*b"VOLTFORK"), 1].into_iter().chain(lengths).chain([announced]);
    let head: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    let parts = [&text[..], &about, &sets].concat();
    let checksum = crc64(&[&head[..], &parts].concat());
    let mut message = [&head[..], &checksum.to_le_bytes(), &parts].concat();
    input.damage.iter().for_each(|damage| damage.apply(&mut message));
    (message, files)
}

fn receive(message: &[u8], files: &[File]) -> volt_vmm::Result<Snapshot> {
    let (near, far) = UnixStream::pair().expect("sockets");
    rustix::net::sockopt::set_socket_send_buffer_size(&near, 1 << 20).expect("a socket");
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    if !message.is_empty() {
        send(&near, message, &files).expect("room in a socket");
    }
    drop(near);
    Snapshot::receive(&far)
}

fuzz_target!(|input: Input| {
    let (message, files) = message(input);
    match receive(&message, &files) {
        Err(error) => assert!(!volt_vmm::report(&error).is_empty()),
        Ok(snapshot) => {
            assert_eq!(snapshot.metadata().memory_bytes, MEMORY as u64);
            let handover = snapshot.handover().expect("a snapshot that was handed over");
            let (near, far) = UnixStream::pair().expect("sockets");
            std::thread::scope(|scope| {
                scope.spawn(|| handover.send(&near).expect("a receiver"));
                let again = Snapshot::receive(&far).expect("a handover of our own");
                assert_eq!(again.metadata(), snapshot.metadata());
            });
        }
    }
});
