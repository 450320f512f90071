//! Snapshots of all format versions, written by older builds (`tests/golden`), restore under this one.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;
use volt_tests::need::skip;
use volt_tests::{Boot, Outcome, Scratch, Snapshot, needs};
use volt_vmm::{RestoreOptions, Store};

const FORMAT_1: &[u8] = include_bytes!("../../golden/format-1.tar.zst");
const FORMAT_2: &[u8] = include_bytes!("../../golden/format-2.tar.zst");
const FORMAT_3: &[u8] = include_bytes!("../../golden/format-3.tar.zst");
const FORMAT_4: &[u8] = include_bytes!("../../golden/format-4.tar.zst");

/// Bytes of a header in an archive. Files are padded to a multiple of it.
const BLOCK: usize = 512;
/// An upper bound for the unpacked size of an archive.
const LARGEST: usize = 32 << 20;

/// Unpacks a ustar archive of plain files. Blocks of zeros become holes again.
fn unpack(archive: &[u8], into: &Path) {
    let mut bytes = Vec::with_capacity(LARGEST);
    zstd_safe::decompress(&mut bytes, archive).expect("decompress an archive");
    let mut rest = &bytes[..];
    while rest.first().is_some_and(|byte| *byte != 0) {
        let (header, after) = rest.split_at(BLOCK);
        let text = |range: std::ops::Range<usize>| {
            let field = &header[range];
            let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
            std::str::from_utf8(&field[..end]).expect("a header is text").trim().to_owned()
        };
        let len = usize::from_str_radix(&text(124..136), 8).expect("a length in octal");
        let path = into.join(text(0..100));
        match header[156] {
            b'5' => fs::create_dir_all(&path).expect("create a directory"),
            kind => {
                assert_eq!(kind, b'0', "{} is a plain file", path.display());
                write_sparse(&path, &after[..len]);
            }
        }
        rest = &after[len.next_multiple_of(BLOCK)..];
    }
}

fn write_sparse(path: &Path, content: &[u8]) {
    let file = fs::File::create(path).expect("create a file");
    file.set_len(content.len() as u64).expect("set a length");
    for (at, piece) in (0..).step_by(4096).zip(content.chunks(4096)) {
        if piece.iter().any(|byte| *byte != 0) {
            file.write_all_at(piece, at).expect("write a file");
        }
    }
}

/// The samples of a format version. Their TSC rate is set to that of this host.
struct Samples {
    scratch: Scratch,
    version: u32,
}

impl Samples {
    fn of(version: u32, archive: &[u8]) -> Self {
        let scratch = Scratch::new();
        unpack(archive, scratch.directory());
        fs::write(scratch.path("base.img"), vec![7; 64 << 10]).unwrap();
        let samples = Self { scratch, version };
        let rate = tsc_khz();
        for name in fs::read_dir(samples.scratch.path(&format!("v{version}"))).unwrap() {
            let name = name.unwrap().file_name().into_string().unwrap();
            let sample = samples.named(&name);
            assert_eq!(sample.state()["version"], version, "{name}");
            sample.edit(|state| state["machine"]["vcpus"][0]["tsc_khz"] = rate.clone());
        }
        samples
    }

    /// Skips this test if this host lacks something of the CPU that the samples were taken on.
    fn are_skipped(&self) -> bool {
        let store = Store::open(self.scratch.path(&format!("v{}", self.version)).to_str().unwrap()).unwrap();
        let options = RestoreOptions::default().paused();
        match volt_vmm::Snapshot::open(&store, "raw").and_then(|sample| sample.restore_with(options)) {
            Err(volt_vmm::Error::HostCpu { missing, .. }) => {
                skip(&format!("this host's CPU lacks {missing}"));
                true
            }
            _ => false,
        }
    }

    fn named(&self, name: &str) -> Snapshot {
        Snapshot::at(self.scratch.path(&format!("v{}/{name}", self.version)), &self.scratch)
    }

    /// Returns options that give the restored VM its disk: the base has moved, and the samples lack this
    /// user's mark.
    fn disk(&self) -> [String; 2] {
        ["--disk".to_owned(), format!("id=root,path={}", self.scratch.path("base.img").display())]
    }

