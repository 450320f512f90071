//! A layer of an image: a tar stream as a tree, and a blob with the content of its files.
//!
//! The blob is a file that begins with a free block, for a superblock. Content follows in whole blocks, and
//! what a sparse file does not have is a hole.

mod blob;
mod builder;
pub(crate) mod marks;
mod path;
mod split;

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::rc::Rc;

use thiserror::Error;

use crate::tar::{Content, Reader, TarError};
use crate::tree::{Kind, Tree};
use blob::Blob;
use builder::Builder;
use split::Split;
pub use split::{Forget, Record};

/// A layer whose content is in a blob.
#[derive(Debug)]
pub struct Layer {
    /// The files. A whiteout is a character device 0:0. An opaque directory has the attribute of overlayfs,
    /// and a directory that the stream has only in paths of others has one of volt-vmm.
    pub tree: Tree,
    /// Blocks of the blob, with the free one.
    pub blocks: u32,
}

/// Why a stream is no layer.
#[derive(Debug, Error)]
pub enum LayerError {
    /// The stream cannot be read.
    #[error(transparent)]
    Tar(#[from] TarError),
    /// The content of a file cannot be read or written.
    #[error("cannot store the content of {path}")]
    Content {
        /// The file's path in the stream.
        path: String,
        /// The failure.
        source: io::Error,
    },
    /// A path leads out of the tree, or is no path.
    #[error("{0} is no path within a layer")]
    Path(String),
    /// A hard link names what the layer does not have, or a directory.
    #[error("{path} is a hard link to {target}, which is no file of this layer")]
    Link {
        /// The link's path.
        path: String,
        /// The path that it names.
        target: String,
    },
    /// The files, or their names and attributes, would take too much memory.
    #[error("the layer has more than {0}")]
    Crowded(String),
    /// The content exceeds 16 TiB.
    #[error("the layer exceeds 16 TiB")]
    TooLarge,
}

impl Layer {
    /// Reads a stream that is not compressed to its end, and writes the content of its files to an empty
    /// file. `record` gets to know how the stream is made of that.
    ///
    /// # Errors
    /// The stream is no layer, or the host cannot write. The file then has a part of the content.
    pub fn read(stream: impl Read, blob: &File, record: &mut dyn Record) -> Result<Self, LayerError> {
        let place = Rc::new(Cell::new(None));
        let stream = Split { inner: stream, record, place: Rc::clone(&place) };
        let (mut reader, mut builder, mut blob) =
            (Reader::new(stream), Builder::new(), Blob::new(blob, place));
        while let Some(entry) = reader.next_entry()? {
            let kind = match &entry.content {
                Content::File { size, parts } => {
                    let failed = |source| LayerError::Content { path: shown(&entry.path), source };
                    blob.reserve(*size).ok_or(LayerError::TooLarge)?;
                    Kind::File {
                        size: *size,
                        block: blob.store(*size, parts, reader.content()).map_err(failed)?,
                    }
                }
                Content::HardLink(target) => {
                    builder.link(&entry.path, target)?;
                    continue;
                }
                Content::Symlink(target) => Kind::Symlink(target.clone()),
                Content::Directory => Kind::Directory(Default::default()),
                Content::BlockDevice(device) => Kind::BlockDevice(*device),
                Content::CharacterDevice(device) => Kind::CharacterDevice(*device),
                Content::Fifo => Kind::Fifo,
            };
            builder.add(entry, kind)?;
        }
        // More records of zeros follow, and whatever else.
        io::copy(&mut reader.into_input(), &mut io::sink()).map_err(TarError::from)?;
        let failed = |source| LayerError::Content { path: "the last file".to_owned(), source };
        let blocks = blob.finish().map_err(failed)?;
        Ok(Self { tree: builder.finish(), blocks })
    }
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
