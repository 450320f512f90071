//! Tests of disks of several parts under a driver, over real files.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use super::testing::*;
use super::*;
use crate::config::FileRef;
use crate::devices::virtio::testing::Part;

/// Lengths in sectors: shorter than a page, and longer than a cluster of a layer.
const SECTORS: [usize; 6] = [1, 8, 3, 200, 1, 129];

/// Files with their content in a row.
struct Files {
    dir: TestDir,
    paths: Vec<PathBuf>,
    content: Vec<u8>,
}

impl Files {
    fn new() -> Self {
        let (dir, mut paths, mut content) = (TestDir::new(), Vec::new(), Vec::new());
        for (number, sectors) in SECTORS.into_iter().enumerate() {
            let bytes = pattern(sectors * 512, number as u64 + 1);
            paths.push(dir.file(&format!("part{number}"), &bytes));
            content.extend(bytes);
        }
        Self { dir, paths, content }
    }

    fn disk(&self, engine: Engine) -> DiskConfig {
        DiskConfig { read_only: true, ..of_parts(engine, &self.paths) }
    }

    fn layered(&self, engine: Engine) -> DiskConfig {
        let layer = Some(self.dir.path("layer").as_path().into());
        DiskConfig { layer, ..of_parts(engine, &self.paths) }
    }

    /// Returns a random range: its first sector and its bytes.
    fn range(&self, random: &mut Random) -> (u64, std::ops::Range<usize>) {
        let sectors = self.content.len() as u64 / 512;
        let sector = random.below(sectors);
        let longest = if random.below(2) == 0 { 12 } else { 400 };
        let count = 1 + random.below((sectors - sector).min(longest));
        (sector, sector as usize * 512..(sector + count) as usize * 512)
    }
}

fn of_parts(engine: Engine, paths: &[PathBuf]) -> DiskConfig {
    let parts = paths.iter().map(FileRef::from).collect();
    DiskConfig { parts, ..disk_on(engine, FileRef::default()) }
}

#[test]
fn any_range_reads_as_the_parts_in_a_row() {
    on_both_engines(|engine| {
        let files = Files::new();
        let mut driver = start(&files.disk(engine));
        assert_eq!(config(&mut driver, 0), SECTORS.iter().sum::<usize>() as u32);
        let mut random = Random(7);
        for _ in 0..400 {
            let (sector, bytes) = files.range(&mut random);
            let found = read(&mut driver, sector, bytes.len()).unwrap();
            assert!(found == files.content[bytes.clone()], "{bytes:?}");
        }
        assert!(read(&mut driver, 0, files.content.len()).unwrap() == files.content);
        assert_eq!((flush(&mut driver), write(&mut driver, 0, &[0; 512])), (DONE, FAILED));
        assert_eq!(read(&mut driver, SECTORS.iter().sum::<usize>() as u64, 512), Err(FAILED));
    });
}

/// A request's pieces in guest memory end elsewhere than the parts do.
#[test]
fn pieces_of_a_request_are_split_at_the_border_of_parts() {
    on_both_engines(|engine| {
        let files = Files::new();
        let mut driver = start(&files.disk(engine));
        let parts = [Part::Out(&header(IN, 0)), Part::In(100), Part::In(800), Part::In(6268), Part::In(1)];
        let used = driver.ask(0, &parts);
        assert_eq!((status(&used), used.len), (DONE, 7169));
        assert!(used.written[..7168] == files.content[..7168]);
    });
}

#[test]
fn layer_over_parts_takes_the_writes() {
    on_both_engines(|engine| {
        let mut files = Files::new();
        let before = files.paths.iter().map(|path| fs::read(path).unwrap()).collect::<Vec<_>>();
        let mut driver = start(&files.layered(engine));
        let mut random = Random(9);
        for number in 0..200 {
            let (sector, bytes) = files.range(&mut random);
            if number % 8 == 0 {
                let data = pattern(bytes.len().min(2048), number + 100);
                assert_eq!(write(&mut driver, sector, &data), DONE);
                files.content[bytes.start..][..data.len()].copy_from_slice(&data);
            }
            let found = read(&mut driver, sector, bytes.len()).unwrap();
            assert!(found == files.content[bytes.clone()], "{bytes:?}");
        }
        assert_eq!(flush(&mut driver), DONE);
        drop(driver);
        let mut again = start(&files.layered(engine));
        assert!(read(&mut again, 0, files.content.len()).unwrap() == files.content);
        drop(again);
        assert!(files.paths.iter().zip(before).all(|(path, before)| fs::read(path).unwrap() == before));
        // The shortest part is not in a sample of the whole, but in the digest.
        files.dir.file("part4", &[1; 512]);
        let error = refusal(&files.layered(engine));
        assert!(error.contains("layer") && error.contains("and the 5 parts after it"), "{error}");
    });
}

