//! Valid handovers, and forged ones: none of these gives a snapshot.

use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::thread;

use super::*;
use crate::config::devices::DiskConfig;
use crate::config::{Devices, VmConfig};
use crate::machine::MachineState;
use crate::memory::PAGE;
use crate::memory::files::memfd::fresh;
use crate::snapshot::Metadata;
use crate::snapshot::format::pack::testing::{
    BOTH, TestMemory, content, file_of, noise, open, packed, packing,
};
use crate::snapshot::format::working_set::WorkingSet;

const MIB: u64 = 8;
const LEN: u64 = MIB << 20;

fn machine() -> MachineState {
    let clock = serde_json::json!({"clock": 7, "flags": 0, "realtime": 0, "host_tsc": 0});
    let state = serde_json::json!({"vcpus": [], "clock": clock, "devices": {}});
    serde_json::from_value(state).unwrap()
}

fn set(pages: &[u64]) -> Arc<PageSet> {
    let mut set = PageSet::none(LEN);
    pages.iter().for_each(|page| set.add(page * PAGE..(page + 1) * PAGE));
    Arc::new(set)
}

fn config() -> VmConfig {
    let disk = |id: &str, layer: bool| -> DiskConfig {
        let layer = if layer { serde_json::json!("/its/layer") } else { serde_json::Value::Null };
        serde_json::from_value(serde_json::json!({"id": id, "path": "fd:7", "layer": layer})).unwrap()
    };
    let devices = Devices { disks: vec![disk("whole", false), disk("layered", true)], ..Devices::default() };
    VmConfig { memory_mib: MIB, devices, ..VmConfig::new("/kernel") }
}

fn file(word: &[u8]) -> File {
    let file = fresh(LEN).unwrap();
    file.write_all_at(word, 3 * PAGE).unwrap();
    file
}

fn snapshot() -> Snapshot {
    over(CapturedBase::Whole(Arc::new(file(b"base"))))
}

/// Memory that is filled on touch from a pack with these `bytes`.
fn lazy(bytes: &[u8]) -> Snapshot {
    let memory = Arc::new(SnapshotMemory::Packed(Packed::of(Arc::new(open(bytes).unwrap()))));
    over(CapturedBase::Lazy(LazyMemory { memory, unpack: Unpack::OnTouch }))
}

/// A pack of `len` bytes of memory.
fn pack_of(seed: u64, len: u64) -> Vec<u8> {
    packed(&TestMemory::of(noise(seed, len as usize)), &packing(BOTH[0], 64 << 10))
}

/// A snapshot over this memory.
fn over(below: CapturedBase) -> Snapshot {
    let config = config();
    let over = OverlayPages { pages: set(&[3, 9]), file: Arc::new(file(b"over")) };
    let base = BaseSnapshot { memory_digest: "00000000000000aa".to_owned(), path: "/base".into() };
    let lineage = Lineage { base, may_differ: PagesToCapture::NotBase(Some(set(&[3, 9, 11]))) };
    let layers = BTreeMap::from([("layered".to_owned(), file(b"layer"))]);
    let parts = (Metadata::of(&config).unwrap(), config, machine());
    Snapshot::in_memory(parts, (below, Some(over)), Some(lineage), layers, None).unwrap()
}

/// The receiver's result.
fn received(send: impl FnOnce(UnixStream) + Send) -> Result<Snapshot> {
    let (here, there) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || send(here));
        Snapshot::receive(&there)
    })
}

#[track_caller]
fn refused(message: &[u8], files: &[File], words: &str) {
    // Sending fails if the receiver takes nothing.
    let error = received(|socket| drop(wire::transmit(&socket, message, files))).unwrap_err();
    let error = crate::error::report(&error);
    assert!(error.contains(words), "{error}");
}

fn word_of(file: &File) -> Vec<u8> {
    let mut word = vec![0; 4];
    file.read_exact_at(&mut word, 3 * PAGE).unwrap();
    word
}

