//! A snapshot's memory file, raw or packed, and the base that restored VMs map.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::chunks::source_of;
use crate::error::{Error, Invalid, Result};
use crate::memory::backing::Backing;
use crate::memory::base::OverlayPages;
use crate::memory::dirty::freeze::seal;
use crate::memory::files::memfd::fresh;
use crate::memory::lazy::fault_service::Service;
use crate::memory::lazy::faults::FaultHandler;
use crate::memory::page_set::PageSet;
use crate::pager::client::Pager;
use crate::pager::handler::MemoryHandler;
use crate::pager::options::PagerOptions;
use crate::progress::Progress;
use crate::snapshot::format::files::open_named;
use crate::snapshot::format::pack::Pack;
use crate::snapshot::format::pack::walk::unpack;
use crate::snapshot::format::place::SnapshotDir;
use crate::snapshot::{MEMORY_FILE, MemoryFile, PACK_FILE, STATE_FILE};
use crate::sync::lock;
use crate::timing::step_done;

/// See the module.
#[derive(Debug)]
pub enum SnapshotMemory {
    /// `memory.snap`, and its path.
    Raw(Arc<File>, PathBuf),
    /// `memory.pack`.
    Packed(Packed),
}

/// The place of an opened snapshot's memory.
#[derive(Clone, Debug)]
pub(crate) enum MemorySource {
    /// A file.
    File(Arc<SnapshotMemory>),
    /// A memory handler, which each VM asks for itself.
    Handler(MemoryHandler),
}

impl MemorySource {
    /// The file.
    ///
    /// # Errors
    /// [`Error::Config`]: a handler has the memory.
    pub fn file(&self) -> Result<&Arc<SnapshotMemory>> {
        match self {
            Self::File(memory) => Ok(memory),
            Self::Handler(_) => Err(Error::config("memory", Invalid::HandlerAlone)),
        }
    }
}

/// A pack, and its unpacked content once a VM needs it: all of it, or filled on touch.
#[derive(Debug)]
pub struct Packed {
    pub pack: Arc<Pack>,
    base: Mutex<Option<Arc<File>>>,
    service: Mutex<Option<Arc<Service>>>,
}

/// How VMs restored from packed memory get their pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Unpack {
    /// On touch, by threads of this process that all VMs of one [`crate::snapshot::Snapshot`] share. A
    /// touched chunk that is damaged ends its VM. Needs userfaultfd.
    #[default]
    OnTouch,
    /// On touch, by a pager: one process for all VMs on this host that run from the snapshot, in whatever
    /// process. It is started on demand.
    ByPager(PagerOptions),
    /// All of it, verified, before the first VM runs.
    AtOnce,
}

impl Unpack {
    /// Makes what a user's options ask for: all memory unpacked before the VM runs, or a pager.
    ///
    /// # Errors
    /// [`Invalid::PagerWithUnpack`]: the options exclude each other; [`Invalid::PagerGroup`].
    pub fn from_options(at_once: bool, pager: Option<PagerOptions>) -> Result<Self> {
        match (at_once, pager) {
            (true, Some(_)) => Err(Error::config("pager", Invalid::PagerWithUnpack)),
            (true, None) => Ok(Self::AtOnce),
            (false, Some(pager)) => pager.validate().map(|()| Self::ByPager(pager)),
            (false, None) => Ok(Self::OnTouch),
        }
    }
}

/// Packed memory that is filled on touch, and how.
#[derive(Clone, Debug)]
pub(crate) struct LazyMemory {
    pub memory: Arc<SnapshotMemory>,
    /// Any but [`Unpack::AtOnce`].
    pub unpack: Unpack,
}

impl LazyMemory {
    /// Returns nothing for memory that is complete before a VM runs.
    pub fn of(memory: &Arc<SnapshotMemory>, unpack: &Unpack) -> Option<Self> {
        let is_lazy = matches!(**memory, SnapshotMemory::Packed(_)) && *unpack != Unpack::AtOnce;
        is_lazy.then(|| Self { memory: Arc::clone(memory), unpack: unpack.clone() })
    }
}

