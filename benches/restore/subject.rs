//! The restored snapshot of the bench guest, in volt-vmm's form and in the floor's.

use std::fs;
use std::path::{Path, PathBuf};

use volt_benches::scratch::Scratch;
use volt_benches::{OrSay, Result, snapshots};

use crate::digest;

/// See the module.
pub struct Subject {
    /// Guest memory.
    pub mib: u64,
    /// The snapshot.
    pub dir: PathBuf,
    /// Its state, digested.
    pub digest: Vec<u8>,
    /// The same in a file.
    pub digest_file: PathBuf,
}

impl Subject {
    /// Boots the guest and snapshots it.
    ///
    /// # Errors
    /// volt-vmm fails, or its snapshot is not one that this benchmark knows.
    pub fn make(volt_vmm: &Path, scratch: &Scratch, mib: u64) -> Result<Self> {
        let dir = snapshots::by_volt_vmm(volt_vmm, scratch, &format!("volt-{mib}"), mib, &[])?;
        let digest = digest::of(&dir)?;
        let digest_file = scratch.path(&format!("digest-{mib}"));
        fs::write(&digest_file, &digest).or_say("write a digest")?;
        Ok(Self { mib, dir, digest, digest_file })
    }

    /// The memory file of the snapshot.
    pub fn memory_file(&self) -> PathBuf {
        self.dir.join("memory.snap")
    }
}