#[test]
fn received_memory_is_equal_and_read_only() {
    let here = snapshot();
    let handover = here.handover().unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let there = thread::scope(|scope| {
        scope.spawn(|| {
            handover.send(&near).unwrap();
            (&near).write_all(b"what follows").unwrap();
        });
        Snapshot::receive(&far).unwrap()
    });
    let mut rest = [0; 12];
    (&far).read_exact(&mut rest).unwrap();
    assert_eq!(&rest, b"what follows");
    assert_eq!(there.metadata(), here.metadata());
    assert_eq!(there.config().memory_mib, MIB);
    let path = there.config().devices.disks[0].path.to_string();
    assert_eq!(path, format!("fd:7 of process {}", std::process::id()), "no number of this process's");
    let (memory, over) = there.memory().unwrap();
    let (base, over) = (memory.base().unwrap(), over.unwrap());
    assert_eq!((word_of(&base), word_of(&over.file)), (b"base".to_vec(), b"over".to_vec()));
    assert_eq!(over.pages, set(&[3, 9]));
    let lineage = there.lineage().unwrap();
    assert_eq!(
        (lineage.base.path.to_str(), lineage.may_differ.pages()),
        (Some("/base"), Some(&*set(&[3, 9, 11])))
    );
    let layer = there.layers().find("layered").unwrap();
    assert_eq!(word_of(&layer.open("open").unwrap()), b"laye");
    assert!(layer.open_writable("open", false).is_err(), "the layer below is only read");
    for file in [&base, &over.file] {
        assert!(file.write_at(b"x", 0).is_err() && file.set_len(0).is_err());
    }
    let of_parent = here.memory().unwrap().0.base().unwrap();
    assert!(of_parent.write_at(b"x", 0).is_err(), "nor does the parent change it any more");
}

#[test]
fn lazy_memory_is_sent_as_its_pack_and_stays_packed() {
    let (bytes, other, longer) = (pack_of(1, LEN), pack_of(2, LEN), pack_of(1, LEN + (1 << 20)));
    let here = lazy(&bytes);
    let handover = here.handover().unwrap();
    let there = received(|socket| handover.send(&socket).unwrap()).unwrap();
    let again = there.handover().unwrap();
    let third = received(|socket| again.send(&socket).unwrap()).unwrap();
    for snapshot in [here, there, third] {
        let (SnapshotMemory::Packed(packed), _) = snapshot.memory().unwrap() else {
            panic!("it was unpacked")
        };
        assert!(content(&packed.pack).unwrap() == noise(1, LEN as usize));
        assert_eq!(snapshot.fills(), Some(&Unpack::OnTouch));
    }
    let (parts, files) = Parts::of(&lazy(&bytes));
    let with = |pack: &[u8]| {
        let others = files[1..].iter().map(|file| file.try_clone().unwrap());
        [file_of(pack)].into_iter().chain(others).collect::<Vec<_>>()
    };
    for pack in [&other, &longer] {
        refused(&parts.message(&files), &with(pack), "came with a pack that is not the one it names");
    }
    refused(&parts.message(&files), &with(&bytes[..bytes.len() - 1]), "memory.pack");
    refused(&parts.message(&files), &with(b""), "memory.pack");
}

#[test]
fn handover_serves_many_receivers_and_can_be_forwarded() {
    let handover = snapshot().handover().unwrap();
    for _ in 0..3 {
        let there = received(|socket| handover.send(&socket).unwrap()).unwrap();
        let again = there.handover().unwrap();
        let third = received(|socket| again.send(&socket).unwrap()).unwrap();
        assert_eq!(word_of(&third.memory().unwrap().0.base().unwrap()), b"base");
    }
}

#[test]
fn working_set_of_the_children_is_shared_with_them() {
    let place = WorkingSetFile::of_children(LEN).unwrap();
    let here = snapshot().with_working_set(Some(Arc::clone(&place)));
    let handover = here.handover().unwrap();
    let child = || received(|socket| handover.send(&socket).unwrap()).unwrap();
    let (first, second) = (child(), child());
    assert_eq!(first.working_set().unwrap(), None);
    let kept = WorkingSet::of_written(&set(&[3, 4]), &set(&[9]));
    first.working_set_file().unwrap().keep(kept.clone()).unwrap();
    for snapshot in [here, second, child()] {
        assert_eq!(snapshot.working_set().unwrap().as_deref(), Some(&kept));
    }
    let (parts, mut files) = Parts::of(&snapshot().with_working_set(Some(place)));
    *files.last_mut().unwrap() = File::open("/dev/null").unwrap();
    refused(&parts.message(&files), &files, "has a working set that is not a regular file");
    refused(&parts.message(&files[..3]), &files[..3], "has 3 files, not 4");
}

#[test]
fn truncated_or_flipped_message_is_refused() {
    let Handover { message, files } = snapshot().handover().unwrap();
    for len in (0..message.len()).step_by(97).chain([message.len() - 1]) {
        let error = received(|socket| drop(wire::transmit(&socket, &message[..len], &files))).unwrap_err();
        assert!(error.to_string().contains("is cut off"), "{len}: {error}");
    }
    for at in (0..64).chain((64..message.len()).step_by(89)) {
        let mut message = message.clone();
        message[at] ^= 0x10;
        received(|socket| drop(wire::transmit(&socket, &message, &files))).expect_err(&format!("byte {at}"));
    }
}

