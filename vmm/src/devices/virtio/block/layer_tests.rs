//! Tests of layers over bases.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::super::Block;
use super::super::copy::LayerCopy;
use super::super::digest;
use super::super::testing::{
    DONE, FAILED, IN, OUT, Random, TestDir, discard, disk, disk_on, flush, header, on_both_engines, pattern,
    read, refusal, start, status, write, write_zeroes,
};
use super::*;
use crate::config::devices::{DiskConfig, Engine};
use crate::devices::virtio::feature;
use crate::devices::virtio::rng::Rng;
use crate::devices::virtio::testing::{Driver, MEMORY, Part, WRITE};
use crate::devices::virtio::transport::Transport;
use crate::persist::PersistBlob;

#[path = "layer_copy_tests.rs"]
mod copied;
#[path = "layer_crash_tests.rs"]
mod crash;
#[path = "layer_quota_tests.rs"]
mod quota;
#[path = "layer_sync_tests.rs"]
mod synced;

/// Five clusters, a part of one, and half a sector that guests do not see.
const LEN: usize = 5 * CLUSTER as usize + 9 * 512;
const FILE_LEN: usize = LEN + 256;

struct LayerFixture {
    dir: TestDir,
    base: PathBuf,
    content: Vec<u8>,
    engine: Engine,
}

impl LayerFixture {
    fn new() -> Self {
        let dir = TestDir::new();
        let content = pattern(FILE_LEN, 11);
        Self { base: dir.file("base", &content), content, dir, engine: Engine::Sync }
    }

    fn layer(&self, name: &str) -> DiskConfig {
        DiskConfig { layer: Some(self.dir.path(name).as_path().into()), ..disk_on(self.engine, &self.base) }
    }

    /// A disk with the layer `name` over the layer `beneath`.
    fn over(&self, beneath: &str, name: &str) -> DiskConfig {
        DiskConfig { beneath: Some(self.dir.path(beneath).as_path().into()), ..self.layer(name) }
    }

    fn assert_untouched(&self) {
        assert!(fs::read(&self.base).unwrap() == self.content, "the base has changed");
    }
}

/// Halts the device, drops it, opens another one and resumes the driver on that.
fn reopen(driver: &mut Driver, open: impl FnOnce() -> Block) {
    reopen_shared(driver, || Arc::new(Mutex::new(open())));
}

fn reopen_shared(driver: &mut Driver, open: impl FnOnce() -> Arc<Mutex<Block>>) {
    driver.transport.halt();
    let state = driver.transport.save_blob("test").unwrap();
    driver.transport =
        Transport::new("none", Arc::new(Mutex::new(Rng::default())), driver.ram.clone()).unwrap();
    let mut transport = Transport::new("test", open(), driver.ram.clone()).unwrap();
    transport.restore_blob("test", &state).unwrap();
    driver.transport = transport;
    driver.transport.resume().unwrap();
}

#[test]
fn clones_of_a_base_do_not_see_each_others_writes() {
    let based = LayerFixture::new();
    let (mut one, mut other) = (start(&based.layer("one")), start(&based.layer("other")));
    assert_eq!(write(&mut one, 3, &[1; 512]), DONE);
    assert_eq!(write(&mut other, 3, &[2; 1024]), DONE);
    assert_eq!((flush(&mut one), flush(&mut other)), (DONE, DONE));
    let mut expected = based.content[..LEN].to_vec();
    expected[3 * 512..4 * 512].fill(1);
    assert!(read(&mut one, 0, LEN).unwrap() == expected);
    expected[3 * 512..5 * 512].fill(2);
    assert!(read(&mut other, 0, LEN).unwrap() == expected);
    based.assert_untouched();
}

