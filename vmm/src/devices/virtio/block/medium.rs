//! Storage of a disk: an image, or a layer over one.

use std::ops::{Deref, DerefMut};

use super::host_file::{Claim, OpenMode};
use super::image_files::ImageFiles;
use super::layer::Overlay;
use super::lower_files::LowerFiles;
use super::storage::Storage;
use crate::config::devices::DiskConfig;
use crate::error::Result;

/// Storage of a disk.
#[derive(Debug)]
pub enum Medium {
    /// An image that the guest uses directly.
    Image(ImageFiles),
    /// A read-only image, and a layer with the guest's writes.
    Layered(Box<Overlay>),
}

impl Medium {
    /// Opens the files of a disk.
    ///
    /// # Errors
    /// Those of [`ImageFiles::open`], [`LowerFiles::open`] and [`Overlay::open`].
    pub fn open(config: &DiskConfig, claim: Claim) -> Result<Self> {
        let DiskConfig { id, read_only, beneath, layer, layer_size, .. } = config;
        let Some(layer) = layer else {
            let wanted = if *read_only { OpenMode::Read } else { OpenMode::Write };
            return ImageFiles::open(config, wanted, claim).map(Self::Image);
        };
        let wanted = if *read_only { OpenMode::Read } else { OpenMode::Create };
        let base = ImageFiles::open(config, OpenMode::Read, Claim::Exclusive)?;
        let lower = LowerFiles::open(id, base, beneath.as_ref(), wanted)?;
        Ok(Self::Layered(Box::new(Overlay::open(id, lower, (layer, *layer_size), wanted)?)))
    }

    /// Returns the overlay of a disk with a layer.
    pub fn overlay(&self) -> Option<&Overlay> {
        match self {
            Self::Image(_) => None,
            Self::Layered(overlay) => Some(overlay),
        }
    }

    /// Returns the overlay of a disk with a layer, mutably.
    pub fn overlay_mut(&mut self) -> Option<&mut Overlay> {
        match self {
            Self::Image(_) => None,
            Self::Layered(overlay) => Some(overlay),
        }
    }
}

impl Deref for Medium {
    type Target = dyn Storage;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Image(ImageFiles::One(file)) => file,
            Self::Image(ImageFiles::Parts(parts)) => &**parts,
            Self::Layered(overlay) => &**overlay,
        }
    }
}

impl DerefMut for Medium {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Image(ImageFiles::One(file)) => file,
            Self::Image(ImageFiles::Parts(parts)) => &mut **parts,
            Self::Layered(overlay) => &mut **overlay,
        }
    }
}
