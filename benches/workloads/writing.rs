//! Workloads that write.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use volt_benches::{OrSay, Result};

use crate::files::{Found, content, read, walk};
use crate::tasks::Timing;

/// Files of the workloads that make files.
const FILES: u64 = 1000;
/// Bytes of each.
const CONTENT: [u8; 100] = [b'v'; 100];
/// Writes with fsync, and bytes of each.
const SMALL: u64 = 100;
const BLOCK: usize = 4 << 10;
/// Bytes of the large file, and of each write.
const LARGE: u64 = 64 << 20;
const PART: usize = 1 << 20;

/// Makes, looks at, renames and removes files of a directory.
///
/// # Errors
/// One fails, or does not what it should.
pub fn files(directory: &Path, timing: &mut Timing) -> Result<()> {
    let path = |prefix: &str, number: u64| directory.join(format!("{prefix}-{number:04}"));
    let all = |prefix: &str| (0..FILES).map(|number| path(prefix, number)).collect::<Vec<PathBuf>>();
    let (old, new) = (all("file"), all("renamed"));
    timing.time("create of 1,000 files", || {
        let mut found = Found::default();
        for path in &old {
            let mut file = File::create_new(path).or_say("create a file")?;
            file.write_all(&CONTENT).or_say("write a file")?;
            found.add(CONTENT.len() as u64);
        }
        Ok(found)
    })?;
    check(directory, FILES, FILES * CONTENT.len() as u64)?;
    sync(directory)?;
    timing.time("stat of 1,000 files", || {
        let mut found = Found::default();
        for path in &old {
            found.add(fs::symlink_metadata(path).or_say("look at a file")?.len());
        }
        Ok(found)
    })?;
    timing.time("rename of 1,000 files", || {
        let mut found = Found::default();
        for (old, new) in old.iter().zip(&new) {
            fs::rename(old, new).or_say("rename a file")?;
            found.add(1);
        }
        Ok(found)
    })?;
    check(directory, FILES, FILES * CONTENT.len() as u64)?;
    if !new.iter().all(|path| path.exists()) {
        return Err("a file was not renamed".to_owned());
    }
    sync(directory)?;
    timing.time("delete of 1,000 files", || {
        let mut found = Found::default();
        for path in &new {
            fs::remove_file(path).or_say("remove a file")?;
            found.add(1);
        }
        Ok(found)
    })?;
    check(directory, 0, 0)
}

/// Writes blocks to a file, each with fsync.
///
/// # Errors
/// As [`files`].
pub fn small(directory: &Path, timing: &mut Timing) -> Result<()> {
    let mut file = File::create_new(directory.join("log")).or_say("create a file")?;
    timing.time("100 small writes with fsync", || {
        let mut found = Found::default();
        for number in 0..SMALL {
            file.write_all(&[number as u8; BLOCK]).or_say("write a block")?;
            file.sync_all().or_say("sync a file")?;
            found.add(number);
        }
        Ok(found)
    })?;
    check(directory, 1, SMALL * BLOCK as u64)
}

/// Writes a large file, with fsync at its end.
///
/// # Errors
/// As [`files`].
pub fn large(directory: &Path, timing: &mut Timing) -> Result<()> {
    let path = directory.join("large");
    let mut part = vec![0; PART];
    timing.time("write of 64 MiB", || {
        let mut file = File::create_new(&path).or_say("create a file")?;
        let mut found = Found::default();
        for number in 0..LARGE / PART as u64 {
            part.fill(number as u8 + 1);
            file.write_all(&part).or_say("write a part")?;
            found.add(number);
        }
        file.sync_all().or_say("sync a file")?;
        Ok(found)
    })?;
    check(directory, 1, LARGE)?;
    let mut buffer = vec![0; PART];
    let expected = (1..=LARGE >> 20).map(|number| PART as u64 + (number << 32)).sum::<u64>();
    if read(&path, &mut buffer)? == expected { Ok(()) } else { Err("the large file differs".to_owned()) }
}

/// Unpacks an archive.
///
/// # Errors
/// As [`files`].
pub fn untar(directory: &Path, archive: File, timing: &mut Timing) -> Result<()> {
    let mut tar = Command::new("/bin/tar");
    tar.args(["-xf", "-", "-C"]).arg(directory).stdin(Stdio::from(archive)).env_clear();
    timing.time_checked(
        "untar",
        || match tar.status().or_say("run tar")?.success() {
            true => Ok(()),
            false => Err("tar failed".to_owned()),
        },
        || content(directory),
    )
}

/// Writes out all that the file system holds back.
///
/// # Errors
/// It fails.
pub fn sync(directory: &Path) -> Result<()> {
    let directory = File::open(directory).or_say("open a directory")?;
    rustix::fs::syncfs(directory).or_say("sync a file system")
}

/// Checks the number of files in a directory, and their bytes.
fn check(directory: &Path, count: u64, bytes: u64) -> Result<()> {
    let mut found = Found::default();
    walk(directory, &mut |_, metadata| {
        found.add(metadata.len());
        Ok(())
    })?;
    match (found.count, found.sum) == (count, bytes) {
        true => Ok(()),
        false => Err(format!("the directory has {found:?}, and should have {count} files of {bytes} bytes")),
    }
}
