//! Sources of memory to pack.

use std::cell::RefCell;
use std::ops::Range;

use super::codec::Decoder;
use super::reader::Pack;
use crate::error::Result;
use crate::snapshot::format::source::MemorySource;

/// Reads a range of a source, with zeros outside its populated ranges. Returns whether any byte of it is
/// populated.
pub(crate) fn read(source: &dyn MemorySource, offset: u64, into: &mut [u8]) -> Result<bool> {
    let (mut at, end) = (offset, offset + into.len() as u64);
    let populated = source.populated();
    let first = populated.partition_point(|range| range.end <= offset);
    let here = populated[first..].iter().take_while(|range| range.start < end);
    for range in here {
        let (from, to) = (range.start.max(offset), range.end.min(end));
        into[(at - offset) as usize..(from - offset) as usize].fill(0);
        source.read_at(from, &mut into[(from - offset) as usize..(to - offset) as usize])?;
        at = to;
    }
    if at == offset {
        return Ok(false);
    }
    into[(at - offset) as usize..].fill(0);
    Ok(true)
}

/// A pack as the source of another pack.
#[derive(Debug)]
pub struct Repack<'a> {
    pack: &'a Pack,
    populated: Vec<Range<u64>>,
}

impl<'a> Repack<'a> {
    /// Reads the pack's index.
    ///
    /// # Errors
    /// The index is damaged.
    pub fn of(pack: &'a Pack) -> Result<Self> {
        let mut populated: Vec<Range<u64>> = Vec::new();
        pack.each_populated(|range| match populated.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => populated.push(range),
        })?;
        Ok(Self { pack, populated })
    }
}

impl MemorySource for Repack<'_> {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        thread_local! {
            /// A decoder, and a buffer for a chunk of which the caller needs a part.
            static WORK: RefCell<(Decoder, Vec<u8>)> = const { RefCell::new((Decoder::new(), Vec::new())) };
        }
        let geometry = self.pack.geometry();
        WORK.with_borrow_mut(|(decoder, whole)| {
            let mut done = 0;
            while done < into.len() {
                let at = offset + done as u64;
                let chunk = (at / u64::from(geometry.chunk_len())) as u32;
                let range = geometry.range(chunk);
                let (skip, wanted) = ((at - range.start) as usize, into.len() - done);
                let len = (geometry.len_of(chunk) - skip).min(wanted);
                let part = &mut into[done..done + len];
                if len == geometry.len_of(chunk) {
                    self.pack.read_chunk(chunk, part, decoder)?;
                } else {
                    whole.resize(geometry.len_of(chunk), 0);
                    self.pack.read_chunk(chunk, whole, decoder)?;
                    part.copy_from_slice(&whole[skip..skip + len]);
                }
                done += len;
            }
            Ok(())
        })
    }

    fn populated(&self) -> &[Range<u64>] {
        &self.populated
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::TestMemory;
    use super::*;

    #[test]
    fn only_populated_pages_are_read() {
        let mut source = TestMemory::of((0..100).collect());
        source.populated = vec![10..20, 30..40];
        let stretch = |offset, len| {
            let mut into = vec![0xff; len];
            let found = read(&source, offset, &mut into).unwrap();
            (found, into)
        };
        assert_eq!(stretch(0, 10), (false, vec![0xff; 10]), "not even touched");
        assert!(!stretch(20, 10).0);
        assert!(!stretch(50, 10).0);
        assert_eq!(stretch(8, 4), (true, vec![0, 0, 10, 11]));
        assert_eq!(stretch(18, 14), (true, [&[18, 19][..], &[0; 10], &[30, 31]].concat()));
        assert_eq!(stretch(38, 4), (true, vec![38, 39, 0, 0]));
        assert_eq!(stretch(12, 2), (true, vec![12, 13]));
    }
}
