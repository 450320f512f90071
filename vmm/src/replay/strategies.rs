//! Restore strategies: the ways in which a VM gets the memory of a snapshot.
//!
//! Each strategy prepares memory, and times the part that a restore would wait for. Work that only makes
//! rounds equal, such as warming the page cache, is not timed.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};

use super::subject::ReplaySubject;
use crate::error::{Error, Result};
use crate::memory::lazy::fault_service::Service;
use crate::memory::lazy::faults::FaultHandler;
use crate::memory::prefault::map_in;
use crate::memory::ram::GuestRam;
use crate::progress::Progress;
use crate::replay::fault_floor::FloorPager;
use crate::replay::touch::{cached, touch};
use crate::replay::whole_memory::read_whole;
use crate::snapshot::opened::chunks::source_of;
use crate::snapshot::opened::memory::{Packed, SnapshotMemory};

/// A restore strategy.
pub struct Strategy {
    pub name: &'static str,
    pub prepare: fn(&ReplaySubject) -> Result<PreparedMemory>,
}

/// Memory to touch.
pub struct PreparedMemory {
    pub ram: GuestRam,
    /// The time that a restore would wait for it.
    pub before: Duration,
    /// See [`super::Measured::stayed_cached`].
    pub stayed_cached: Option<u64>,
}

impl PreparedMemory {
    fn timed(prepare: impl FnOnce() -> Result<GuestRam>) -> Result<Self> {
        let start = Instant::now();
        let ram = prepare()?;
        Ok(Self { ram, before: start.elapsed(), stayed_cached: None })
    }
}

/// Strategies for raw memory.
const RAW: [Strategy; 4] = [
    Strategy { name: "mapped, page cache warm", prepare: mapped },
    Strategy { name: "mapped, populated ahead", prepare: populated },
    Strategy { name: "mapped, page cache dropped", prepare: dropped },
    Strategy { name: "read whole into memory", prepare: whole },
];

/// Strategies for packed memory.
const PACKED: [Strategy; 5] = [
    Strategy { name: "on touch", prepare: on_touch },
    Strategy { name: "on touch, filled ahead", prepare: filled_ahead },
    Strategy { name: "on touch, of a second VM", prepare: second_vm },
    Strategy { name: "floor of on touch", prepare: floor },
    Strategy { name: "unpacked at once, mapped", prepare: at_once },
];

/// Returns the strategies for this kind of memory.
pub fn of(subject: &ReplaySubject) -> &'static [Strategy] {
    match subject.memory {
        SnapshotMemory::Raw(..) => &RAW,
        SnapshotMemory::Packed(_) => &PACKED,
    }
}

/// Maps raw memory, as a restore does.
fn mapped(subject: &ReplaySubject) -> Result<PreparedMemory> {
    subject.read()?;
    PreparedMemory::timed(|| subject.map(subject.memory.base()?))
}

/// Maps raw memory, and populates the page tables ahead.
fn populated(subject: &ReplaySubject) -> Result<PreparedMemory> {
    subject.read()?;
    PreparedMemory::timed(|| {
        let ram = subject.map(subject.memory.base()?)?;
        subject.set.page_ranges().iter().try_for_each(|run| map_in(&ram, run.clone()))?;
        Ok(ram)
    })
}

/// Maps raw memory without a page cache, as on a host that has not read the snapshot.
fn dropped(subject: &ReplaySubject) -> Result<PreparedMemory> {
    let base = subject.memory.base()?;
    drop_cache(&base)?;
    let mut stayed = cached(&base, subject.len, subject.pages_of_base())?;
    if let Some(over) = &subject.over {
        drop_cache(&over.file)?;
        stayed += cached(&over.file, subject.len, subject.pages_over())?;
    }
    let prepared = PreparedMemory::timed(|| subject.map(base))?;
    Ok(PreparedMemory { stayed_cached: Some(stayed), ..prepared })
}

/// Drops a file from the page cache. Syncs it first, because dirty pages would stay.
fn drop_cache(file: &File) -> Result<()> {
    let refused = |source| Error::host("drop a snapshot's memory from the page cache", source);
    file.sync_data().map_err(refused)?;
    fadvise(file, 0, None, Advice::DontNeed).map_err(|errno| refused(errno.into()))
}

/// Reads the whole memory instead of mapping it. The first read warms the page cache and is not timed.
fn whole(subject: &ReplaySubject) -> Result<PreparedMemory> {
    let base = subject.memory.base()?;
    let read = || read_whole(subject.len, &base, subject.over.as_ref());
    drop(read()?);
    PreparedMemory::timed(read)
}

/// Unpacks packed memory on touch, as for the first VM of a snapshot.
fn on_touch(subject: &ReplaySubject) -> Result<PreparedMemory> {
    PreparedMemory::timed(|| subject.map_lazy(service(subject)?))
}

/// Unpacks packed memory on touch, while a prefetch fills the working set ahead.
fn filled_ahead(subject: &ReplaySubject) -> Result<PreparedMemory> {
    let runs = subject.page_ranges_of_base();
    PreparedMemory::timed(|| {
        let service = service(subject)?;
        let ram = subject.map_lazy(Arc::clone(&service) as _)?;
        service.prefetch(&runs)?;
        Ok(ram)
    })
}

/// Maps packed memory for a second VM, after the first has touched the working set.
fn second_vm(subject: &ReplaySubject) -> Result<PreparedMemory> {
    let service = service(subject)?;
    let first = subject.map_lazy(Arc::clone(&service) as _)?;
    subject.pages().for_each(|page| {
        let _ = touch(&first, page);
    });
    PreparedMemory::timed(|| subject.map_lazy(service))
}

/// Serves the same faults from unpacked memory: the lower bound of on-touch filling.
fn floor(subject: &ReplaySubject) -> Result<PreparedMemory> {
    let chunk_len = packed(subject).pack.chunk_len().into();
    let floor = FloorPager::over(subject.memory.base()?, chunk_len)?;
    PreparedMemory::timed(|| subject.map_lazy(Arc::new(floor)))
}

/// Unpacks the whole memory and maps it, as `Unpack::AtOnce` does.
fn at_once(subject: &ReplaySubject) -> Result<PreparedMemory> {
    PreparedMemory::timed(|| subject.map(Arc::new(packed(subject).unpacked(&Progress::default())?)))
}

/// Makes an empty base, and the service that fills it.
fn service(subject: &ReplaySubject) -> Result<Arc<Service>> {
    Service::new(source_of(Arc::clone(&packed(subject).pack))).map(Arc::new)
}

fn packed(subject: &ReplaySubject) -> &Packed {
    match &subject.memory {
        SnapshotMemory::Packed(packed) => packed,
        SnapshotMemory::Raw(..) => unreachable!("a strategy for packed memory"),
    }
}