#[test]
fn truncated_part_fails_the_reads_of_it_alone() {
    on_both_engines(|engine| {
        let files = Files::new();
        let mut driver = start(&files.disk(engine));
        File::options().write(true).open(&files.paths[3]).unwrap().set_len(50 * 512).unwrap();
        let first = SECTORS[..3].iter().sum::<usize>();
        assert_eq!(read(&mut driver, first as u64 + 40, 20 * 512), Err(FAILED));
        assert_eq!(read(&mut driver, first as u64 + 190, 20 * 512), Err(FAILED), "also over its border");
        let end = (first + 50) * 512;
        assert!(read(&mut driver, 0, end).unwrap() == files.content[..end]);
        let start = (first + 200) * 512;
        let found = read(&mut driver, (start / 512) as u64, files.content.len() - start);
        assert!(found.unwrap() == files.content[start..]);
    });
}

#[test]
fn unfit_part_is_refused_by_its_name() {
    let files = Files::new();
    for (bad, why) in [
        (files.dir.path("nothing"), "No such file"),
        (files.dir.file("empty", &[]), "0 bytes; a part has whole sectors of 512 bytes"),
        (files.dir.file("odd", &[0; 1000]), "1000 bytes; a part has whole sectors of 512 bytes"),
        ("/dev/null".into(), "neither a regular file nor a block device"),
        (files.dir.path(""), "neither a regular file nor a block device"),
    ] {
        let mut paths = files.paths.clone();
        paths.insert(2, bad.clone());
        let error = refusal(&DiskConfig { read_only: true, ..of_parts(Engine::Sync, &paths) });
        assert!(error.contains(why) && error.contains(bad.to_str().unwrap()), "{error}");
    }
}

#[test]
fn parts_longer_than_a_file_are_refused() {
    let memfd = rustix::fs::memfd_create("long", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memfd, 1 << 62).unwrap();
    let parts = vec![FileRef::Fd(memfd.as_raw_fd()); 2];
    let config = DiskConfig { read_only: true, parts, ..disk(FileRef::default()) };
    assert!(refusal(&config).contains("longer than a file can be"));
}

#[test]
fn part_has_any_number_of_readers_and_no_writer() {
    let files = Files::new();
    let config = files.disk(Engine::Sync);
    let twice = [&files.paths[1], &files.paths[1]].map(PathBuf::clone);
    let _readers = [
        Block::open(&config).unwrap(),
        Block::open(&config).unwrap(),
        Block::open(&DiskConfig { read_only: true, ..of_parts(Engine::Sync, &twice) }).unwrap(),
    ];
    assert!(refusal(&disk(&files.paths[1])).contains("is being used by another"));
    let writer = Block::open(&disk(files.dir.file("written", &[0; 512]))).unwrap();
    let with_written = [files.paths[0].clone(), files.dir.path("written")];
    let error = refusal(&DiskConfig { read_only: true, ..of_parts(Engine::Sync, &with_written) });
    assert!(error.contains("written is being written by another"), "{error}");
    drop(writer);
}

#[test]
fn content_of_parts_has_that_of_each() {
    let files = Files::new();
    let content = |paths: &[PathBuf]| {
        let config = DiskConfig { read_only: true, ..of_parts(Engine::Sync, paths) };
        Image::content_of_all(&Block::open(&config).unwrap().images().unwrap()).unwrap()
    };
    let all = content(&files.paths);
    assert_eq!((all.bytes, all.files().len()), (files.content.len() as u64, SECTORS.len()));
    let alone = content(&files.paths[1..2]);
    assert_eq!((&all.parts[1], alone.files()), (&alone, &[alone.clone()][..]));
    let swapped: Vec<_> = files.paths.iter().rev().cloned().collect();
    assert_ne!(content(&swapped).digest, all.digest);
}