#[test]
fn layer_takes_the_space_of_its_written_clusters() {
    let based = LayerFixture::new();
    let big = based.dir.path("big");
    fs::File::create(&big).unwrap().set_len(1 << 30).unwrap();
    let config = DiskConfig { path: big.as_path().into(), ..based.layer("layer") };
    let mut driver = start(&config);
    assert_eq!(write(&mut driver, 1 << 20, &[1; 512]), DONE);
    assert_eq!(write_zeroes(&mut driver, 0, 1 << 15, false), DONE);
    assert_eq!(flush(&mut driver), DONE);
    let taken = fs::metadata(based.dir.path("layer")).unwrap().blocks() * 512;
    assert!(taken <= 4 * CLUSTER, "{taken} bytes for one cluster, a map and a header");
}

#[test]
fn rest_of_a_written_cluster_comes_from_the_base() {
    let based = LayerFixture::new();
    for (number, (at, len)) in [
        (0, 512),                     // the start of a cluster
        (CLUSTER - 512, 512),         // its end
        (CLUSTER - 512, 1024),        // two of them
        (512, 3 * CLUSTER),           // parts on both sides of whole ones
        (CLUSTER, 2 * CLUSTER),       // whole ones
        (LEN as u64 - 512, 512),      // the base's end
        (LEN as u64 - 2048, 512),     // before it
        (CLUSTER * 4 + 512, CLUSTER), // into the last
    ]
    .into_iter()
    .enumerate()
    {
        for zeros in [false, true] {
            let mut driver = start(&based.layer(&format!("{number}-{zeros}")));
            let data = if zeros { vec![0; len as usize] } else { pattern(len as usize, 12) };
            let done = match zeros {
                true => write_zeroes(&mut driver, at / 512, (len / 512) as u32, false),
                false => write(&mut driver, at / 512, &data),
            };
            assert_eq!(done, DONE);
            let mut expected = based.content[..LEN].to_vec();
            expected[at as usize..][..data.len()].copy_from_slice(&data);
            assert!(read(&mut driver, 0, LEN).unwrap() == expected, "{at} {len} {zeros}");
        }
    }
    based.assert_untouched();
}

#[test]
fn disk_with_a_layer_reads_as_one_disk() {
    on_both_engines(one_disk);
}

fn one_disk(engine: Engine) {
    let based = LayerFixture { engine, ..LayerFixture::new() };
    let mut driver = start(&based.layer("layer"));
    let mut model = based.content[..LEN].to_vec();
    let mut random = Random(13);
    let sectors = (LEN / 512) as u64;
    for turn in 0..600 {
        let at = random.below(sectors);
        let longest = if random.below(2) == 0 { 8 } else { 300 };
        let count = 1 + random.below(longest.min(sectors - at));
        let (from, len) = (at as usize * 512, count as usize * 512);
        match random.below(9) {
            0..=2 => {
                let data = pattern(len, turn + 100);
                assert_eq!(write(&mut driver, at, &data), DONE);
                model[from..from + len].copy_from_slice(&data);
            }
            3 => {
                assert_eq!(write_zeroes(&mut driver, at, count as u32, turn % 2 == 0), DONE);
                model[from..from + len].fill(0);
            }
            4 => {
                assert_eq!(discard(&mut driver, at, count as u32), DONE);
                // A part of a cluster that the layer does not have may keep its bytes.
                let left = read(&mut driver, at, len).unwrap();
                let zeros_or_kept = |(new, old): (&[u8], &[u8])| new == [0; 512] || new == old;
                assert!(left.chunks(512).zip(model[from..].chunks(512)).all(zeros_or_kept), "turn {turn}");
                model[from..from + len].copy_from_slice(&left);
            }
            5..=7 => {
                let read = read(&mut driver, at, len).unwrap();
                assert!(read == model[from..from + len], "turn {turn}: {at} {count}");
            }
            _ if random.below(3) > 0 => assert_eq!(flush(&mut driver), DONE),
            // The clusters fill up soon, so a fresh start tests more than further turns.
            _ if random.below(3) == 0 => {
                drop(driver);
                fs::remove_file(based.dir.path("layer")).unwrap();
                driver = start(&based.layer("layer"));
                model.copy_from_slice(&based.content[..LEN]);
            }
            _ => reopen(&mut driver, || Block::open(&based.layer("layer")).unwrap()),
        }
    }
    assert!(read(&mut driver, 0, LEN).unwrap() == model);
    based.assert_untouched();
}