/// The memory under a VM's captured pages.
#[derive(Debug)]
pub(crate) enum CapturedBase {
    /// A complete file that never changes.
    Whole(Arc<File>),
    /// Memory that faults still fill.
    Lazy(LazyMemory),
}

impl SnapshotMemory {
    /// Opens the memory file of `snapshot`, with `len` bytes of memory, as its state names it.
    ///
    /// # Errors
    /// The memory file is missing, ambiguous, of another snapshot, or invalid.
    pub(crate) fn open<'a>(
        snapshot: impl Into<SnapshotDir<'a>>,
        len: u64,
        named: Option<&MemoryFile>,
    ) -> Result<Self> {
        let snapshot = snapshot.into();
        let is_packed = snapshot.has(PACK_FILE)?;
        let name = if is_packed { PACK_FILE } else { MEMORY_FILE };
        let path = snapshot.path().join(name);
        if is_packed && snapshot.has(MEMORY_FILE)? {
            let problem =
                format!("lies beside a {MEMORY_FILE}, but a snapshot has only one of the two files");
            return Err(Error::snapshot(path, problem));
        }
        let (file, found) = snapshot.open_regular(name)?;
        let (memory, file) = if is_packed {
            let pack = Arc::new(Pack::open(file, &path)?);
            let (found, file) = (pack.memory_len(), MemoryFile::pack(pack.digest()));
            (Self::Packed(Packed::of(pack)).of_len(&path, found, len, "holds {} bytes of memory")?, file)
        } else {
            let memory = Self::Raw(Arc::new(file), path.clone());
            (memory.of_len(&path, found, len, "is {} bytes long")?, MemoryFile::Raw)
        };
        is_named(&path, &file, named)?;
        step_done("memory open");
        Ok(memory)
    }

    /// Opens raw memory of `len` bytes in a file that the user named.
    ///
    /// # Errors
    /// The file is missing, or not as long.
    pub(crate) fn open_raw(path: &Path, len: u64) -> Result<Self> {
        let (file, found) = open_named(path)?;
        let memory = Self::Raw(Arc::new(file), path.to_owned());
        let memory = memory.of_len(path, found, len, "is {} bytes long")?;
        step_done("memory open");
        Ok(memory)
    }

    fn of_len(self, path: &Path, found: u64, expected: u64, what: &str) -> Result<Self> {
        if found == expected {
            return Ok(self);
        }
        let what = what.replace("{}", &found.to_string());
        Err(Error::snapshot(path, format!("{what}, but its state says {expected}")))
    }

    /// The backing for a restored VM's RAM, with the diff's pages over it.
    ///
    /// # Errors
    /// As [`SnapshotMemory::base_with`]; or the host refuses a userfaultfd.
    pub fn backing(
        &self,
        unpack: &Unpack,
        pages: Option<OverlayPages>,
        progress: &Progress,
    ) -> Result<Backing> {
        match (self, unpack) {
            (Self::Packed(Packed { pack, service, .. }), Unpack::OnTouch) => {
                let mut kept = lock(service);
                let service = match &*kept {
                    Some(service) => Arc::clone(service),
                    None => Arc::clone(kept.insert(Arc::new(Service::new(source_of(Arc::clone(pack)))?))),
                };
                step_done("pager");
                Ok(Backing::Lazy { handler: service as Arc<dyn FaultHandler>, pages })
            }
            (Self::Packed(Packed { pack, .. }), Unpack::ByPager(options)) => {
                let failed = |source| Error::file("open again", pack.name().display(), source);
                let file = pack.file().try_clone().map_err(failed)?;
                let pager = Pager::connect(options, file, pack.name().to_owned(), pack.memory_len())?;
                step_done("pager");
                Ok(Backing::Lazy { handler: Arc::new(pager), pages })
            }
            _ => Ok(Backing::Private { base: self.base_with(progress)?, pages }),
        }
    }

    /// The file that VMs map, if they map the snapshot's own.
    pub fn raw(&self) -> Option<&Arc<File>> {
        match self {
            Self::Raw(file, _) => Some(file),
            Self::Packed(_) => None,
        }
    }

    /// Path of the memory file, for errors.
    pub fn name(&self) -> &Path {
        match self {
            Self::Raw(_, path) => path,
            Self::Packed(packed) => packed.pack.name(),
        }
    }

    /// Bytes that packed memory takes when unpacked; 0 for raw memory.
    ///
    /// # Errors
    /// The index of the pack is damaged or cannot be read.
    pub fn populated(&self) -> Result<u64> {
        match self {
            Self::Raw(..) => Ok(0),
            Self::Packed(packed) => packed.pack.populated(),
        }
    }

    /// Adds the pages of packed memory that may hold data to `pages`; none for raw memory.
    ///
    /// # Errors
    /// The index of the pack is damaged or cannot be read.
    pub fn add_populated(&self, pages: &mut PageSet) -> Result<()> {
        match self {
            Self::Raw(..) => Ok(()),
            Self::Packed(packed) => packed.pack.each_populated(|range| pages.add(range)),
        }
    }

    /// Number of chunks of packed memory that were fetched on touch.
    pub fn chunks_fetched(&self) -> u64 {
        match self {
            Self::Raw(..) => 0,
            Self::Packed(packed) => {
                lock(&packed.service).as_ref().map_or(0, |service| service.filler().decoded())
            }
        }
    }

    /// A complete base under VMs' pages, never written. The first call for packed memory unpacks and verifies
    /// all of it into memory, which is then sealed. Later calls share that.
    ///
    /// # Errors
    /// The pack is damaged, or the host lacks memory for it.
    pub fn base(&self) -> Result<Arc<File>> {
        self.base_with(&Progress::default())
    }

    /// As [`SnapshotMemory::base`]. `progress` counts the bytes that are unpacked.
    ///
    /// # Errors
    /// As [`SnapshotMemory::base`]; or [`Error::Cancelled`]. A later call then unpacks all of it anew.
    pub fn base_with(&self, progress: &Progress) -> Result<Arc<File>> {
        let packed = match self {
            Self::Raw(file, _) => return Ok(Arc::clone(file)),
            Self::Packed(packed) => packed,
        };
        let mut base = lock(&packed.base);
        if let Some(base) = &*base {
            return Ok(Arc::clone(base));
        }
        let file = packed.unpacked(progress)?;
        step_done("memory unpack");
        Ok(Arc::clone(base.insert(Arc::new(file))))
    }
}

