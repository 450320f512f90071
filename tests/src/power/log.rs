//! The log of dm-log-writes in Linux's format (drivers/md/dm-log-writes.c): a superblock, then entries. Each
//! entry has its own sector, and the written data follows.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;
/// Bytes of an entry before the text of a mark.
const ENTRY: usize = 32;

/// An event on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A write: its position, its length, its position in the log, and whether the disk could hold it back.
    Write { at: u64, len: u64, in_log: u64, held_back: bool },
    /// A flush: all earlier writes are on the medium.
    Flush,
    /// Zeros at a position, and their length.
    Discard { at: u64, len: u64 },
    /// A mark of the test.
    Mark(String),
}

/// Reads all entries.
///
/// # Errors
/// The host refuses, or the file is no log of this version.
pub fn read(path: &Path) -> io::Result<Vec<Entry>> {
    let file = File::open(path)?;
    let mut head = [0; 32];
    file.read_exact_at(&mut head, 0)?;
    let sector = u64::from(u32::from_le_bytes(head[24..28].try_into().expect("4 bytes")));
    if (word(&head, 0), word(&head, 1)) != (MAGIC, VERSION) || sector < 512 {
        return Err(io::Error::other("is no log of dm-log-writes, version 1"));
    }
    let mut entries = Vec::new();
    let mut at = sector;
    let mut block = vec![0; sector as usize];
    for _ in 0..word(&head, 2) {
        file.read_exact_at(&mut block, at)?;
        let [start, sectors, flags, text] = [0, 1, 2, 3].map(|number| word(&block, number));
        at += sector;
        let (start, len) = (start * sector, sectors * sector);
        if flags & MARK != 0 {
            let text = &block[ENTRY..ENTRY + text as usize];
            entries.push(Entry::Mark(String::from_utf8_lossy(text).trim_end_matches('\0').to_owned()));
        } else if flags & DISCARD != 0 {
            entries.push(Entry::Discard { at: start, len });
        } else {
            // The data of a flush is written after it.
            if flags & FLUSH != 0 {
                entries.push(Entry::Flush);
            }
            if len > 0 {
                let held_back = flags & (FUA | FLUSH) == 0;
                entries.push(Entry::Write { at: start, len, in_log: at, held_back });
            }
            at += len;
        }
    }
    Ok(entries)
}

fn word(bytes: &[u8], number: usize) -> u64 {
    u64::from_le_bytes(bytes[number * 8..number * 8 + 8].try_into().expect("8 bytes"))
}
