//! Opens a pack and reads its chunks, from any number of threads at once. Each thread has a [`Decoder`].

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::checksum;
use super::checksum::ByteDigest;
use super::codec::{Decoder, Encoding};
use super::footer;
use super::footer::Footer;
use super::geometry::{ENTRIES, Geometry};
use super::index::{BLOCK, BlockTable, IndexBlock, IndexEntry, TABLE_STEP};
use crate::error::{Error, Result};
use crate::progress::Progress;

/// Bytes of stored chunks read at once by [`Pack::verify_stored`].
const STEP: usize = 1 << 20;
/// Steps of a table read at once.
const TABLE_STEPS: usize = 16;

/// An open pack.
#[derive(Debug)]
pub struct Pack {
    file: File,
    /// Name of the file, for errors.
    name: PathBuf,
    footer: Footer,
    table: BlockTable,
    blocks: IndexBlocks,
}

/// Blocks of the index in a leaf of [`IndexBlocks`].
const LEAF: u32 = 256;

/// Blocks of the index that were read. Only the footer tells their number, so a leaf of them takes memory
/// from its first use on.
#[derive(Debug)]
struct IndexBlocks {
    leaves: Box<[OnceLock<IndexLeaf>]>,
    /// A bit for each block that is known to be zeros.
    zeros: Box<[AtomicU64]>,
}

/// Blocks with stored chunks.
type IndexLeaf = Box<[OnceLock<IndexBlock>]>;

impl IndexBlocks {
    fn new(count: u32) -> Self {
        let leaves = (0..count.div_ceil(LEAF)).map(|_| OnceLock::new()).collect();
        Self { leaves, zeros: (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Block `number`, or nothing if it is zeros. The first call reads it.
    fn get(
        &self,
        number: u32,
        read: impl FnOnce() -> Result<Option<IndexBlock>>,
    ) -> Result<Option<&IndexBlock>> {
        let known = self.leaves[(number / LEAF) as usize].get();
        let known = known.and_then(|leaf| leaf[(number % LEAF) as usize].get());
        if known.is_some() {
            return Ok(known);
        }
        let (zeros, bit) = (&self.zeros[(number / 64) as usize], 1 << (number % 64));
        if zeros.load(Ordering::Relaxed) & bit != 0 {
            return Ok(None);
        }
        let Some(block) = read()? else {
            zeros.fetch_or(bit, Ordering::Relaxed);
            return Ok(None);
        };
        let leaf = || (0..LEAF).map(|_| OnceLock::new()).collect();
        let leaf = self.leaves[(number / LEAF) as usize].get_or_init(leaf);
        // Another thread may have read the same block first.
        Ok(Some(leaf[(number % LEAF) as usize].get_or_init(|| block)))
    }
}

/// Kind of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkKind {
    /// All zeros, and not stored.
    Zero,
    /// Stored in the file.
    Stored {
        /// Encoding of the bytes.
        encoding: Encoding,
        /// Bytes in the file.
        len: u32,
        /// The earlier chunk whose bytes this chunk shares.
        same_as: Option<u32>,
    },
}

/// The place of a chunk's stored bytes.
struct ChunkPlace {
    encoding: Encoding,
    offset: u64,
    len: u32,
    checksum: u64,
    same_as: Option<u32>,
}

impl Pack {
    /// Opens the pack in `file`, called `name` in errors. Verifies the footer and the table, which cover the
    /// rest.
    ///
    /// # Errors
    /// [`Error::Snapshot`]: the file is no pack, is damaged, or has a newer version.
    pub fn open(file: File, name: &Path) -> Result<Self> {
        let failed = |source| Error::file("read", name.display(), source);
        let wrong = |problem| Error::snapshot(name, problem);
        let len = file.metadata().map_err(failed)?.len();
        if len < footer::SHORTEST as u64 {
            return Err(wrong(format!("is cut off or not a pack: it has only {len} bytes")));
        }
        let mut bytes = [0; footer::LEN];
        let end = &mut bytes[..len.min(footer::LEN as u64) as usize];
        file.read_exact_at(end, len - end.len() as u64).map_err(failed)?;
        let footer = Footer::from_bytes(end, len).map_err(wrong)?;
        let (table, digest) = read_table(&file, &footer).map_err(failed)?;
        if digest != footer.digest {
            return Err(wrong("is damaged: the digest of its table is wrong".to_owned()));
        }
        table.check(footer.data_len).map_err(wrong)?;
        let blocks = IndexBlocks::new(footer.geometry.blocks());
        Ok(Self { file, name: name.to_owned(), footer, table, blocks })
    }

    /// The lengths of memory and chunks.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.footer.geometry
    }

    /// Bytes of a chunk.
    #[must_use]
    pub fn chunk_len(&self) -> u32 {
        self.footer.geometry.chunk_len()
    }

    /// Bytes of the memory.
    #[must_use]
    pub fn memory_len(&self) -> u64 {
        self.footer.geometry.memory_len()
    }

    /// Bytes of all stored chunks.
    #[cfg(any(feature = "internal", test))]
    #[must_use]
    pub fn data_len(&self) -> u64 {
        self.footer.data_len
    }

    /// Bytes of index, table and footer.
    #[must_use]
    pub fn index_len(&self) -> u64 {
        self.footer.table_at() - self.footer.index_at() + (self.footer.table_len() + self.footer.len()) as u64
    }

    /// Format version of the pack.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.footer.version()
    }

