//! Files with known bytes, in a file system or as a raw disk.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;

use crate::console;
use crate::outcome::Outcome;
use crate::sleepers::in_background;
use crate::system;

const STEP: usize = 1 << 16;
/// Alignment for O_DIRECT that suits every disk.
const DIRECT: usize = 4096;

/// `put PATH KIB SEED`: writes the seed's bytes and syncs them to the disk.
pub(crate) fn put(path: &str, kib: u64, seed: u64) -> Outcome {
    let named = |error: std::io::Error| format!("{path}: {error}");
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(named)?;
    for step in steps(kib, seed) {
        file.write_all(&step).map_err(named)?;
    }
    file.sync_all().map_err(named)
}

/// `verify PATH KIB SEED`: reads the bytes of `put` from the disk and compares them.
pub(crate) fn verify(path: &str, kib: u64, seed: u64) -> Outcome {
    let named = |error: std::io::Error| format!("{path}: {error}");
    // `put` synced the bytes to the disk; dropping the page cache makes the reads go there.
    std::fs::write("/proc/sys/vm/drop_caches", "3").map_err(|error| format!("drop_caches: {error}"))?;
    let mut file = File::open(path).map_err(named)?;
    let mut found = Vec::new();
    for (number, step) in steps(kib, seed).enumerate() {
        found.resize(step.len(), 0);
        file.read_exact(&mut found).map_err(named)?;
        if found != step {
            let at = found.iter().zip(&step).position(|(found, wanted)| found != wanted).unwrap_or(0);
            return Err(format!("corrupt at byte {}", number * STEP + at));
        }
    }
    Ok(())
}

/// `read-direct PATH STEP FIRST MORE`: reads past the page cache in sequential requests of STEP KiB: FIRST
/// KiB, then, after a line on the console, MORE KiB.
pub(crate) fn read_direct(path: &str, [step, first, more]: [u64; 3]) -> Outcome {
    let named = |error: std::io::Error| format!("{path}: {error}");
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).map_err(named)?;
    let len = (step as usize) << 10;
    // O_DIRECT needs an aligned buffer.
    let mut bytes = vec![0; len + DIRECT];
    let begin = bytes.as_ptr().align_offset(DIRECT);
    let mut read = |kib: u64| -> Outcome {
        (0..kib / step.max(1))
            .try_for_each(|_| file.read_exact(&mut bytes[begin..begin + len]))
            .map_err(named)
    };
    read(first)?;
    console::line("now the others");
    read(more)
}

/// `churn PATH KIB`: writes and verifies a file without end, in the background, and prints `churn N` each
/// round.
pub(crate) fn churn(path: &str, kib: u64) -> Outcome {
    let path = path.to_owned();
    in_background(move || {
        for round in 1.. {
            let done = put(&path, kib, round).and_then(|()| verify(&path, kib, round));
            match done {
                Ok(()) => console::line(&format!("churn {round}")),
                Err(why) => return console::line(&format!("corrupt churn {round}: {why}")),
            }
        }
    })
}

/// `size PATH`: prints the length of a file or disk in bytes.
pub(crate) fn size(path: &str) -> Outcome {
    let len = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
    console::line(&format!("size {}", len.map_err(|error| format!("{path}: {error}"))?));
    Ok(())
}

/// `discard PATH`: discards all blocks of a disk (BLKDISCARD).
pub(crate) fn discard(path: &str) -> Outcome {
    let named = |error: std::io::Error| format!("{path}: {error}");
    let mut disk = OpenOptions::new().read(true).write(true).open(path).map_err(named)?;
    let len = disk.seek(SeekFrom::End(0)).map_err(named)?;
    system::discard(&disk, len).map_err(named)
}

/// `mount SOURCE DIRECTORY TYPE`.
pub(crate) fn mount(source: &str, directory: &str, kind: &str) -> Outcome {
    std::fs::create_dir_all(directory)
        .and_then(|()| system::mount(source, directory, kind, ""))
        .map_err(|error| format!("{source} on {directory}: {error}"))
}

/// `umount DIRECTORY`.
pub(crate) fn unmount(directory: &str) -> Outcome {
    system::unmount(directory).map_err(|error| format!("{directory}: {error}"))
}

/// Generates a seed's bytes, in steps.
fn steps(kib: u64, seed: u64) -> impl Iterator<Item = Vec<u8>> {
    let len = (kib as usize) << 10;
    (0..len.div_ceil(STEP)).map(move |number| {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (number as u64) << 20 | 1;
        let words = (0..STEP / 8).flat_map(|_| {
            // xorshift64 (Marsaglia)
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        words.take(len - number * STEP).collect()
    })
}