/// Writes data and zeros at random, to the driver and to `model`.
fn scribble(driver: &mut Driver, model: &mut [u8], random: &mut Random, turns: u64) {
    let sectors = (LEN / 512) as u64;
    for turn in 0..turns {
        let at = random.below(sectors);
        let count = 1 + random.below(180.min(sectors - at));
        let (from, len) = (at as usize * 512, count as usize * 512);
        let data = pattern(len, turn + random.below(1000));
        match random.below(3) {
            0 => {
                assert_eq!(write_zeroes(driver, at, count as u32, true), DONE);
                model[from..from + len].fill(0);
            }
            _ => {
                assert_eq!(write(driver, at, &data), DONE);
                model[from..from + len].copy_from_slice(&data);
            }
        }
        let at = random.below(sectors);
        let len = (1 + random.below(sectors - at)) as usize * 512;
        assert!(read(driver, at, len).unwrap() == model[at as usize * 512..][..len], "turn {turn}");
    }
}

#[test]
fn layer_over_a_layer_reads_and_is_copied_as_one_disk() {
    on_both_engines(one_disk_of_two_layers);
}

fn one_disk_of_two_layers(engine: Engine) {
    for seed in 20..26 {
        let based = LayerFixture { engine, ..LayerFixture::new() };
        let mut random = Random(seed);
        let mut model = based.content[..LEN].to_vec();
        let mut driver = start(&based.layer("first"));
        scribble(&mut driver, &mut model, &mut random, 3);
        driver.transport.halt();
        drop(driver);
        // A layer of a killed process is completed before another layer lies over it.
        Block::open(&based.layer("first")).unwrap().settle().unwrap();
        let frozen = fs::read(based.dir.path("first")).unwrap();
        let mut capture = "first".to_owned();
        for generation in 0..3 {
            let mine = format!("mine-{generation}");
            let mut driver = start(&based.over(&capture, &mine));
            assert!(read(&mut driver, 0, LEN).unwrap() == model, "generation {generation}");
            scribble(&mut driver, &mut model, &mut random, 2);
            reopen(&mut driver, || {
                let mut disk = Block::open(&based.over(&capture, &mine)).unwrap();
                let next = based.dir.file(&format!("capture-{generation}"), b"");
                let file = fs::File::options().read(true).write(true).open(&next).unwrap();
                let mut copy = LayerCopy::begin(disk.begin_copy().unwrap().unwrap(), file).unwrap();
                copy.copy_bulk(&|_| true).unwrap();
                disk.end_copy();
                copy.finish(&|_| ()).unwrap();
                disk
            });
            // The copy has not changed the disk.
            assert!(read(&mut driver, 0, LEN).unwrap() == model, "generation {generation}");
            capture = format!("capture-{generation}");
        }
        assert!(read(&mut start(&based.layer(&capture)), 0, LEN).unwrap() == model, "seed {seed}");
        assert!(fs::read(based.dir.path("first")).unwrap() == frozen, "the lower layer has changed");
        based.assert_untouched();
    }
}

/// The map has exactly as many bits as this base has clusters.
#[test]
fn empty_request_at_the_end_of_the_disk_succeeds() {
    on_both_engines(|engine| {
        let based = LayerFixture { engine, ..LayerFixture::new() };
        let big = based.dir.path("big");
        fs::File::create(&big).unwrap().set_len(2 << 30).unwrap();
        let mut driver = start(&DiskConfig { path: big.as_path().into(), ..based.layer("layer") });
        let end = (2 << 30) / 512;
        for kind in [IN, OUT] {
            let used = driver.ask(0, &[Part::Out(&header(kind, end)), Part::In(1)]);
            assert_eq!(status(&used), DONE);
        }
        assert_eq!(write(&mut driver, end - 1, &[1; 512]), DONE);
        assert_eq!(read(&mut driver, end - 1, 512).unwrap(), [1; 512]);
    });
}

