//! A snapshot that is only in memory, handed over to another process: what a fork's children are restored
//! from.
//!
//! ```text
//!   parent                                          unix socket                          child
//!   Vm::snapshot_in_memory ── Snapshot::handover ── state.json, pages, descriptors ──> Snapshot::receive ── restore
//! ```
//!
//! The child receives read-only descriptors of the base or pack, the pages over it and the layers of disks.
//! Memory without a file is sealed first; no memory is copied. A fork's children may write to one file,
//! their working set. The child checks every message that could lead
//! to a wrong page.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::config::FileRef;
use crate::error::{Error, Result};
use crate::memory::base::OverlayPages;
use crate::memory::files::memfd::fresh;
use crate::memory::files::sealing::{can_change, read_only, seal};
use crate::memory::files::sparse;
use crate::memory::page_set::PageSet;
use crate::pager::options::PagerOptions;
use crate::snapshot::MemoryFile;
use crate::snapshot::format::manifest;
use crate::snapshot::format::manifest::BaseSnapshot;
use crate::snapshot::format::pack::Pack;
use crate::snapshot::format::working_set::WorkingSetFile;
use crate::snapshot::lineage::{Lineage, PagesToCapture};
use crate::snapshot::opened::location::Location;
use crate::snapshot::opened::memory::{CapturedBase, LazyMemory, Packed, SnapshotMemory, Unpack};
use crate::snapshot::opened::state;
use crate::snapshot::restore::open::Snapshot;

mod wire;

/// Bytes of the state, or of the sets of pages. Memory is taken for what comes, not for what is announced.
const LARGEST_PART: u64 = 256 << 20;

/// A snapshot that can be sent to any number of processes.
#[derive(Debug)]
pub struct Handover {
    message: Vec<u8>,
    files: Vec<File>,
}

/// The message's header: everything but state and pages.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HandoverHeader {
    /// Whether pages lie over the base. Their set is the first.
    over: bool,
    /// The base of the lineage. The set of pages that may differ from it is the last.
    lineage: Option<BaseSnapshot>,
    /// Disks whose layers are the next descriptors.
    layers: Vec<String>,
    /// Whether the last descriptor is the working set of the children.
    working_set: bool,
    /// The pack in place of the base, if the base is filled on touch.
    pack: Option<HandoverPack>,
}

/// A pack from which memory is filled on touch.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HandoverPack {
    /// Name of the pack in errors.
    name: PathBuf,
    /// Digest of the pack.
    file: MemoryFile,
    /// The shared pager, if one fills the memory.
    pager: Option<PagerOptions>,
}

impl Snapshot {
    /// Prepares a handover to other processes of this host ([`Snapshot::receive`]). The snapshot may be
    /// dropped before they have it.
    ///
    /// # Errors
    /// The host refuses descriptors, or a writer has a file mapped that is to be shared.
    pub fn handover(&self) -> Result<Handover> {
        let refused = |source| Error::host("share guest memory with another process", source);
        let mut config = self.config().clone();
        for disk in &mut config.devices.disks {
            // Descriptor numbers mean other files in the receiver, which names a file of its own.
            for file in disk.image_mut() {
                if let FileRef::Fd(number) | FileRef::Untrusted(number) = file {
                    *file = FileRef::Path(format!("fd:{number} of process {}", std::process::id()).into());
                }
            }
        }
        let state = manifest::encode(self.metadata(), &config, self.machine(), |_| Ok(None))?;
        let (memory, over) = self.memory()?;
        let (base, pack) = base_of(memory, self.fills())?;
        let mut files = vec![base];
        files.extend(over.map(|over| Arc::clone(&over.file)));
        let files: io::Result<Vec<_>> = files.iter().map(|file| unchanging(file)).collect();
        let mut files = files.map_err(refused)?;
        let layered = config.devices.disks.iter().filter(|disk| disk.layer.is_some());
        let layers: Vec<_> = layered.map(|disk| disk.id.clone()).collect();
        for id in &layers {
            let layer = self.layers().find(id)?.open("open layer")?;
            files.push(read_only(&layer).map_err(refused)?);
        }
        let working_set = self.working_set_file().and_then(|place| place.shared_file());
        files.extend(working_set.map(File::try_clone).transpose().map_err(refused)?);
        let lineage = self.lineage();
        let about = HandoverHeader {
            over: over.is_some(),
            lineage: lineage.map(|lineage| lineage.base.clone()),
            layers,
            working_set: working_set.is_some(),
            pack,
        };
        let about = serde_json::to_vec(&about)
            .map_err(|source| Error::state("the snapshot that is handed over", source))?;
        let none = PageSet::none(self.metadata().memory_bytes);
        let differ = lineage.map(|lineage| lineage.may_differ.pages().unwrap_or(&none));
        let sets = over.map(|over| &*over.pages).into_iter().chain(differ);
        let pages: Vec<u8> = sets.flat_map(PageSet::bytes).collect();
        Ok(Handover { message: wire::encode(&[&state, &about, &pages], files.len()), files })
    }

