//! Layers of a store: one file each, however many images have it and however many pulls want it at once.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use super::Store;
use super::files::appear;
use super::stream::StreamWriter;
use crate::cancel::check;
use crate::digest::{Digest, Hashed};
use crate::erofs;
use crate::error::{Error, Result};
use crate::layer::{Layer, Record};
use crate::tree::Tree;
use crate::unpacked::{Limits, Unpacked};

/// The time between two looks at a layer that another makes.
const LOOK: Duration = Duration::from_millis(20);
/// The extension of files with streams.
const STREAM: &str = "stream";

/// A layer that a caller wants to have.
#[derive(Debug)]
pub enum Claim {
    /// It is here.
    Present,
    /// The caller makes it. Others wait for it.
    Missing(Partial),
}

/// A layer that is being made. It is gone if it is dropped before it is whole.
#[derive(Debug)]
pub struct Partial {
    digest: Digest,
    path: PathBuf,
    /// Its stream, which is being written too.
    pieces: PathBuf,
    target: PathBuf,
    file: File,
    is_whole: bool,
}

/// A compressed stream, as its descriptor names it.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Digest of the stream.
    pub digest: Digest,
    /// Its bytes.
    pub size: u64,
}

impl Store {
    /// Returns the file of a layer, named by the digest of its plain stream. It may be missing.
    ///
    /// # Errors
    /// The digest's algorithm is not supported.
    pub fn layer_path(&self, digest: &Digest) -> Result<PathBuf> {
        self.path("layers", digest, ".erofs")
    }

    pub(super) fn stream_path(&self, digest: &Digest) -> Result<PathBuf> {
        Ok(self.layer_path(digest)?.with_extension(STREAM))
    }

    /// Claims a layer. Waits while another process or thread makes it.
    ///
    /// # Errors
    /// The digest's algorithm is not supported, the host cannot make a file, or the wait is cancelled.
    pub fn claim_layer(&self, digest: &Digest, is_cancelled: &AtomicBool) -> Result<Claim> {
        let target = self.layer_path(digest)?;
        let path = self.path("partial", digest, ".erofs")?;
        loop {
            if target.exists() {
                return Ok(Claim::Present);
            }
            let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path);
            let file = file.map_err(Error::host("create", &path))?;
            while let Err(error) = file.try_lock() {
                match error {
                    TryLockError::WouldBlock => check(is_cancelled)?,
                    TryLockError::Error(error) => return Err(Error::host("lock", &path)(error)),
                }
                thread::sleep(LOOK);
            }
            // Meanwhile another may have finished the file, or given it up.
            if is_named(&file, &path) {
                let (pieces, digest) = (path.with_extension(STREAM), digest.clone());
                let partial = Partial { digest, path, pieces, target, file, is_whole: false };
                return Ok(if partial.target.exists() { Claim::Present } else { Claim::Missing(partial) });
            }
        }
    }

    /// Reads the files of a stored layer.
    pub(super) fn layer_tree(&self, digest: &Digest) -> Result<Tree> {
        let path = self.layer_path(digest)?;
        let file = File::open(&path).map_err(Error::host("open", &path))?;
        erofs::read(&file).map_err(|source| Error::Stored { path, source })
    }

    /// The number of blocks of a stored layer.
    pub(super) fn layer_blocks(&self, digest: &Digest) -> Result<u32> {
        let path = self.layer_path(digest)?;
        let len = fs::metadata(&path).map_err(Error::host("look at", &path))?.len();
        Ok(u32::try_from(len / erofs::BLOCK as u64).unwrap_or(u32::MAX))
    }
}

/// Tells whether a path still leads to an open file.
fn is_named(file: &File, path: &Path) -> bool {
    let of = |found: fs::Metadata| (found.dev(), found.ino());
    let (Ok(open), Ok(named)) = (file.metadata(), fs::metadata(path)) else { return false };
    of(open) == of(named)
}

impl Partial {
    /// Makes the layer of its stream, which may be compressed, and gives it its name. The stream must have
    /// the digest that names the layer and, if it is compressed, that of its descriptor.
    ///
    /// # Errors
    /// The stream is damaged or too large, or the host cannot write. The store is as before.
    pub fn fill(mut self, stream: impl Read, packed: Option<&Packed>, limits: Limits) -> Result<()> {
        self.file.set_len(0).map_err(Error::host("write", &self.path))?;
        let pieces = File::create(&self.pieces).map_err(Error::host("create", &self.pieces))?;
        let writing = Error::host("write", &self.pieces);
        let mut pieces = StreamWriter::new(pieces).map_err(writing)?;
        let layer = self.convert(stream, packed, limits, &mut pieces)?;
        pieces.finish().map_err(Error::host("write", &self.pieces))?;
        self.finish(&layer)?;
        // A layer that has its name has its stream.
        appear(&self.pieces, &self.target.with_extension(STREAM))?;
        appear(&self.path, &self.target)?;
        self.is_whole = true;
        Ok(())
    }

    fn convert(
        &self,
        mut stream: impl Read,
        packed: Option<&Packed>,
        limits: Limits,
        record: &mut dyn Record,
    ) -> Result<Layer> {
        let unreadable = |source: io::Error| Error::Layer {
            digest: self.digest.clone(),
            source: crate::tar::TarError::from(source).into(),
        };
        let mut outer = Hashed::new(&mut stream);
        let layer = {
            let mut plain = Hashed::new(Unpacked::new(&mut outer, limits).map_err(unreadable)?);
            let layer = Layer::read(&mut plain, &self.file, record);
            let layer = layer.map_err(|source| Error::Layer { digest: self.digest.clone(), source })?;
            expect(&format!("layer {}, unpacked,", self.digest), &self.digest, plain.finish().0)?;
            layer
        };
        if let Some(packed) = packed {
            io::copy(&mut outer, &mut io::sink()).map_err(unreadable)?;
            let (found, len) = outer.finish();
            expect(&format!("layer {}", packed.digest), &packed.digest, found)?;
            if len != packed.size {
                let problem = format!("it has {len} bytes, and its descriptor says {}", packed.size);
                return Err(Error::Document { what: format!("layer {}", packed.digest), problem });
            }
        }
        Ok(layer)
    }

    /// Adds metadata of the layer alone, so that it can be merged later, or mounted.
    fn finish(&self, layer: &Layer) -> Result<()> {
        let refused = |source| Error::Tree { what: format!("layer {}", self.digest), source };
        let written = erofs::append(&layer.tree, &self.file, layer.blocks, identity(&self.digest));
        let written = written.map_err(refused)?.and_then(|()| self.file.sync_all());
        written.map_err(Error::host("write", &self.path))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_whole {
            let _ = fs::remove_file(&self.pieces);
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn expect(what: &str, expected: &Digest, found: Digest) -> Result<()> {
    if *expected == found {
        return Ok(());
    }
    Err(Error::Digest { what: what.to_owned(), expected: expected.clone(), found })
}

/// The identity of the file system that a digest names.
pub(super) fn identity(digest: &Digest) -> [u8; 16] {
    let mut identity = [0; 16];
    for (byte, digits) in identity.iter_mut().zip(digest.digest().as_bytes().chunks(2)) {
        let digits = str::from_utf8(digits).unwrap_or_default();
        *byte = u8::from_str_radix(digits, 16).unwrap_or_default();
    }
    identity
}