#[test]
fn layer_over_another_lower_layer_is_refused() {
    let based = LayerFixture::new();
    for (name, byte) in [("one", 1), ("other", 2)] {
        let mut driver = start(&based.layer(name));
        assert_eq!(write(&mut driver, 5, &[byte; 512]), DONE);
        driver.transport.halt();
    }
    drop(start(&based.over("one", "mine")));
    Block::open(&based.over("one", "mine")).unwrap();
    for config in [based.over("other", "mine"), based.layer("mine"), based.over("mine", "new")] {
        let error = refusal(&config);
        assert!(error.contains("another base") && error.contains("mine"), "{error}");
    }
    let error = refusal(&based.over("missing", "new"));
    assert!(error.contains("missing"), "{error}");
    assert!(!based.dir.path("new").exists(), "the refused disk made a layer");
}

#[test]
fn disk_resumes_on_a_copy_of_its_layer() {
    let based = LayerFixture::new();
    let mut driver = start(&based.layer("layer"));
    assert_eq!(write(&mut driver, 100, &[1; 512]), DONE);
    reopen(&mut driver, || {
        fs::copy(based.dir.path("layer"), based.dir.path("copy")).unwrap();
        Block::open(&based.layer("copy")).unwrap()
    });
    assert_eq!(read(&mut driver, 100, 512).unwrap(), [1; 512]);
    assert_eq!(write(&mut driver, 100, &[2; 512]), DONE);
    let mut first = start(&based.layer("layer"));
    assert_eq!(read(&mut first, 100, 512).unwrap(), [1; 512]);
}

#[test]
fn invalid_chain_loses_no_write() {
    let based = LayerFixture::new();
    let mut driver = start(&based.layer("layer"));
    assert_eq!(write(&mut driver, 7, &[7; 512]), DONE);
    driver.describe(0, 63, (MEMORY, 1), WRITE, 0);
    driver.offer(0, 63);
    driver.wait_broken();
    reopen(&mut driver, || Block::open(&based.layer("layer")).unwrap());
    driver.set_up(!feature::EVENT_IDX);
    assert_eq!(read(&mut driver, 7, 512).unwrap(), [7; 512]);
}

#[test]
fn layer_of_another_base_is_refused() {
    let based = LayerFixture::new();
    let config = based.layer("layer");
    drop(start(&config));
    Block::open(&config).unwrap();
    let mut changed = based.content.clone();
    changed[FILE_LEN - 1] ^= 1;
    for (name, content) in [("other", &changed[..]), ("longer", &[&based.content[..], &[0; 512]].concat())] {
        let other = based.dir.file(name, content);
        let error = refusal(&DiskConfig { path: other.as_path().into(), ..config.clone() });
        let names = [other.to_str().unwrap(), based.dir.path("layer").to_str().unwrap()].map(str::to_owned);
        assert!(names.iter().all(|name| error.contains(name)) && error.contains("another base"), "{error}");
    }
    let copy = based.dir.file("copy", &based.content);
    Block::open(&DiskConfig { path: copy.as_path().into(), ..config }).unwrap();
}

#[test]
fn file_that_is_not_a_layer_is_refused() {
    let based = LayerFixture::new();
    drop(start(&based.layer("layer")));
    let whole = fs::read(based.dir.path("layer")).unwrap();
    let changed = |at: usize| {
        let mut changed = whole.clone();
        changed[at] ^= 0x40;
        changed
    };
    for (content, why) in [
        (vec![1; 100], "not a layer"),
        (vec![0; 8192], "not a layer"),
        (changed(8), "version"),
        (changed(20), "damaged header"),
        (changed(33), "damaged header"),
        (changed(41), "damaged header"),
        (whole[..whole.len() - crash::LIVE_LEN - 1].to_vec(), "cut off after"),
    ] {
        let path = based.dir.file("bad", &content);
        let error = refusal(&based.layer("bad"));
        assert!(error.contains(why) && error.contains(path.to_str().unwrap()), "{error}");
        assert_eq!(fs::read(path).unwrap(), content, "it may be someone's");
    }
    let error = refusal(&DiskConfig { read_only: true, ..based.layer("missing") });
    assert!(error.contains("missing"), "{error}");
}