    /// Receives a handover that [`Handover::send`] sent. Reads nothing beyond it.
    ///
    /// # Errors
    /// [`Error::Snapshot`] names the fault of the message; [`Error::HostCpu`] as for [`Snapshot::open`].
    pub fn receive(from: &UnixStream) -> Result<Self> {
        let received = wire::receive(from, LARGEST_PART);
        let received = received.map_err(|source| Error::host("receive a VM from its parent", source))?;
        let wire::Received { parts: [state, about, pages], files } = received.map_err(wrong)?;
        let manifest::Manifest { metadata, config, machine, .. } =
            state::decode(Location::Memory.path(), &state)?;
        let about: HandoverHeader =
            serde_json::from_slice(&about).map_err(|source| wrong(format!("cannot be decoded: {source}")))?;
        let len = metadata.memory_bytes;
        let layered = config.devices.disks.iter().filter(|disk| disk.layer.is_some());
        if !layered.map(|disk| &disk.id).eq(&about.layers) {
            return Err(wrong("names layers that are not those of its disks"));
        }
        let expected = 1 + usize::from(about.over) + about.layers.len() + usize::from(about.working_set);
        if files.len() != expected {
            return Err(wrong(format!("has {} files, not {expected}", files.len())));
        }
        let mut files = files.into_iter();
        let base = match about.pack {
            None => CapturedBase::Whole(memory_file(files.next(), len)?.into()),
            Some(pack) => CapturedBase::Lazy(pack.open(files.next(), len)?),
        };
        let over = about.over.then(|| memory_file(files.next(), len).map(Arc::new)).transpose()?;
        let layers: BTreeMap<_, _> = about.layers.into_iter().zip(files.by_ref()).collect();
        for (id, layer) in &layers {
            is_regular(layer)
                .then_some(())
                .ok_or_else(|| wrong(format!("has a layer for disk {id} that is not a regular file")))?;
        }
        let working_set = files.next().map(|file| match is_regular(&file) {
            true => Ok(WorkingSetFile::shared(file, len)),
            false => Err(wrong("has a working set that is not a regular file")),
        });
        let working_set = working_set.transpose()?;
        let mut sets = Sets { bytes: &pages, memory: len };
        let over = match over {
            Some(file) => Some(OverlayPages { pages: sets.next()?, file }),
            None => None,
        };
        let lineage = match about.lineage {
            Some(base) => Some(Lineage { base, may_differ: PagesToCapture::NotBase(Some(sets.next()?)) }),
            None => None,
        };
        sets.end()?;
        let received = Self::in_memory((metadata, config, machine), (base, over), lineage, layers, None)?;
        received.with_working_set(working_set).received()
    }
}

impl Handover {
    /// Sends the handover, and waits until the receiver has taken it.
    ///
    /// # Errors
    /// The receiver is gone.
    pub fn send(&self, to: &UnixStream) -> Result<()> {
        wire::transmit(to, &self.message, &self.files)
            .map_err(|source| Error::host("hand a VM over to its child", source))
    }
}

