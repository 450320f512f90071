//! Workloads that read the files of the image.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat};
use volt_benches::{OrSay, Result};
use xxhash_rust::xxh3::xxh3_64;

use crate::files::{Found, entries, read};
use crate::plan::{Plan, execute};

/// Threads of concurrent reads.
const THREADS: usize = 4;
/// Requests of random reads, and bytes of each.
const RANDOM: u64 = 1000;
const BLOCK: usize = 4 << 10;
/// Bytes of each part of a file that is read whole.
const PART: usize = 64 << 10;

/// Looks at each entry of the tree.
pub fn scan(plan: &Plan) -> Result<Found> {
    entries(Path::new("/"), &plan.tops)
}

/// Reads all Python sources.
pub fn python(plan: &Plan) -> Result<Found> {
    let (mut found, mut buffer) = (Found::default(), vec![0; PART]);
    for path in &plan.python {
        found.add(read(path, &mut buffer)?);
    }
    Ok(found)
}

/// Opens all directories on the way from the root to the deepest files.
pub fn deep(plan: &Plan) -> Result<Found> {
    let mut found = Found::default();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    for path in &plan.deepest {
        let mut directory = openat(CWD, "/", flags, Mode::empty()).or_say("open the root")?;
        let parent = path.parent().unwrap_or(Path::new("/"));
        for name in parent.components().skip(1) {
            directory =
                openat(&directory, name.as_os_str(), flags, Mode::empty()).or_say("open a directory")?;
            found.count += 1;
        }
        let name = path.file_name().ok_or("a file without a name")?;
        let metadata = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).or_say("look at a file")?;
        found.add(metadata.st_size.cast_unsigned());
    }
    Ok(found)
}

/// Reads all files in several threads.
pub fn concurrent(plan: &Plan) -> Result<Found> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                scope.spawn(move || {
                    let (mut found, mut buffer) = (Found::default(), vec![0; PART]);
                    for path in plan.files.iter().skip(number).step_by(THREADS) {
                        found.add(read(path, &mut buffer)?);
                    }
                    Ok::<_, String>(found)
                })
            })
            .collect();
        let mut all = Found::default();
        for thread in threads {
            all += thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok(all)
    })
}

/// Reads blocks at random places of the largest files.
pub fn random(plan: &Plan) -> Result<Found> {
    let open = |(path, size): &_| Ok((File::open::<&std::path::PathBuf>(path).or_say("open a file")?, *size));
    let files = plan.largest.iter().map(open).collect::<Result<Vec<(File, u64)>>>()?;
    let (mut found, mut buffer, mut state) = (Found::default(), [0; BLOCK], 0x9e37_79b9_7f4a_7c15u64);
    for number in 0..RANDOM {
        // Xorshift, so that all file systems get the same places.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let (file, size) = &files[number as usize % files.len()];
        let block = state % (size / BLOCK as u64);
        file.read_exact_at(&mut buffer, block * BLOCK as u64).or_say("read a block")?;
        found.add(xxh3_64(&buffer[..8]));
    }
    Ok(found)
}

/// Reads the largest files from their beginning to their end.
pub fn sequential(plan: &Plan) -> Result<Found> {
    let (mut found, mut buffer) = (Found::default(), vec![0; PART]);
    for (path, _) in &plan.largest {
        found.add(read(path, &mut buffer)?);
    }
    Ok(found)
}

/// Executes programs.
pub fn programs(plan: &Plan, null: &File) -> Result<Found> {
    let mut found = Found::default();
    for program in &plan.programs {
        if !execute(program, null)? {
            return Err(format!("{} failed", program.display()));
        }
        found.add(1);
    }
    Ok(found)
}