    fn goes_on(&self, sample: &Snapshot, options: &[&str]) {
        let (disk, allowed) = (self.disk(), self.scratch.directory().to_str().unwrap().to_owned());
        let disk = disk.iter().map(String::as_str);
        let options: Vec<&str> =
            disk.chain(options.iter().copied()).chain(["--allow-path", allowed.as_str()]).collect();
        let mut guest = sample.restore_as(&options);
        let first = guest.next_number("sector");
        while guest.next_number("sector") < first + 130 {} // writes and reads each of 64 sectors twice
        assert!(first > 64 && !guest.output().contains("WRONG"), "{}", guest.output());
    }
}

/// Returns the rate of this host's TSC as a snapshot records it.
fn tsc_khz() -> Value {
    let mut guest = Boot::small("count mib=1").start();
    guest.wait_for("count");
    guest.snapshot().state()["machine"]["vcpus"][0]["tsc_khz"].clone()
}

fn restore_go_on_and_verify(samples: &Samples, names: &[&str]) {
    for name in names {
        let sample = samples.named(name);
        let grants = if *name == "diff" { "--allow-path" } else { "--disk id=root,path=PATH" };
        sample.try_restore().refused(&["state.json", "is not granted", grants]);
        // The base of a diff has moved.
        let allowed = samples.scratch.directory().to_str().unwrap();
        sample.verify_as(&["--allow-path", allowed]).succeeded();
        samples.goes_on(&sample, &[]);
    }
    samples.goes_on(&samples.named("packed"), &["--unpack"]);
    let converted = samples.named("packed").converted(&["--compress", "none"]);
    converted.verify().succeeded();
    samples.goes_on(&converted, &[]);
    let packed = samples.named("raw").converted(&["--compress", "lz4"]);
    packed.verify().succeeded();
    samples.goes_on(&packed, &[]);
}

#[test]
fn snapshots_of_format_1_restore() {
    needs!(kvm, page_faults);
    let samples = Samples::of(1, FORMAT_1);
    if samples.are_skipped() {
        return;
    }
    restore_go_on_and_verify(&samples, &["raw", "packed", "below", "diff"]);
    merge_and_go_on(&samples);
}

#[test]
fn snapshots_of_format_2_restore() {
    needs!(kvm, page_faults);
    let samples = Samples::of(2, FORMAT_2);
    if samples.are_skipped() {
        return;
    }
    restore_go_on_and_verify(&samples, &["raw", "packed", "diff"]);
    merge_and_go_on(&samples);
}

#[test]
fn snapshots_of_format_3_restore() {
    needs!(kvm, page_faults);
    let samples = Samples::of(3, FORMAT_3);
    if samples.are_skipped() {
        return;
    }
    restore_go_on_and_verify(&samples, &["raw", "packed", "diff"]);
    merge_and_go_on(&samples);
}

#[test]
fn snapshots_of_format_4_restore() {
    needs!(kvm, page_faults);
    let samples = Samples::of(4, FORMAT_4);
    if samples.are_skipped() {
        return;
    }
    restore_go_on_and_verify(&samples, &["raw", "packed", "diff"]);
    merge_and_go_on(&samples);
}

#[test]
fn only_guests_of_format_4_have_a_generation_id() {
    for (version, archive) in [(1, FORMAT_1), (2, FORMAT_2), (3, FORMAT_3), (4, FORMAT_4)] {
        let samples = Samples::of(version, archive);
        let converted = samples.named("raw").converted(&["--compress", "none"]).state();
        assert_eq!(
            (&converted["version"], &converted["config"]["vmgenid"]),
            (&4.into(), &(version == 4).into())
        );
        let has_state = converted["machine"]["devices"].get("generation").is_some();
        assert_eq!(has_state, version == 4, "version {version}");
    }
}

fn merge_and_go_on(samples: &Samples) {
    let merged = Snapshot::at(samples.scratch.path("merged"), &samples.scratch);
    let diff = samples.named("diff");
    let directories = [diff.directory(), merged.directory()].map(|path| path.to_str().unwrap());
    let allowed = ["--allow-path", samples.scratch.directory().to_str().unwrap()];
    Outcome::of(["snapshot", "merge"].into_iter().chain(directories).chain(allowed)).succeeded();
    merged.verify().succeeded();
    samples.goes_on(&merged, &[]);
}
