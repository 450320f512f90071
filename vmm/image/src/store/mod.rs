//! Images that are on this host.
//!
//! ```text
//! layers/HEX.erofs        a layer: its content, its own metadata; named by the digest of its plain stream
//!       /HEX.stream       all of the stream but that content
//! images/HEX/config.json  an image's configuration; named by its digest
//!           /image.json   its layers, and where they came from
//!           /metadata.erofs  its merged metadata: the first part of its disk; its layers are the others
//! names.json              images by name
//! partial/                what is being made; whoever makes a file has it locked
//! lock                    shared by those that add, exclusive for those that remove
//! ```
//!
//! A file appears whole or not at all: it is written into `partial`, synced and renamed.

mod acquire;
mod files;
mod images;
mod layers;
mod names;
mod record;
mod removal;
mod source;
mod stream;

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::digest::{Digest, is_known};
use crate::error::{Error, Result};
use crate::lock::Lock;
pub use acquire::{Progress, Silent, Stream, Wanted};
pub use images::{Image, MOST_LAYERS, NewImage, diff_ids};
pub use layers::{Claim, Packed, Partial};
pub use record::{ImageRecord, LayerRecord};
pub use removal::Removed;
pub use source::{Options, Source};

/// Images in a directory of the host.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

impl Store {
    /// Opens the store in a directory, which is made if it is missing.
    ///
    /// # Errors
    /// The host cannot make it.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self> {
        let root = root.into();
        for directory in ["layers", "images", "partial"] {
            let path = root.join(directory);
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
            made.map_err(Error::host("make directory", &path))?;
        }
        Ok(Self { root })
    }

    /// Returns the store's directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Keeps what is stored, while images are added or used. Waits while something is removed.
    ///
    /// # Errors
    /// The host cannot lock the store.
    pub fn keep(&self) -> Result<Lock> {
        Lock::shared(&self.root.join("lock"))
    }

    /// Waits until nobody adds, and lets nobody add meanwhile.
    fn alone(&self) -> Result<Lock> {
        Lock::alone(&self.root.join("lock"))
    }

    /// The path of what a digest names.
    fn path(&self, directory: &str, digest: &Digest, extension: &str) -> Result<PathBuf> {
        if !is_known(digest) {
            return Err(Error::Algorithm(digest.clone()));
        }
        Ok(self.root.join(directory).join(format!("{}{extension}", digest.digest())))
    }
}
