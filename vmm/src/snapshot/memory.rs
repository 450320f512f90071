//! The memory of a snapshot, raw or packed, and the base that the VMs restored from it get.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::SealFlags;

use super::pack::Pack;
use super::pack::walk::unpack;
use super::reader::open_regular;
use super::{MEMORY_FILE, PACK_FILE, STATE_FILE};
use crate::error::{Error, Result};
use crate::memory::backing::fresh;
use crate::sync::lock;
use crate::timing::step_done;

/// See the module.
#[derive(Debug)]
pub enum Memory {
    /// `memory.snap`, and where it is.
    Raw(Arc<File>, PathBuf),
    /// `memory.pack`.
    Packed(Packed),
}

/// A pack, and its content once someone needs all of it.
#[derive(Debug)]
pub struct Packed {
    pub pack: Pack,
    base: Mutex<Option<Arc<File>>>,
}

impl Memory {
    /// Opens what the snapshot at `snapshot`, of `len` bytes of memory, has.
    ///
    /// # Errors
    /// It has none, or two, or one that does not belong to it or is no memory file at all.
    pub fn open(snapshot: &Path, len: u64) -> Result<Self> {
        let (raw, packed) = (snapshot.join(MEMORY_FILE), snapshot.join(PACK_FILE));
        let (is_raw, is_packed) = (raw.exists(), packed.exists());
        if is_raw && is_packed {
            return Err(Error::snapshot(
                packed,
                format!("stands beside a {MEMORY_FILE}, and only one can be its memory"),
            ));
        }
        let path = if is_packed { packed } else { raw };
        let (file, found) = open_regular(snapshot, &path)?;
        let memory = if is_packed {
            let pack = Pack::open(file, &path)?;
            let found = pack.memory_len();
            Self::Packed(Packed { pack, base: Mutex::new(None) }).of_len(
                &path,
                found,
                len,
                "holds {} bytes of memory",
            )
        } else {
            Self::Raw(Arc::new(file), path.clone()).of_len(&path, found, len, "is {} bytes long")
        };
        step_done("memory open");
        memory
    }

    fn of_len(self, path: &Path, found: u64, expected: u64, what: &str) -> Result<Self> {
        if found == expected {
            return Ok(self);
        }
        let what = what.replace("{}", &found.to_string());
        Err(Error::snapshot(path, format!("{what}, but {STATE_FILE} says {expected}")))
    }

    /// What a restored VM has under its own pages: nobody writes to it. Of a packed memory, the first one to ask has it unpacked, all
    /// of it and verified, into memory that is then sealed; those after it share that. (To fill it on demand instead, begin here.)
    ///
    /// # Errors
    /// The pack is damaged, or the host has no memory for it.
    pub fn base(&self) -> Result<Arc<File>> {
        let Packed { pack, base } = match self {
            Self::Raw(file, _) => return Ok(Arc::clone(file)),
            Self::Packed(packed) => packed,
        };
        let mut base = lock(base);
        if let Some(base) = &*base {
            return Ok(Arc::clone(base));
        }
        let file = fresh(pack.memory_len())?;
        unpack(pack, (&file, Path::new("unpacked guest memory")), &|_| ())?;
        let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)
            .map_err(|source| Error::host("seal unpacked guest memory", source))?;
        step_done("memory unpack");
        Ok(Arc::clone(base.insert(Arc::new(file))))
    }
}