/// The file under a VM's pages, and, if it is a pack, its description.
fn base_of(memory: &SnapshotMemory, fills: Option<&Unpack>) -> Result<(Arc<File>, Option<HandoverPack>)> {
    let (SnapshotMemory::Packed(packed), Some(unpack)) = (memory, fills) else {
        return Ok((memory.base()?, None));
    };
    let pager = match unpack {
        Unpack::ByPager(options) => Some(options.clone()),
        _ => None,
    };
    let pack = &packed.pack;
    let file = pack.file().try_clone();
    let file = file.map_err(|source| Error::file("open again", pack.name().display(), source))?;
    let about = HandoverPack { name: pack.name().to_owned(), file: MemoryFile::pack(pack.digest()), pager };
    Ok((Arc::new(file), Some(about)))
}

impl HandoverPack {
    /// Memory that is filled from the pack in `file`. Fetching a chunk verifies it.
    fn open(self, file: Option<File>, len: u64) -> Result<LazyMemory> {
        let file = file.ok_or_else(|| wrong("came without the pack of its memory"))?;
        let pack = Pack::open(file, &self.name)?;
        if (MemoryFile::pack(pack.digest()), pack.memory_len()) != (self.file, len) {
            return Err(wrong("came with a pack that is not the one it names"));
        }
        let unpack = self.pager.map_or(Unpack::OnTouch, Unpack::ByPager);
        Ok(LazyMemory { memory: Arc::new(SnapshotMemory::Packed(Packed::of(Arc::new(pack)))), unpack })
    }
}

/// Sets of pages, one after another.
struct Sets<'a> {
    bytes: &'a [u8],
    memory: u64,
}

impl Sets<'_> {
    fn next(&mut self) -> Result<Arc<PageSet>> {
        let found = self.bytes.split_at_checked(PageSet::bytes_len(self.memory) as usize);
        let (set, rest) = found.ok_or_else(|| wrong("lacks a list of pages"))?;
        self.bytes = rest;
        let set = PageSet::from_bytes(self.memory, set);
        set.map(Arc::new).ok_or_else(|| wrong("lists pages beyond the end of memory"))
    }

    fn end(self) -> Result<()> {
        self.bytes.is_empty().then_some(()).ok_or_else(|| wrong("has more lists of pages than it announces"))
    }
}

/// A descriptor of a file that never changes. A memfd that cannot be sealed, because its filler maps it
/// writable, is copied once it is complete.
fn unchanging(file: &File) -> io::Result<File> {
    match seal(file) {
        Ok(()) => read_only(file),
        Err(error) if matches!(error.kind(), ErrorKind::ResourceBusy | ErrorKind::PermissionDenied) => {
            let copy = fresh(file.metadata()?.len()).map_err(io::Error::other)?;
            sparse::whole(file, &copy)?;
            seal(&copy)?;
            read_only(&copy)
        }
        Err(error) => Err(error),
    }
}

/// A file of guest memory's length that never changes.
fn memory_file(file: Option<File>, len: u64) -> Result<File> {
    let file = file.ok_or_else(|| wrong("came without a file of its memory"))?;
    let unknown = |source| Error::host("look at shared guest memory", source);
    let metadata = file.metadata().map_err(unknown)?;
    if !metadata.is_file() {
        return Err(wrong("has a memory file that is not a regular file"));
    }
    // The file of a diff's pages has their list at its end.
    if metadata.len() < len {
        return Err(wrong(format!(
            "has a memory file of {} bytes for {len} bytes of memory",
            metadata.len()
        )));
    }
    match can_change(&file).map_err(unknown)? {
        true => Err(wrong("has a memory file that is not sealed against changes")),
        false => Ok(file),
    }
}

fn is_regular(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file())
}

fn wrong(problem: impl Into<String>) -> Error {
    Error::snapshot(Location::Memory.path(), problem)
}

#[cfg(test)]
mod tests;