#[test]
fn descriptors_that_are_missing_or_too_many_are_noticed() {
    let Handover { message, mut files } = snapshot().handover().unwrap();
    files.push(file(b"more"));
    refused(&message, &files, "came with 4 descriptors, not 3");
    refused(&message, &files[..2], "came with 2 descriptors, not 3");
    refused(&message, &[], "came with 0 descriptors, not 3");
    let many: Vec<File> = (0..19).map(|_| file(b"many")).collect();
    refused(&message, &many, "came with 19 descriptors");
}

/// A message with one change and a correct checksum.
struct Parts {
    state: Vec<u8>,
    about: Vec<u8>,
    pages: Vec<u8>,
}

impl Parts {
    fn of(snapshot: &Snapshot) -> (Self, Vec<File>) {
        let Handover { message, files } = snapshot.handover().unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        let received = thread::scope(|scope| {
            scope.spawn(|| wire::transmit(&near, &message, &files).unwrap());
            wire::receive(&far, LARGEST_PART).unwrap().unwrap()
        });
        let [state, about, pages] = received.parts;
        (Self { state, about, pages }, files)
    }

    fn message(&self, files: &[File]) -> Vec<u8> {
        wire::encode(&[&self.state, &self.about, &self.pages], files.len())
    }
}

#[test]
fn files_that_are_not_what_they_should_be_are_refused() {
    let (parts, files) = Parts::of(&snapshot());
    let good = || files.iter().map(|file| file.try_clone().unwrap()).collect::<Vec<_>>();
    let with = |at: usize, file: File| {
        let mut files = good();
        files[at] = file;
        files
    };
    refused(&parts.message(&files), &with(0, file(b"open")), "is not sealed against changes");
    refused(&parts.message(&files), &with(1, file(b"open")), "is not sealed against changes");
    let short = fresh(LEN - PAGE).unwrap();
    seal(&short).unwrap();
    refused(&parts.message(&files), &with(0, short), "has a memory file of 8384512 bytes for 8388608");
    refused(&parts.message(&files), &with(0, File::open("/dev/null").unwrap()), "is not a regular file");
    refused(&parts.message(&files), &with(2, File::open("/dev/null").unwrap()), "a layer for disk layered");
    // All descriptors arrive, but fewer than the header needs.
    refused(&parts.message(&files[..2]), &files[..2], "has 2 files, not 3");
}

#[test]
fn lists_of_pages_that_are_no_such_lists_are_refused() {
    let (mut parts, files) = Parts::of(&snapshot());
    let pages = parts.pages.clone();
    parts.pages.truncate(pages.len() - 8);
    refused(&parts.message(&files), &files, "lacks a list of pages");
    parts.pages = [&pages[..], &[0; 8]].concat();
    refused(&parts.message(&files), &files, "more lists of pages");
    let mut config = config();
    config.memory_mib = MIB - 1;
    let state = manifest::encode(&Metadata::of(&config).unwrap(), &config, &machine(), |_| Ok(None)).unwrap();
    // 2,048 pages take 32 whole words and 1,792 take 28: the last words would name pages beyond the memory.
    parts.pages = pages;
    parts.state = state;
    refused(&parts.message(&files), &files, "lists of pages");
}

#[test]
fn forged_claims_of_a_handover_are_refused() {
    let (mut parts, files) = Parts::of(&snapshot());
    let about = String::from_utf8(parts.about.clone()).unwrap();
    parts.about = about.replace("layered", "whole").into_bytes();
    refused(&parts.message(&files), &files, "names layers that are not those of its disks");
    parts.about = about.replace(r#"["layered"]"#, "[]").into_bytes();
    refused(&parts.message(&files), &files, "names layers that are not");
    parts.about = b"{}".to_vec();
    refused(&parts.message(&files), &files, "cannot be decoded");
    parts.about = about.into_bytes();
    *parts.state.last_mut().unwrap() = b' ';
    refused(&parts.message(&files), &files, "damaged or cut off");
}

#[test]
fn another_program_at_the_other_end_is_noticed() {
    let error = received(|mut socket| socket.write_all(&[7; 4096]).unwrap_or(())).unwrap_err();
    assert!(error.to_string().contains("is not a message of this version of volt-vmm"), "{error}");
    let mut lying = wire::encode(&[&[1], &[], &[]], 0);
    lying[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    refused(&lying, &[], "a part has at most");
}
