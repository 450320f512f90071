//! Recognises the format of a kernel image.

use crate::error::Error;
use crate::file::Source;
use crate::image::Image;
use crate::ram::Ram;
use crate::{bzimage, elf};

/// Recognises a kernel's format and checks the image.
///
/// # Errors
/// [`Error::UnknownFormat`], [`Error::Truncated`], [`Error::Image`], [`Error::OutsideMemory`],
/// [`Error::OverlapsBootStructures`], [`Error::Read`]; all name the file.
pub(crate) fn inspect(source: &Source<'_>, ram: &Ram) -> Result<Image, Error> {
    let mut head = [0; bzimage::MAGIC_END];
    let length = head.len().min(usize::try_from(source.length()).unwrap_or(usize::MAX));
    let head = &mut head[..length];
    source.read("beginning", 0, head)?;
    if head.starts_with(elf::MAGIC) {
        elf::inspect(source, ram)
    } else if head.get(bzimage::MAGIC_RANGE) == Some(bzimage::MAGIC) {
        bzimage::inspect(source, ram)
    } else {
        Err(Error::UnknownFormat { file: source.name() })
    }
}
