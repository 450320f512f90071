//! Storage of a disk: one image, or a layer over one.

use std::ops::{Deref, DerefMut};

use super::host_file::HostFile;
use super::layer::Overlay;
use super::storage::Storage;

/// Storage of a disk.
#[derive(Debug)]
pub enum Medium {
    /// An image that the guest uses directly.
    Image(HostFile),
    /// A read-only image, and a layer with the guest's writes.
    Layered(Box<Overlay>),
}

impl Medium {
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
            Self::Image(image) => image,
            Self::Layered(overlay) => &**overlay,
        }
    }
}

impl DerefMut for Medium {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Image(image) => image,
            Self::Layered(overlay) => &mut **overlay,
        }
    }
}