#[test]
fn layer_in_use_refuses_writers() {
    let based = LayerFixture::new();
    let _running = start(&based.layer("layer"));
    let error = refusal(&based.layer("layer"));
    assert!(error.contains("is being used by another") && error.contains("layer"), "{error}");
    assert!(refusal(&disk(&based.base)).contains("is being used by another"));
    Block::open(&DiskConfig { read_only: true, ..disk(&based.base) }).unwrap();
}

/// A device looks at its files' lengths from time to time, not before each write.
fn shorten(path: &Path, len: u64) {
    fs::File::options().write(true).open(path).unwrap().set_len(len).unwrap();
    std::thread::sleep(super::super::serve::TURN);
}

#[test]
fn files_that_shrank_give_errors_and_never_zeros() {
    let based = LayerFixture::new();
    let mut driver = start(&based.layer("layer"));
    assert_eq!(write(&mut driver, 0, &[1; 512]), DONE);
    shorten(&based.base, CLUSTER);
    assert_eq!(read(&mut driver, 200, 512).unwrap_err(), FAILED);
    assert_eq!(write(&mut driver, 200, &[2; 512]), FAILED, "the rest of the cluster is lost");
    assert_eq!(read(&mut driver, 0, 512).unwrap(), [1; 512]);
    shorten(&based.dir.path("layer"), CLUSTER);
    assert_eq!(read(&mut driver, 0, 512).unwrap_err(), FAILED);
    assert_eq!(write(&mut driver, 0, &[1; 512]), FAILED);
    assert_eq!(fs::metadata(based.dir.path("layer")).unwrap().len(), CLUSTER);
}

#[test]
fn read_only_layer_keeps_its_content() {
    let based = LayerFixture::new();
    let mut driver = start(&based.layer("layer"));
    assert_eq!(write(&mut driver, 0, &[1; 512]), DONE);
    drop(driver);
    let config = DiskConfig { read_only: true, ..based.layer("layer") };
    let mut readers = [start(&config), start(&config)];
    for driver in &mut readers {
        assert_eq!(read(driver, 0, 512).unwrap(), [1; 512]);
        assert_eq!(write(driver, 0, &[2; 512]), FAILED);
    }
}

#[test]
fn digests_tell_bases_apart() {
    let dir = TestDir::new();
    let digest = |content: &[u8]| {
        let file = fs::File::open(dir.file("base", content)).unwrap();
        digest::of_base(&file, content.len() as u64).unwrap()
    };
    let long = pattern(1 << 20, 14);
    let mut end = long.clone();
    *end.last_mut().unwrap() ^= 1;
    let mut start = long.clone();
    start[0] ^= 1;
    let digests = [digest(&long), digest(&end), digest(&start), digest(&long[..4096]), digest(&[0; 512])];
    for (at, one) in digests.iter().enumerate() {
        assert!(!digests[..at].contains(one), "{digests:x?}");
    }
    assert_eq!(digest(&long), digests[0]);
    // Every byte of a short base counts.
    let mut short = long[..4096 + 16 * 512 - 100].to_vec();
    let before = digest(&short);
    for at in [4095, 4096, 9_999, 4096 + 15 * 512, 4096 + 16 * 512 - 101] {
        short[at] ^= 1;
        assert_ne!(digest(&short), before, "{at}");
        short[at] ^= 1;
    }
    // In a long base the first, the last and the sampled bytes count.
    let before = digest(&long);
    for at in [1024, 4096, (1 << 20) - 512, (1 << 20) - 1] {
        let mut changed = long.clone();
        changed[at] ^= 1;
        assert_ne!(digest(&changed), before, "{at}");
    }
}