    /// Identifies the whole content; in version 2, every stored byte. Equal memory that is packed in the same
    /// way has equal digests.
    #[must_use]
    pub fn digest(&self) -> u128 {
        self.footer.digest
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Name of the file in errors.
    #[must_use]
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// Bytes of the chunks that are not zero: the memory that unpacking all of it takes.
    ///
    /// # Errors
    /// The index is damaged or cannot be read.
    pub fn populated(&self) -> Result<u64> {
        let mut bytes = 0;
        self.each_populated(|range| bytes += range.end - range.start)?;
        Ok(bytes)
    }

    /// Calls `each` with the memory range of every chunk that is not zero, in order.
    ///
    /// # Errors
    /// The index is damaged or cannot be read.
    pub fn each_populated(&self, mut each: impl FnMut(Range<u64>)) -> Result<()> {
        let geometry = self.footer.geometry;
        for number in 0..geometry.blocks() {
            let first = number * ENTRIES;
            if let Some(block) = self.block(first)? {
                let chunks = (0..geometry.entries_of(number)).map(|entry| first + entry);
                let stored = chunks.filter(|chunk| block.entry(*chunk) != IndexEntry::Zero);
                stored.for_each(|chunk| each(geometry.range(chunk)));
            }
        }
        Ok(())
    }

    /// Kind of a chunk.
    ///
    /// # Errors
    /// The chunk's block of the index is damaged or cannot be read.
    ///
    /// # Panics
    /// `chunk` is beyond the last one.
    pub fn kind(&self, chunk: u32) -> Result<ChunkKind> {
        Ok(self.place(chunk)?.map_or(ChunkKind::Zero, |ChunkPlace { encoding, len, same_as, .. }| {
            ChunkKind::Stored { encoding, len, same_as }
        }))
    }

    /// Reads, decodes and verifies a chunk. `into` has the chunk's length. After an error its content is
    /// undefined.
    ///
    /// # Errors
    /// The chunk or its entry in the index is damaged, or cannot be read.
    ///
    /// # Panics
    /// `chunk` is beyond the last one, or `into` has another length.
    pub fn read_chunk(&self, chunk: u32, into: &mut [u8], decoder: &mut Decoder) -> Result<()> {
        if !self.read_unless_zero(chunk, into, decoder)? {
            into.fill(0);
        }
        Ok(())
    }

    /// As [`Pack::read_chunk`], except that a zero chunk leaves `into` unchanged. Returns whether the chunk
    /// is stored.
    ///
    /// # Errors
    /// As [`Pack::read_chunk`].
    ///
    /// # Panics
    /// As [`Pack::read_chunk`].
    pub fn read_unless_zero(&self, chunk: u32, into: &mut [u8], decoder: &mut Decoder) -> Result<bool> {
        assert_eq!(into.len(), self.footer.geometry.len_of(chunk), "a buffer for chunk {chunk}");
        let Some(ChunkPlace { encoding, offset, len, checksum, .. }) = self.place(chunk)? else {
            return Ok(false);
        };
        if encoding == Encoding::Raw {
            self.read(into, offset)?;
        } else {
            let len = len as usize; // shorter than a chunk, as the block was verified
            self.read(decoder.room(len), offset)?;
            decoder.decode(encoding, len, into).map_err(|why| self.damaged(chunk, &why))?;
        }
        if checksum::of(into) == checksum {
            Ok(true)
        } else {
            Err(self.damaged(chunk, "its content does not match its checksum"))
        }
    }

    /// Checks every byte before the index against the digest of stored bytes, and that zeros follow the
    /// chunks. A changed byte of a compressed chunk may decode to the same content. A pack of version 1 has
    /// no such digest.
    ///
    /// # Errors
    /// A byte differs or cannot be read, or [`Error::Cancelled`].
    pub fn verify_stored(&self, progress: &Progress) -> Result<()> {
        let mut zeros = vec![0; (self.footer.index_at() - self.footer.data_len) as usize];
        self.read(&mut zeros, self.footer.data_len)?;
        if zeros.iter().any(|byte| *byte != 0) {
            return Err(Error::snapshot(&self.name, "is damaged: the padding before its index is not zero"));
        }
        let Some(stored) = self.footer.stored else { return Ok(()) };
        let (mut digest, mut at, mut buffer) = (ByteDigest::default(), 0, vec![0; STEP]);
        while at < self.footer.data_len {
            let step = &mut buffer[..(self.footer.data_len - at).min(STEP as u64) as usize];
            self.read(step, at)?;
            digest.add(step);
            at += step.len() as u64;
            progress.add(step.len() as u64)?;
        }
        if digest.finish() == stored {
            return Ok(());
        }
        let problem = "is damaged: its stored bytes have changed, although its chunks decode to the right \
                       content";
        Err(Error::snapshot(&self.name, problem))
    }

    /// Bytes that [`Pack::verify_stored`] reads and counts.
    pub(crate) fn verified_len(&self) -> u64 {
        self.footer.stored.map_or(0, |_| self.footer.data_len)
    }

    fn place(&self, chunk: u32) -> Result<Option<ChunkPlace>> {
        let Some(block) = self.block(chunk)? else { return Ok(None) };
        match block.entry(chunk) {
            IndexEntry::Zero => Ok(None),
            IndexEntry::Stored { encoding, place, len, checksum } => {
                Ok(Some(ChunkPlace { encoding, offset: block.offset(place), len, checksum, same_as: None }))
            }
            IndexEntry::Same { of, checksum: here } => {
                let block = self.block(of)?;
                match block.map(|block| (block, block.entry(of))) {
                    Some((block, IndexEntry::Stored { encoding, place, len, checksum }))
                        if checksum == here && self.same_len(chunk, of) =>
                    {
                        Ok(Some(ChunkPlace {
                            encoding,
                            offset: block.offset(place),
                            len,
                            checksum,
                            same_as: Some(of),
                        }))
                    }
                    _ => Err(self.damaged(
                        chunk,
                        &format!("its index entry refers to chunk {of}, which does not match it"),
                    )),
                }
            }
        }
    }

    fn same_len(&self, chunk: u32, other: u32) -> bool {
        self.footer.geometry.len_of(chunk) == self.footer.geometry.len_of(other)
    }

    /// The block of a chunk, or nothing if it is zeros. The first use reads and verifies it.
    fn block(&self, chunk: u32) -> Result<Option<&IndexBlock>> {
        let geometry = &self.footer.geometry;
        assert!(chunk < geometry.chunks(), "there are {} chunks, and no number {chunk}", geometry.chunks());
        let number = chunk / ENTRIES;
        self.blocks.get(number, || {
            let mut bytes = Box::new([0; BLOCK]);
            self.read(&mut bytes[..], self.footer.index_at() + u64::from(number) * BLOCK as u64)?;
            IndexBlock::new(bytes, number, geometry, &self.table, self.footer.data_len)
                .map_err(|problem| Error::snapshot(&self.name, problem))
        })
    }

    fn read(&self, into: &mut [u8], offset: u64) -> Result<()> {
        self.file
            .read_exact_at(into, offset)
            .map_err(|source| Error::file("read", self.name.display(), source))
    }

    fn damaged(&self, chunk: u32, why: &str) -> Error {
        let range = self.footer.geometry.range(chunk);
        Error::snapshot(
            &self.name,
            format!(
                "is damaged in chunk {chunk} (guest memory at {:#x}..{:#x}): {why}",
                range.start, range.end
            ),
        )
    }
}

/// Reads the table of a pack, and computes its digest.
fn read_table(file: &File, footer: &Footer) -> io::Result<(BlockTable, u128)> {
    let (mut table, mut digest) = (BlockTable::default(), ByteDigest::default());
    let (mut at, end) = (footer.table_at(), footer.table_at() + footer.table_len() as u64);
    let mut buffer = vec![0; footer.table_len().min(TABLE_STEPS * TABLE_STEP)];
    while at < end {
        let steps = &mut buffer[..(end - at).min((TABLE_STEPS * TABLE_STEP) as u64) as usize];
        file.read_exact_at(steps, at)?;
        digest.add(steps);
        steps.chunks(TABLE_STEP).for_each(|step| table.push(step));
        at += steps.len() as u64;
    }
    Ok((table, footer.digest_after(digest)))
}
