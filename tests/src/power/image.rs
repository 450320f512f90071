//! The content of a disk, by its blocks that are not zero.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

pub const BLOCK: usize = 4096;
/// The most bytes of one write.
const LONGEST_WRITE: usize = 1 << 20;

/// See the module. Clones share blocks.
#[derive(Clone, Debug)]
pub struct Image {
    len: u64,
    blocks: BTreeMap<u64, Arc<[u8; BLOCK]>>,
}

impl Image {
    /// Reads a file.
    ///
    /// # Errors
    /// The host refuses.
    pub fn read(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let mut image = Self { len: file.metadata()?.len(), blocks: BTreeMap::new() };
        let mut block = [0; BLOCK];
        for number in 0..image.len / BLOCK as u64 {
            file.read_exact_at(&mut block, number * BLOCK as u64)?;
            if block.iter().any(|byte| *byte != 0) {
                image.blocks.insert(number, Arc::new(block));
            }
        }
        Ok(image)
    }

    /// Writes bytes at an offset.
    pub fn put(&mut self, mut at: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let within = (at % BLOCK as u64) as usize;
            let (now, rest) = bytes.split_at(bytes.len().min(BLOCK - within));
            let block = self.blocks.entry(at / BLOCK as u64).or_insert_with(|| Arc::new([0; BLOCK]));
            Arc::make_mut(block)[within..within + now.len()].copy_from_slice(now);
            at += now.len() as u64;
            bytes = rest;
        }
    }

    /// Writes the content to a file.
    ///
    /// # Errors
    /// The host refuses.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.len)?;
        let (mut start, mut bytes) = (0, Vec::with_capacity(LONGEST_WRITE));
        for (number, block) in &self.blocks {
            let at = number * BLOCK as u64;
            if at != start + bytes.len() as u64 || bytes.len() + BLOCK > LONGEST_WRITE {
                file.write_all_at(&bytes, start)?;
                start = at;
                bytes.clear();
            }
            bytes.extend_from_slice(&block[..]);
        }
        file.write_all_at(&bytes, start)
    }
}
