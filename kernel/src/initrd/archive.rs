//! Files that the host adds to an initramfs, as a further archive behind it.
//!
//! Linux unpacks archives one after another (Documentation/driver-api/early-userspace/buffer-format.rst). The
//! first may be compressed. The added one is plain, and begins at a multiple of 4 bytes.

use std::collections::BTreeSet;

use crate::error::Error;

const ALIGNMENT: u64 = 4;
const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
/// The name of the entry that ends an archive.
const END: &str = "TRAILER!!!";

/// Returns the bytes that add files to an initramfs of this length, if they follow it.
///
/// A file is a path without a first slash, and its content. Root owns the files, which all may read, and the
/// directories to them.
///
/// # Errors
/// [`Error::ArchivePath`], [`Error::ArchiveFileTooLarge`].
pub fn addition(length: u64, files: &[(&str, &[u8])]) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; (length.next_multiple_of(ALIGNMENT) - length) as usize];
    let before = bytes.len();
    let mut directories = BTreeSet::new();
    for (path, content) in files {
        let is_name = |name: &str| !["", ".", ".."].contains(&name) && !name.contains('\0');
        if !path.split('/').all(is_name) || *path == END {
            return Err(Error::ArchivePath { path: (*path).to_owned() });
        }
        let length = u32::try_from(content.len())
            .map_err(|_| Error::ArchiveFileTooLarge { path: (*path).to_owned() })?;
        for (slash, _) in path.match_indices('/') {
            if directories.insert(&path[..slash]) {
                entry(&mut bytes, before, &path[..slash], DIRECTORY, 0);
            }
        }
        entry(&mut bytes, before, path, FILE, length);
        bytes.extend_from_slice(content);
        pad(&mut bytes, before);
    }
    entry(&mut bytes, before, END, 0, 0);
    Ok(bytes)
}

/// Writes the header of the format newc: fields of eight hexadecimal digits. Number, owner, time and devices
/// are zero.
fn entry(bytes: &mut Vec<u8>, before: usize, name: &str, mode: u32, length: u32) {
    let name_length = name.len() as u32 + 1;
    let fields = [0, mode, 0, 0, 1, 0, length, 0, 0, 0, 0, name_length, 0];
    bytes.extend_from_slice(b"070701");
    bytes.extend(fields.iter().flat_map(|field| format!("{field:08X}").into_bytes()));
    bytes.extend_from_slice(name.as_bytes());
    bytes.push(0);
    pad(bytes, before);
}

fn pad(bytes: &mut Vec<u8>, before: usize) {
    let end = (bytes.len() - before).next_multiple_of(ALIGNMENT as usize);
    bytes.resize(before + end, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns path, mode and content of each entry up to the end.
    fn read(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        loop {
            assert_eq!(&bytes[..6], b"070701");
            let field = |number: usize| {
                let digits = std::str::from_utf8(&bytes[6 + 8 * number..][..8]).unwrap();
                u32::from_str_radix(digits, 16).unwrap()
            };
            let (mode, length, name_length) = (field(1), field(6) as usize, field(11) as usize);
            let name = std::str::from_utf8(&bytes[110..110 + name_length - 1]).unwrap().to_owned();
            assert_eq!(bytes[110 + name_length - 1], 0);
            let content = (110 + name_length).next_multiple_of(4);
            if name == END {
                assert_eq!(bytes.len(), content);
                return entries;
            }
            entries.push((name, mode, bytes[content..content + length].to_vec()));
            bytes = &bytes[(content + length).next_multiple_of(4)..];
        }
    }

    #[test]
    fn added_archive_has_files_and_their_directories_once() {
        let files: [(&str, &[u8]); 3] =
            [("volt/run.json", b"{}"), ("volt/a/b", b""), ("volt/a/long", &[7; 9])];
        let directory = |name: &str| (name.to_owned(), DIRECTORY, Vec::new());
        let file = |(name, content): (&str, &[u8])| (name.to_owned(), FILE, content.to_vec());
        let expected =
            vec![directory("volt"), file(files[0]), directory("volt/a"), file(files[1]), file(files[2])];
        for length in 0..5 {
            let bytes = addition(length, &files).unwrap();
            let padding = length.next_multiple_of(4) - length;
            let (padding, archive) = bytes.split_at(padding as usize);
            assert!(padding.iter().all(|byte| *byte == 0));
            assert_eq!(read(archive), expected);
        }
        assert_eq!(read(&addition(0, &[]).unwrap()), []);
    }

    #[test]
    fn path_out_of_the_archive_is_refused_by_its_name() {
        for path in ["", "/x", "a//b", "a/../b", ".", "a/", "a\0b", END] {
            let refused = addition(0, &[(path, b"")]);
            assert!(matches!(&refused, Err(Error::ArchivePath { path: named }) if named == path), "{path:?}");
        }
    }
}
