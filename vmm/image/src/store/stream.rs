//! Streams of layers, without the content that the layers have: `layers/HEX.stream`.
//!
//! A file begins with the length of the plain stream, 8 bytes. Pieces follow, compressed by zstd: a length of
//! 8 bytes, and either so many literal bytes, or, if the highest bit of the length is set, the offset of so
//! many bytes in the layer's file.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use zstd_safe::{CCtx, InBuffer, OutBuffer};

use super::Store;
use crate::digest::{Digest, Hashed};
use crate::error::{Error, Result};
use crate::layer::Record;
use crate::unpacked::{Limits, Unpacked};

/// Marks a piece that is in the layer's file.
const IN_LAYER: u64 = 1 << 63;
/// Literal bytes that are kept before they become a piece.
const LITERAL: usize = 64 << 10;

/// Writes the pieces of a stream.
pub(super) struct StreamWriter {
    packed: Packer,
    literal: Vec<u8>,
    /// Offset and length of content that may go on.
    content: (u64, u64),
    len: u64,
}

impl StreamWriter {
    pub(super) fn new(mut file: File) -> io::Result<Self> {
        file.seek(SeekFrom::Start(8))?;
        let packed =
            Packer { file: BufWriter::new(file), context: CCtx::create(), buffer: vec![0; 64 << 10] };
        Ok(Self { packed, literal: Vec::new(), content: (0, 0), len: 0 })
    }

    fn flush_literal(&mut self) -> io::Result<()> {
        if !self.literal.is_empty() {
            self.packed.write(&(self.literal.len() as u64).to_le_bytes())?;
            self.packed.write(&self.literal)?;
            self.literal.clear();
        }
        Ok(())
    }

    fn flush_content(&mut self) -> io::Result<()> {
        let (offset, len) = std::mem::take(&mut self.content);
        if len > 0 {
            self.packed.write(&(len | IN_LAYER).to_le_bytes())?;
            self.packed.write(&offset.to_le_bytes())?;
        }
        Ok(())
    }

    /// Ends the file, and waits until the disk has it.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.flush_literal()?;
        self.flush_content()?;
        let file = self.packed.finish()?;
        file.write_all_at(&self.len.to_le_bytes(), 0)?;
        file.sync_all()
    }
}

impl Record for StreamWriter {
    fn literal(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.flush_content()?;
        self.len += bytes.len() as u64;
        self.literal.extend(bytes);
        if self.literal.len() >= LITERAL { self.flush_literal() } else { Ok(()) }
    }

    fn content(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.flush_literal()?;
        self.len += len;
        if self.content.0 + self.content.1 == offset && self.content.1 > 0 {
            self.content.1 += len;
            return Ok(());
        }
        self.flush_content()?;
        self.content = (offset, len);
        Ok(())
    }
}

/// Compresses what is written.
struct Packer {
    file: BufWriter<File>,
    context: CCtx<'static>,
    buffer: Vec<u8>,
}

impl Packer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut input = InBuffer::around(bytes);
        while input.pos() < bytes.len() {
            let mut output = OutBuffer::around(&mut self.buffer[..]);
            self.context.compress_stream(&mut output, &mut input).map_err(failed)?;
            let made = output.pos();
            self.file.write_all(&self.buffer[..made])?;
        }
        Ok(())
    }

    fn finish(mut self) -> io::Result<File> {
        loop {
            let mut output = OutBuffer::around(&mut self.buffer[..]);
            let left = self.context.end_stream(&mut output).map_err(failed)?;
            let made = output.pos();
            self.file.write_all(&self.buffer[..made])?;
            if left == 0 {
                return Ok(self.file.into_inner()?);
            }
        }
    }
}

fn failed(code: usize) -> io::Error {
    io::Error::other(zstd_safe::get_error_name(code))
}

impl Store {
    /// Returns the length of a layer's plain stream.
    ///
    /// # Errors
    /// The layer is not here.
    pub fn stream_len(&self, layer: &Digest) -> Result<u64> {
        let path = self.stream_path(layer)?;
        let mut len = [0; 8];
        let read = File::open(&path).and_then(|file| file.read_exact_at(&mut len, 0));
        read.map_err(Error::host("read", &path))?;
        Ok(u64::from_le_bytes(len))
    }

    /// Writes the plain stream of a layer, as it once came.
    ///
    /// # Errors
    /// The layer is not here, its files are damaged, or `to` cannot be written.
    pub fn write_stream(&self, layer: &Digest, to: &mut impl Write, target: &Path) -> Result<()> {
        let (path, layer_path) = (self.stream_path(layer)?, self.layer_path(layer)?);
        let open = |path: &Path| File::open(path).map_err(Error::host("open", path));
        let (mut pieces, blob) = (open(&path)?, open(&layer_path)?);
        pieces.seek(SeekFrom::Start(8)).map_err(Error::host("read", &path))?;
        let limits = Limits { ratio: u64::MAX, ..Limits::default() };
        let pieces = Unpacked::new(pieces, limits).map_err(Error::host("read", &path))?;
        let mut pieces = BufReader::new(pieces);
        let mut stream = Hashed::new(Pieces { pieces: &mut pieces, blob: &blob, left: 0, at: None });
        let mut buffer = vec![0; 128 << 10];
        loop {
            match stream.read(&mut buffer).map_err(Error::host("make the stream again of", &layer_path))? {
                0 => break,
                count => to.write_all(&buffer[..count]).map_err(Error::host("write", target))?,
            }
        }
        let found = stream.finish().0;
        if found == *layer {
            return Ok(());
        }
        Err(Error::Digest { what: format!("stored layer {layer}"), expected: layer.clone(), found })
    }
}

/// A stream that is made again of its pieces.
struct Pieces<'a, R> {
    pieces: &'a mut R,
    blob: &'a File,
    /// Bytes of the current piece.
    left: u64,
    /// Where they are in the layer's file, unless they are literal.
    at: Option<u64>,
}

impl<R: Read> Read for Pieces<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.left == 0 {
            let mut word = [0; 8];
            if self.pieces.read(&mut word[..1])? == 0 {
                return Ok(0);
            }
            self.pieces.read_exact(&mut word[1..])?;
            let len = u64::from_le_bytes(word);
            self.left = len & !IN_LAYER;
            self.at = None;
            if len & IN_LAYER != 0 {
                self.pieces.read_exact(&mut word)?;
                self.at = Some(u64::from_le_bytes(word));
            }
        }
        let most = usize::try_from(self.left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let count = match self.at {
            Some(at) => self.blob.read_at(&mut buffer[..most], at)?,
            None => self.pieces.read(&mut buffer[..most])?,
        };
        if count == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count as u64;
        self.at = self.at.map(|at| at + count as u64);
        Ok(count)
    }
}
