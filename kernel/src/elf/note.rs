//! The ELF note with a kernel's PVH entry point (`XEN_ELFNOTE_PHYS32_ENTRY`,
//! xen/include/public/elfnote.h).

use crate::error::Error;
use crate::file::Source;

use super::header::ElfSegment;

const OWNER: &[u8] = b"Xen\0";
const PHYS32_ENTRY: u32 = 18;
/// Most bytes of a note segment; Linux has under 1 KiB.
const NOTES_LIMIT: u64 = 1 << 20;

/// Returns the PVH entry point, if this note segment has one.
///
/// # Errors
/// If the segment or one of its notes is incomplete, or the segment is larger than [`NOTES_LIMIT`].
pub(super) fn pvh_entry(source: &Source<'_>, segment: &ElfSegment) -> Result<Option<u64>, Error> {
    let part = "ELF note segment";
    source.check(part, segment.offset, segment.file_size)?;
    if segment.file_size > NOTES_LIMIT {
        return Err(source.problem(format!("its {part} has {} bytes", segment.file_size)));
    }
    let mut notes = vec![0; segment.file_size as usize];
    source.read(part, segment.offset, &mut notes)?;
    let alignment = if segment.alignment == 8 { 8 } else { 4 };
    let mut rest = &notes[..];
    while !rest.is_empty() {
        let note = take_note(&mut rest, alignment)
            .ok_or_else(|| source.problem(format!("its {part} has an incomplete note")))?;
        if note.kind == PHYS32_ENTRY && note.owner == OWNER {
            return match *note.value {
                [a, b, c, d] | [a, b, c, d, 0, 0, 0, 0] => Ok(Some(u32::from_le_bytes([a, b, c, d]).into())),
                _ => Err(source.problem("its PVH entry point is not a 32-bit address")),
            };
        }
    }
    Ok(None)
}

struct Note<'a> {
    kind: u32,
    owner: &'a [u8],
    value: &'a [u8],
}

/// Splits the first note off `rest`.
///
/// A note has three words (length of the owner, length of the value, type), then the owner and the value,
/// both padded. The last note may lack the padding of its value.
fn take_note<'a>(rest: &mut &'a [u8], alignment: usize) -> Option<Note<'a>> {
    let word = |bytes: &[u8], at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let notes = *rest;
    let (owner_length, value_length) = (word(notes, 0)? as usize, word(notes, 4)? as usize);
    let kind = word(notes, 8)?;
    let owner_end = 12usize.checked_add(owner_length)?;
    let value_start = owner_end.checked_next_multiple_of(alignment)?;
    let value_end = value_start.checked_add(value_length)?;
    let owner = notes.get(12..owner_end)?;
    let value = notes.get(value_start..value_end)?;
    *rest = notes.get(value_end.checked_next_multiple_of(alignment)?..).unwrap_or_default();
    Some(Note { kind, owner, value })
}
