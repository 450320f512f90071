//! The storage of a disk: one image, or a layer over one.

use std::ops::{Deref, DerefMut};

use super::host_file::HostFile;
use super::layer::Overlay;
use super::storage::Storage;

/// See the module.
#[derive(Debug)]
pub enum Medium {
    /// An image that the guest reads and writes.
    Image(HostFile),
    /// An image that is only read, and a layer that has what the guest wrote.
    Layered(Box<Overlay>),
}

impl Medium {
    /// The storage with its layer, if there is one.
    pub fn overlay(&self) -> Option<&Overlay> {
        match self {
            Self::Image(_) => None,
            Self::Layered(overlay) => Some(overlay),
        }
    }

    /// As [`Medium::overlay`].
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