/// Checks that a memory file is the one that its state file names.
///
/// # Errors
/// It is another file.
pub(crate) fn is_named(path: &Path, file: &MemoryFile, named: Option<&MemoryFile>) -> Result<()> {
    match named.filter(|named| *named != file) {
        None => Ok(()),
        Some(named) => {
            let problem = format!("is {file}, but {STATE_FILE} in the same directory names {named}");
            Err(Error::snapshot(path, problem))
        }
    }
}

impl Packed {
    /// A pack of which nothing is unpacked yet.
    pub fn of(pack: Arc<Pack>) -> Self {
        Self { pack, base: Mutex::default(), service: Mutex::default() }
    }

    /// Unpacks all of the memory anew, verified and sealed.
    ///
    /// # Errors
    /// As [`SnapshotMemory::base_with`].
    pub fn unpacked(&self, progress: &Progress) -> Result<File> {
        let file = fresh(self.pack.memory_len())?;
        progress.expect(self.pack.memory_len());
        unpack(&self.pack, (&file, Path::new("unpacked guest memory")), progress)?;
        seal(&file)?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_trust_group_is_refused_before_a_restore() {
        let pager = |group: &str| PagerOptions { group: Some(group.to_owned()), ..PagerOptions::new("p") };
        Unpack::from_options(false, Some(pager("tenant-7"))).unwrap();
        for group in ["", "a/b", "a-name-of-more-than-32-characters"] {
            let error = Unpack::from_options(false, Some(pager(group))).unwrap_err().to_string();
            assert!(error.starts_with("pager_group: "), "{error}");
        }
    }
}
