//! Another file in the place of a disk's, like another medium in a drive. The guest sees the same device with
//! another content, and maybe another capacity.

use super::Block;
use super::host_file::Claim;
use super::medium::Medium;
use crate::config::devices::DiskConfig;
use crate::error::{Error, Result};

/// An opened file for a disk that has another one so far.
#[derive(Debug)]
pub struct Replacement {
    name: String,
    medium: Medium,
}

impl Replacement {
    /// Opens the file of `config`, the disk's configuration with its new path, and locks it against others
    /// unless they may have it too.
    ///
    /// # Errors
    /// As [`Block::open`]; or the disk has a layer, which belongs to its former file.
    pub fn open(config: &DiskConfig, is_shared: bool) -> Result<Self> {
        let id = &config.id;
        if config.layer.is_some() {
            let problem = format!("{id}: has a layer over its file, which therefore cannot be replaced");
            return Err(Error::config("disks", problem));
        }
        let claim = if is_shared { Claim::Shared } else { Claim::Exclusive };
        Ok(Self { name: config.image_name(), medium: Medium::open(config, claim)? })
    }
}

impl Block {
    /// Takes the file in the place of its own, with its capacity. The device is halted. The caller then tells
    /// the driver that the configuration changed.
    ///
    /// # Errors
    /// The file has less than one sector, or the host has no descriptor left. The disk is as it was.
    pub fn replace(&mut self, Replacement { name, medium }: Replacement) -> Result<()> {
        let len = medium.len().map_err(|source| Error::file("read metadata of disk", &name, source))?;
        let capacity = self.sectors_of(&name, len)?;
        if let Some(uring) = &mut self.uring {
            uring.replace_files(&self.id, &*medium)?;
        }
        (self.name, self.storage, self.capacity) = (name, medium, capacity);
        (self.is_direct, self.is_replaced) = (false, true);
        Ok(())
    }
}
