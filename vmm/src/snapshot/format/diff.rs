//! `memory.diff`: the pages of a guest's memory that differ from a base's.
//!
//! ```text
//!   0                                     memory length
//!   pages, each at its offset, else holes | a bit for each page | trailer
//! ```
//!
//! The pages lie at the offsets that they have in a base, so both files are mapped alike. The bitmap lists
//! the pages, because a page of zeros may be a hole. The trailer is a CRC-64/ECMA-182, three words and a
//! magic. The checksum is of the bitmap and the three words. The words are the length of memory and the
//! base's digest, which identify the diff, and the digest of its pages ([`super::digest`]). All words have 64
//! bits, little-endian. Diffs of the first format version lack the digest of their pages.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crc::{Digest, Table};

use super::crc::CRC;
use crate::memory::page_set::{BYTES_STEP, PageSet};

const MAGIC: &[u8; 8] = b"VOLTDIFF";
const TRAILER: usize = 5 * 8;
/// Length of the first version's trailer, in bytes.
const TRAILER_1: usize = 4 * 8;

/// The list of a diff's pages.
#[derive(Debug, PartialEq, Eq)]
pub struct DiffPages {
    /// The pages.
    pub pages: PageSet,
    /// Digest of the pages; absent in the first version.
    pub digest: Option<u64>,
    /// Checksum of the list and of the digest.
    pub checksum: u64,
}

/// Appends the list to a file that has the pages and is as long as memory. Returns the list's checksum.
///
/// # Errors
/// The file system refuses.
pub fn finish(file: &File, memory: u64, base: u64, pages: &PageSet, digest: u64) -> io::Result<u64> {
    let mut end: Vec<u8> = pages.bytes().collect();
    let facts = [memory, base, digest];
    let mut checksum = CRC.digest();
    checksum.update(&end);
    let checksum = with_facts(checksum, &facts);
    for word in [checksum].into_iter().chain(facts) {
        end.extend(word.to_le_bytes());
    }
    end.extend(MAGIC);
    file.write_all_at(&end, memory)?;
    Ok(checksum)
}

/// Reads the list of a diff of `memory` bytes over the base with digest `base`. `Err` in the result names the
/// fault of the list. The list is read in steps, so it takes memory only for pages that it has.
///
/// # Errors
/// The file cannot be read.
pub fn read(file: &File, memory: u64, base: u64) -> io::Result<Result<DiffPages, String>> {
    let bitmap = PageSet::bytes_len(memory);
    let found = file.metadata()?.len();
    let right = memory + bitmap + TRAILER as u64;
    let trailer = &mut [0; TRAILER][..];
    let trailer = match found {
        _ if found == right => trailer,
        _ if found + 8 == right => &mut trailer[..TRAILER_1],
        _ => return Ok(Err(format!("is {found} bytes long, not {right}"))),
    };
    file.read_exact_at(trailer, memory + bitmap)?;
    let (words, magic) = trailer.split_at(trailer.len() - MAGIC.len());
    if magic != MAGIC {
        return Ok(Err("does not end with a diff's trailer".to_owned()));
    }
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    let words: Vec<u64> = words.chunks_exact(8).map(word).collect();
    let (crc, facts) = (words[0], &words[1..]);
    let (of_memory, of_base, digest) = (facts[0], facts[1], facts.get(2).copied());
    let (pages, checksum) = read_list(file, memory)?;
    if crc != with_facts(checksum, facts) {
        return Ok(Err("has a damaged list of pages".to_owned()));
    }
    if (of_memory, of_base) != (memory, base) {
        let problem = format!(
            "is for another base: it names {of_memory} bytes with digest {of_base:016x}, and the base has \
             {memory} bytes with digest {base:016x}"
        );
        return Ok(Err(problem));
    }
    if !pages.is_within(memory) {
        return Ok(Err("lists pages beyond the end of memory".to_owned()));
    }
    Ok(Ok(DiffPages { pages, digest, checksum: crc }))
}

/// Reads the bitmap behind the pages. Returns it with its checksum so far.
fn read_list(file: &File, memory: u64) -> io::Result<(PageSet, Digest<'static, u64, Table<16>>)> {
    let (mut pages, mut checksum) = (PageSet::none(memory), CRC.digest());
    let (len, mut buffer) = (PageSet::bytes_len(memory), vec![0; BYTES_STEP]);
    for at in (0..len).step_by(BYTES_STEP) {
        let step = &mut buffer[..(len - at).min(BYTES_STEP as u64) as usize];
        file.read_exact_at(step, memory + at)?;
        checksum.update(step);
        pages.add_bytes(at, step);
    }
    Ok((pages, checksum))
}

fn with_facts(mut checksum: Digest<'_, u64, Table<16>>, facts: &[u64]) -> u64 {
    facts.iter().for_each(|fact| checksum.update(&fact.to_le_bytes()));
    checksum.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::PAGE;

    const MEMORY: u64 = 300 * PAGE;

    fn diff(pages: &PageSet) -> File {
        let file = File::from(rustix::fs::memfd_create("diff", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        finish(&file, MEMORY, 7, pages, 9).unwrap();
        file
    }

    #[test]
    fn diff_has_its_pages() {
        let mut pages = PageSet::none(MEMORY);
        pages.add(PAGE..3 * PAGE);
        pages.add(299 * PAGE..300 * PAGE);
        let listed = read(&diff(&pages), MEMORY, 7).unwrap().unwrap();
        assert_eq!((listed.pages, listed.digest), (pages, Some(9)));
    }

    #[test]
    fn flipped_byte_or_truncation_is_noticed() {
        let mut pages = PageSet::none(MEMORY);
        pages.add(5 * PAGE..9 * PAGE);
        let file = diff(&pages);
        let len = file.metadata().unwrap().len();
        for at in MEMORY..len {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
            assert!(read(&file, MEMORY, 7).unwrap().is_err(), "{at}");
            file.write_all_at(&byte, at).unwrap();
        }
        assert!(read(&file, MEMORY, 7).unwrap().is_ok());
        for cut in [0, 1, MEMORY, len - 1] {
            let file = diff(&pages);
            file.set_len(cut).unwrap();
            assert!(read(&file, MEMORY, 7).unwrap().is_err(), "{cut}");
        }
    }

    #[test]
    fn diff_of_another_base_or_beyond_memory_is_refused() {
        let mut pages = PageSet::none(MEMORY);
        pages.add(0..PAGE);
        let problem = read(&diff(&pages), MEMORY, 8).unwrap().unwrap_err();
        assert!(problem.contains("digest 0000000000000007, and the base has"), "{problem}");
        pages.add(300 * PAGE..301 * PAGE);
        let problem = read(&diff(&pages), MEMORY, 7).unwrap().unwrap_err();
        assert_eq!(problem, "lists pages beyond the end of memory");
    }
}
