//! Writes a snapshot of a parked machine.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::pack::{Packing, pack};
use super::ram_source::RamSource;
use super::{MEMORY_FILE, PACK_FILE, STATE_FILE, layers, manifest};
use crate::config::VmConfig;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::memory::PAGE;
use crate::memory::populated::populated_ranges;
use crate::memory::ram::Region;
use crate::persist::Persist;
use crate::store::dir::NewDir;

/// Memory copied at once.
const STEP: usize = 1 << 20;

/// How a snapshot is to be taken.
#[derive(Clone, Debug, Default)]
pub struct SnapshotOptions {
    /// How guest memory is packed into `memory.pack`; unless given it goes into `memory.snap` as it is.
    pub packing: Option<Packing>,
}

impl SnapshotOptions {
    /// Checks them, before anything is done, for a guest with this much memory.
    ///
    /// # Errors
    /// [`Error::Config`] names what makes no sense.
    pub fn validate(&self, memory_bytes: u64) -> Result<()> {
        self.packing.map_or(Ok(()), |packing| packing.validate(memory_bytes).map(drop))
    }
}

/// Writes the state and memory of a machine made from `config` into `dir`. The caller publishes it. The vCPUs must be parked.
///
/// # Errors
/// The host refuses to tell a part of the state, or to take it (a full disk); the machine is as it was.
pub fn write(machine: &Machine, config: &VmConfig, dir: &NewDir, options: &SnapshotOptions) -> Result<()> {
    let state = machine.save()?;
    let metadata = manifest::Metadata::of(config)?;
    let text = manifest::encode(&metadata, config, &state)
        .map_err(|source| Error::State { part: "the machine".to_owned(), source })?;
    let file = dir.create(STATE_FILE)?;
    let failed = |source| Error::file("write", dir.place().join(STATE_FILE).display(), source);
    (&file).write_all(&text).and_then(|()| file.sync_all()).map_err(failed)?;
    layers::save(machine, dir)?;
    match &options.packing {
        None => write_memory(machine, &dir.create(MEMORY_FILE)?, &dir.place().join(MEMORY_FILE)),
        Some(packing) => {
            write_packed(machine, packing, &dir.create(PACK_FILE)?, &dir.place().join(PACK_FILE))
        }
    }
}

fn write_packed(machine: &Machine, packing: &Packing, file: &File, path: &Path) -> Result<()> {
    let ram = &machine.shell().ram;
    let source = RamSource::new(ram, populated_ranges(ram, machine.base())?);
    pack(&source, ram.len(), packing, (file, path), &|_| ())?;
    file.sync_all().map_err(|source| Error::file("write", path.display(), source))
}

/// Copies every page that is not zero. The rest of the file is holes.
fn write_memory(machine: &Machine, file: &File, path: &Path) -> Result<()> {
    let failed = |source: std::io::Error| Error::file("write", path.display(), source);
    let ram = &machine.shell().ram;
    file.set_len(ram.len()).map_err(failed)?;
    let mut buffer = vec![0; STEP];
    for range in populated_ranges(ram, machine.base())? {
        for region in ram.regions() {
            let mut start = range.start.max(region.offset);
            let end = range.end.min(region.offset + region.len);
            while start < end {
                let step = &mut buffer[..((end - start) as usize).min(STEP)];
                read(ram.guest(), region, start, step)?;
                write_nonzero(file, start, step).map_err(failed)?;
                start += step.len() as u64;
            }
        }
    }
    file.sync_all().map_err(failed)
}

pub(super) fn read(guest: &GuestMemoryMmap, region: &Region, offset: u64, into: &mut [u8]) -> Result<()> {
    let address = GuestAddress(region.gpa + offset - region.offset);
    guest.read_slice(into, address).map_err(|error| {
        Error::host(format!("read guest memory at {:#x}", address.0), std::io::Error::other(error))
    })
}

/// Writes the runs of pages that are not zero. `bytes` is a whole number of pages.
pub(super) fn write_nonzero(file: &File, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
    static ZERO: [u8; PAGE as usize] = [0; PAGE as usize];
    let mut run = 0..0;
    for page in bytes.chunks(ZERO.len()) {
        let end = run.end + page.len();
        if page == &ZERO[..page.len()] {
            write_run(file, offset, bytes, run)?;
            run = end..end;
        } else {
            run.end = end;
        }
    }
    write_run(file, offset, bytes, run)
}

fn write_run(file: &File, offset: u64, bytes: &[u8], run: Range<usize>) -> std::io::Result<()> {
    let start = offset + run.start as u64;
    if run.is_empty() { Ok(()) } else { file.write_all_at(&bytes[run], start) }
}
