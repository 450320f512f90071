//! The ways in which the memory of a snapshot gets to a VM. Each prepares memory, and says how long that took as far as a restore
//! would wait for it: what only makes rounds alike (a page cache that is warm, one that is not) is not in that.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};

use super::subject::Subject;
use crate::error::{Error, Result};
use crate::memory::lazy::fault_service::Service;
use crate::memory::lazy::faults::Paging;
use crate::memory::prefault::map_in;
use crate::memory::ram::GuestRam;
use crate::replay::fault_floor::Floor;
use crate::replay::touch::{cached, touch};
use crate::replay::whole_memory::read_whole;
use crate::snapshot::opened::chunks::source_of;
use crate::snapshot::opened::memory::{Packed, SnapshotMemory};

/// See the module.
pub struct Strategy {
    pub name: &'static str,
    pub prepare: fn(&Subject) -> Result<Prepared>,
}

/// Memory that is to be touched.
pub struct Prepared {
    pub ram: GuestRam,
    /// What it took.
    pub before: Duration,
    /// See [`super::Measured::stayed_cached`].
    pub stayed_cached: Option<u64>,
}

impl Prepared {
    fn timed(prepare: impl FnOnce() -> Result<GuestRam>) -> Result<Self> {
        let start = Instant::now();
        let ram = prepare()?;
        Ok(Self { ram, before: start.elapsed(), stayed_cached: None })
    }
}

/// Of memory that is mapped as it lies there.
const RAW: [Strategy; 4] = [
    Strategy { name: "mapped, page cache warm", prepare: mapped },
    Strategy { name: "mapped, populated ahead", prepare: populated },
    Strategy { name: "mapped, page cache dropped", prepare: dropped },
    Strategy { name: "read whole into memory", prepare: whole },
];

/// Of packed memory.
const PACKED: [Strategy; 5] = [
    Strategy { name: "on touch", prepare: on_touch },
    Strategy { name: "on touch, filled ahead", prepare: filled_ahead },
    Strategy { name: "on touch, of a second VM", prepare: second_vm },
    Strategy { name: "floor of on touch", prepare: floor },
    Strategy { name: "unpacked at once, mapped", prepare: at_once },
];

/// Those that there are for such memory.
pub fn of(subject: &Subject) -> &'static [Strategy] {
    match subject.memory {
        SnapshotMemory::Raw(..) => &RAW,
        SnapshotMemory::Packed(_) => &PACKED,
    }
}

/// As a restore of raw memory does it.
fn mapped(subject: &Subject) -> Result<Prepared> {
    subject.read()?;
    Prepared::timed(|| subject.map(subject.memory.base()?))
}

/// The same, and the kernel makes the page-table entries beforehand.
fn populated(subject: &Subject) -> Result<Prepared> {
    subject.read()?;
    Prepared::timed(|| {
        let ram = subject.map(subject.memory.base()?)?;
        subject.set.runs().iter().try_for_each(|run| map_in(&ram, run.clone()))?;
        Ok(ram)
    })
}

/// As on a host that has not had the snapshot's files in memory.
fn dropped(subject: &Subject) -> Result<Prepared> {
    let base = subject.memory.base()?;
    drop_cache(&base)?;
    let mut stayed = cached(&base, subject.len, subject.pages_of_base())?;
    if let Some(over) = &subject.over {
        drop_cache(&over.file)?;
        stayed += cached(&over.file, subject.len, subject.pages_over())?;
    }
    let prepared = Prepared::timed(|| subject.map(base))?;
    Ok(Prepared { stayed_cached: Some(stayed), ..prepared })
}

/// What is not on the disk yet would stay.
fn drop_cache(file: &File) -> Result<()> {
    let refused = |source| Error::host("drop a snapshot's memory from the page cache", source);
    file.sync_data().map_err(refused)?;
    fadvise(file, 0, None, Advice::DontNeed).map_err(|errno| refused(errno.into()))
}

/// As without mappings. Read twice: the first time brings it into the page cache.
fn whole(subject: &Subject) -> Result<Prepared> {
    let base = subject.memory.base()?;
    let read = || read_whole(subject.len, &base, subject.over.as_ref());
    drop(read()?);
    Prepared::timed(read)
}

/// As a restore of packed memory does it, of the first VM.
fn on_touch(subject: &Subject) -> Result<Prepared> {
    Prepared::timed(|| subject.map_lazy(service(subject)?))
}

/// The same while what is about to be touched is read ahead.
fn filled_ahead(subject: &Subject) -> Result<Prepared> {
    let runs = subject.runs_of_base();
    Prepared::timed(|| {
        let service = service(subject)?;
        let ram = subject.map_lazy(Arc::clone(&service) as _)?;
        service.prefetch(&runs)?;
        Ok(ram)
    })
}

/// Of a VM for which another has touched all of it already.
fn second_vm(subject: &Subject) -> Result<Prepared> {
    let service = service(subject)?;
    let first = subject.map_lazy(Arc::clone(&service) as _)?;
    subject.pages().for_each(|page| {
        let _ = touch(&first, page);
    });
    Prepared::timed(|| subject.map_lazy(service))
}

/// What any pager of this kind must do: the same faults, answered from memory that is unpacked already.
fn floor(subject: &Subject) -> Result<Prepared> {
    let chunk_len = packed(subject).pack.chunk_len().into();
    let floor = Floor::over(subject.memory.base()?, chunk_len)?;
    Prepared::timed(|| subject.map_lazy(Arc::new(floor)))
}

/// As `restore --unpack` does it.
fn at_once(subject: &Subject) -> Result<Prepared> {
    Prepared::timed(|| subject.map(Arc::new(packed(subject).unpacked()?)))
}

/// An empty base, and who fills it.
fn service(subject: &Subject) -> Result<Arc<Service>> {
    Service::new(source_of(Arc::clone(&packed(subject).pack))).map(Arc::new)
}

fn packed(subject: &Subject) -> &Packed {
    match &subject.memory {
        SnapshotMemory::Packed(packed) => packed,
        SnapshotMemory::Raw(..) => unreachable!("a strategy for packed memory"),
    }
}
