//! The memory of a snapshot, raw or packed, and the base that the VMs restored from it get.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::chunks::source_of;
use crate::error::{Error, Result};
use crate::memory::backing::Backing;
use crate::memory::base::OverlayPages;
use crate::memory::dirty::freeze::seal;
use crate::memory::files::memfd::fresh;
use crate::memory::lazy::fault_service::Service;
use crate::memory::lazy::faults::Paging;
use crate::memory::page_set::PageSet;
use crate::pager::client::Pager;
use crate::pager::options::PagerOptions;
use crate::progress::Progress;
use crate::snapshot::format::pack::Pack;
use crate::snapshot::format::pack::walk::unpack;
use crate::snapshot::format::place::SnapshotDir;
use crate::snapshot::{MEMORY_FILE, MemoryFile, PACK_FILE, STATE_FILE};
use crate::sync::lock;
use crate::timing::step_done;

/// See the module.
#[derive(Debug)]
pub enum SnapshotMemory {
    /// `memory.snap`, and where it is.
    Raw(Arc<File>, PathBuf),
    /// `memory.pack`.
    Packed(Packed),
}

/// A pack, and its content once someone needs it: all of it, or what is touched.
#[derive(Debug)]
pub struct Packed {
    pub pack: Arc<Pack>,
    base: Mutex<Option<Arc<File>>>,
    paging: Mutex<Option<Arc<Service>>>,
}

/// How the memory of VMs is filled that are restored from a packed snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Unpack {
    /// As it is touched, by a thread of this process that all VMs restored from one [`crate::snapshot::Snapshot`] share. A chunk that is damaged is
    /// found when it is touched, and ends the VM. Takes userfaultfd.
    #[default]
    OnTouch,
    /// As it is touched, by a pager: a process that all VMs on this host share that run from the snapshot, whatever process they are
    /// in. It is started if there is none.
    ByPager(PagerOptions),
    /// All of it, verified, before the first VM runs.
    AtOnce,
}

/// Packed memory that VMs fill on touch, and by whom.
#[derive(Clone, Debug)]
pub(crate) struct LazyMemory {
    pub memory: Arc<SnapshotMemory>,
    /// Not [`Unpack::AtOnce`].
    pub unpack: Unpack,
}

impl LazyMemory {
    /// Returns none for memory that is complete before a VM runs.
    pub fn of(memory: &Arc<SnapshotMemory>, unpack: &Unpack) -> Option<Self> {
        let is_lazy = matches!(**memory, SnapshotMemory::Packed(_)) && *unpack != Unpack::AtOnce;
        is_lazy.then(|| Self { memory: Arc::clone(memory), unpack: unpack.clone() })
    }
}

/// The memory under the pages that were captured of a VM.
#[derive(Debug)]
pub(crate) enum CapturedBase {
    /// A file that has all of it and never changes.
    Whole(Arc<File>),
    /// Memory that is still being filled.
    Lazy(LazyMemory),
}

