//! The crate's error. Its text names the act and the object, and never repeats its source.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::digest::Digest;
use crate::erofs::{ReadError, Refusal};
use crate::layer::LayerError;

/// Result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an image cannot be stored, found or removed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of the host cannot be opened, read, written or renamed.
    #[error("cannot {act} {}", path.display())]
    Host {
        /// The act, such as `write`.
        act: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A layer's stream is damaged, or its files cannot be stored.
    #[error("cannot store layer {digest}")]
    Layer {
        /// The layer's digest without compression.
        digest: Digest,
        /// The failure.
        source: LayerError,
    },
    /// A layer or a directory has what EROFS cannot have.
    #[error("cannot make a file system of {what}")]
    Tree {
        /// The layer, image or directory.
        what: String,
        /// The reason.
        source: Refusal,
    },
    /// A stored layer is damaged.
    #[error("cannot read {}: remove the images that have this layer, and pull them again", path.display())]
    Stored {
        /// The layer's file.
        path: PathBuf,
        /// The fault.
        source: ReadError,
    },
    /// A file of a directory changed after it was listed.
    #[error("{} changed while its directory was packed: start again once nothing writes there", .0.display())]
    Changed(PathBuf),
    /// Content is not that of its digest.
    #[error("{what} has the digest {found}, and {expected} is expected: it is damaged or was replaced")]
    Digest {
        /// The content.
        what: String,
        /// The digest by which it is named.
        expected: Digest,
        /// The digest that it has.
        found: Digest,
    },
    /// A digest is of an algorithm that is not supported.
    #[error("digest {0} is not supported: only sha256 is")]
    Algorithm(Digest),
    /// A manifest, an index or a configuration is malformed, or asks for what is not supported.
    #[error("{what}: {problem}")]
    Document {
        /// The document.
        what: String,
        /// The fault.
        problem: String,
    },
    /// The caller cancelled the act.
    #[error("the act was cancelled")]
    Cancelled,
    /// A registry does not answer as asked.
    #[error(transparent)]
    Remote(Box<dyn std::error::Error + Send + Sync>),
    /// A name is no reference of an image.
    #[error("{name:?} is no name of an image: {problem}")]
    Name {
        /// The text.
        name: String,
        /// The fault.
        problem: String,
    },
    /// No stored image has a name.
    #[error("no image has the name {0}; volt-vmm image ls lists those that are here")]
    Unknown(String),
    /// A virtual machine uses an image.
    #[error("image {0} is used by a virtual machine: stop it first; volt-vmm ps lists them")]
    Used(String),
    /// More than one stored image has a digest that begins so.
    #[error("more than one image has a digest that begins with {0}: give more of it")]
    Ambiguous(String),
}

impl Error {
    /// Makes an error of a host's answer about a file.
    pub(crate) fn host(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Host { act, path, source }
    }
}
