//! Writes a snapshot of a VM, which goes on meanwhile but for the instant that is captured.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::{MEMORY_FILE, STATE_FILE, layers, manifest};
use crate::capture::{Capture, Course, Target, capture};
use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::pages::PageSet;
use crate::memory::populated::data_ranges;
use crate::store::dir::NewDir;
use crate::vm::Vm;

/// Memory copied at once.
const STEP: u64 = 1 << 20;

/// Writes the state and memory of a VM into `dir`. The caller publishes it, and sees to it that nobody else captures the VM.
///
/// # Errors
/// The host refuses to tell a part of the state, or to take it (a full disk); the VM is as it was.
pub fn write(vm: &Vm, dir: &NewDir) -> Result<Course> {
    let memory = dir.create(MEMORY_FILE)?;
    let bytes = vm.config().memory_bytes();
    memory.set_len(bytes).map_err(|source| dir.failed_to_write(MEMORY_FILE, source))?;
    // Its configuration may change before and after the pause.
    let in_pause = |machine: &_| Ok((vm.config(), layers::save(machine, dir)?));
    let to = Target { file: memory, failed: &|source| dir.failed_to_write(MEMORY_FILE, source) };
    let (captured, (config, layers)) = capture(vm, "take a snapshot", to, in_pause)?;
    let Capture { base, pages, copy: memory, state, course } = captured;
    let metadata = manifest::Metadata::of(&config)?;
    let text = manifest::encode(&metadata, &config, &state)
        .map_err(|source| Error::State { part: "the machine".to_owned(), source })?;
    let file = dir.create(STATE_FILE)?;
    (&file)
        .write_all(&text)
        .and_then(|()| file.sync_all())
        .map_err(|source| dir.failed_to_write(STATE_FILE, source))?;
    for (name, layer) in layers {
        layer.sync_all().map_err(|source| dir.failed_to_write(&name, source))?;
    }
    for range in data_ranges(&base, bytes)? {
        fill_in(&memory, &base, range, &pages).map_err(|source| dir.failed_to_write(MEMORY_FILE, source))?;
    }
    memory.sync_all().map_err(|source| dir.failed_to_write(MEMORY_FILE, source))?;
    Ok(course)
}

/// Copies what lies in the base and is not among the pages that are there already. Pages of zeros stay holes.
fn fill_in(memory: &File, base: &File, range: Range<u64>, pages: &PageSet) -> io::Result<()> {
    let mut buffer = vec![0; (range.end - range.start).min(STEP) as usize];
    let mut start = range.start;
    while start < range.end {
        let step = &mut buffer[..(range.end - start).min(STEP) as usize];
        base.read_exact_at(step, start)?;
        write_nonzero(memory, start, step, pages)?;
        start += step.len() as u64;
    }
    Ok(())
}

/// Writes the runs of pages that are neither zero nor in `but`. `bytes` is a whole number of pages.
fn write_nonzero(file: &File, offset: u64, bytes: &[u8], but: &PageSet) -> io::Result<()> {
    static ZERO: [u8; PAGE as usize] = [0; PAGE as usize];
    let mut run = 0..0;
    for page in bytes.chunks(ZERO.len()) {
        let end = run.end + page.len();
        if but.has(offset + run.end as u64) || page == &ZERO[..page.len()] {
            write_run(file, offset, bytes, run)?;
            run = end..end;
        } else {
            run.end = end;
        }
    }
    write_run(file, offset, bytes, run)
}

fn write_run(file: &File, offset: u64, bytes: &[u8], run: Range<usize>) -> io::Result<()> {
    let start = offset + run.start as u64;
    if run.is_empty() { Ok(()) } else { file.write_all_at(&bytes[run], start) }
}