impl SnapshotMemory {
    /// Opens the memory of the snapshot at `snapshot`, which has `len` bytes of it, in the file that its state names.
    ///
    /// # Errors
    /// It has none, or two, or one that does not belong to it or is no memory file at all.
    pub(crate) fn open<'a>(
        snapshot: impl Into<SnapshotDir<'a>>,
        len: u64,
        named: Option<&MemoryFile>,
    ) -> Result<Self> {
        let snapshot = snapshot.into();
        let is_packed = snapshot.has(PACK_FILE);
        let name = if is_packed { PACK_FILE } else { MEMORY_FILE };
        let path = snapshot.path().join(name);
        if is_packed && snapshot.has(MEMORY_FILE) {
            let problem = format!("stands beside a {MEMORY_FILE}, and only one can be its memory");
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

    fn of_len(self, path: &Path, found: u64, expected: u64, what: &str) -> Result<Self> {
        if found == expected {
            return Ok(self);
        }
        let what = what.replace("{}", &found.to_string());
        Err(Error::snapshot(path, format!("{what}, but {STATE_FILE} says {expected}")))
    }

    /// What the RAM of a restored VM is made of, with `pages` over it.
    ///
    /// # Errors
    /// As [`SnapshotMemory::base`]; or the host gives no userfaultfd.
    pub fn backing(&self, unpack: &Unpack, pages: Option<OverlayPages>) -> Result<Backing> {
        match (self, unpack) {
            (Self::Packed(Packed { pack, paging, .. }), Unpack::OnTouch) => {
                let mut paging = lock(paging);
                let service = match &*paging {
                    Some(service) => Arc::clone(service),
                    None => Arc::clone(paging.insert(Arc::new(Service::new(source_of(Arc::clone(pack)))?))),
                };
                step_done("pager");
                Ok(Backing::Lazy { paging: service as Arc<dyn Paging>, pages })
            }
            (Self::Packed(Packed { pack, .. }), Unpack::ByPager(options)) => {
                let failed = |source| Error::file("open again", pack.name().display(), source);
                let file = pack.file().try_clone().map_err(failed)?;
                let pager = Pager::connect(options, file, pack.name().to_owned(), pack.memory_len())?;
                step_done("pager");
                Ok(Backing::Lazy { paging: Arc::new(pager), pages })
            }
            _ => Ok(Backing::Private { base: self.base()?, pages }),
        }
    }

    /// The file that VMs run from, where they do so directly.
    pub fn raw(&self) -> Option<&Arc<File>> {
        match self {
            Self::Raw(file, _) => Some(file),
            Self::Packed(_) => None,
        }
    }

    /// Where it is, for errors.
    pub fn name(&self) -> &Path {
        match self {
            Self::Raw(_, path) => path,
            Self::Packed(packed) => packed.pack.name(),
        }
    }

    /// Bytes that a packed memory takes once all of it is unpacked; 0 of one that is not packed.
    ///
    /// # Errors
    /// The index of the pack is damaged, or cannot be read.
    pub fn populated(&self) -> Result<u64> {
        match self {
            Self::Raw(..) => Ok(0),
            Self::Packed(packed) => packed.pack.populated(),
        }
    }

    /// Adds the pages of a packed memory that may hold something to `pages`; none of one that is not packed.
    ///
    /// # Errors
    /// The index of the pack is damaged, or cannot be read.
    pub fn add_populated(&self, pages: &mut PageSet) -> Result<()> {
        match self {
            Self::Raw(..) => Ok(()),
            Self::Packed(packed) => packed.pack.each_populated(|range| pages.add(range)),
        }
    }

    /// How many chunks of a packed memory have been fetched as they were touched.
    pub fn chunks_fetched(&self) -> u64 {
        match self {
            Self::Raw(..) => 0,
            Self::Packed(packed) => {
                lock(&packed.paging).as_ref().map_or(0, |paging| paging.filler().decoded())
            }
        }
    }

    /// What lies under the pages of a VM: all of it, and nobody writes to it. Of a packed memory, the first one to ask has it unpacked, all
    /// of it and verified, into memory that is then sealed; those after it share that.
    ///
    /// # Errors
    /// The pack is damaged, or the host has no memory for it.
    pub fn base(&self) -> Result<Arc<File>> {
        let packed = match self {
            Self::Raw(file, _) => return Ok(Arc::clone(file)),
            Self::Packed(packed) => packed,
        };
        let mut base = lock(&packed.base);
        if let Some(base) = &*base {
            return Ok(Arc::clone(base));
        }
        let file = packed.unpacked()?;
        step_done("memory unpack");
        Ok(Arc::clone(base.insert(Arc::new(file))))
    }
}

/// Checks that a memory file is the one that a state file names.
///
/// # Errors
/// It is another one.
pub(crate) fn is_named(path: &Path, file: &MemoryFile, named: Option<&MemoryFile>) -> Result<()> {
    match named.filter(|named| *named != file) {
        None => Ok(()),
        Some(named) => {
            let problem = format!("is {file}, but {STATE_FILE} beside it belongs to {named}");
            Err(Error::snapshot(path, problem))
        }
    }
}

impl Packed {
    /// One of which nobody has needed anything yet.
    pub fn of(pack: Arc<Pack>) -> Self {
        Self { pack, base: Mutex::default(), paging: Mutex::default() }
    }

    /// All of the memory, verified and sealed, once more.
    ///
    /// # Errors
    /// As [`SnapshotMemory::base`].
    pub fn unpacked(&self) -> Result<File> {
        let file = fresh(self.pack.memory_len())?;
        unpack(&self.pack, (&file, Path::new("unpacked guest memory")), &Progress::default())?;
        seal(&file)?;
        Ok(file)
    }
}
