//! Errors of loading a guest. Every message names the field, or the file by its role and the user's name for
//! it.

use std::{fmt, io, ops::Range};

/// A fault that keeps a guest from loading.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file's attributes cannot be read.
    #[error("{file}: cannot read its attributes")]
    Stat {
        /// The file.
        file: FileName,
        /// The system's reason.
        source: io::Error,
    },
    /// The file is a directory, a device, a pipe or a socket.
    #[error("{file}: is {kind}, not a regular file")]
    NotAFile {
        /// The file.
        file: FileName,
        /// Its actual type, with the article.
        kind: &'static str,
    },
    /// The file has no bytes.
    #[error("{file}: the file is empty")]
    Empty {
        /// The file.
        file: FileName,
    },
    /// The file ends before a part that its headers describe.
    #[error("{file}: truncated: its {part} ends at byte {end}, but the file has {length} bytes")]
    Truncated {
        /// The file.
        file: FileName,
        /// The incomplete part.
        part: String,
        /// Offset in the file at which the part should end, in bytes.
        end: u64,
        /// Length of the file in bytes.
        length: u64,
    },
    /// Reading failed.
    #[error("{file}: cannot read {length} bytes at byte {offset}")]
    Read {
        /// The file.
        file: FileName,
        /// Offset in the file, in bytes.
        offset: u64,
        /// Length of the read in bytes.
        length: u64,
        /// The system's reason.
        source: io::Error,
    },
    /// The file has no format that this crate can load.
    #[error("{file}: not an ELF or bzImage file")]
    UnknownFormat {
        /// The file.
        file: FileName,
    },
    /// The kernel image is malformed, or is for another machine.
    #[error("{file}: {problem}")]
    Image {
        /// The file.
        file: FileName,
        /// The fault, as a predicate of the file.
        problem: String,
    },
    /// Part of the kernel belongs at an address where the guest has no RAM.
    #[error(
        "{file}: its {part} ({:#x} to {:#x}) does not fit into {memory} of guest memory",
        range.start,
        range.end
    )]
    OutsideMemory {
        /// The file.
        file: FileName,
        /// The part of the kernel.
        part: String,
        /// Guest physical addresses.
        range: Range<u64>,
        /// Guest memory in all.
        memory: Size,
    },
    /// Part of the kernel belongs at an address that the boot structures take.
    #[error(
        "{file}: its {part} ({:#x} to {:#x}) overlaps the boot structures below 1 MiB",
        range.start,
        range.end
    )]
    OverlapsBootStructures {
        /// The file.
        file: FileName,
        /// The part of the kernel.
        part: String,
        /// Guest physical addresses.
        range: Range<u64>,
    },
    /// The initrd is larger than guest memory.
    #[error("{file}: {size} do not fit in {memory} guest memory")]
    InitrdTooLarge {
        /// The file.
        file: FileName,
        /// Its size.
        size: Size,
        /// Guest memory in all.
        memory: Size,
    },
    /// No gap that the kernel accepts is large enough for the initrd.
    #[error("{file}: {size} do not fit beside the kernel below {limit:#x} in {memory} guest memory")]
    NoRoomForInitrd {
        /// The file.
        file: FileName,
        /// Its size.
        size: Size,
        /// Lowest address that the initrd must not reach.
        limit: u64,
        /// Guest memory in all.
        memory: Size,
    },
    /// A path leads out of the archive of files that are added to an initrd, or is no path.
    #[error("cannot add {path:?} to the initrd: give a path of names, without a first slash")]
    ArchivePath {
        /// The path.
        path: String,
    },
    /// An archive cannot have a file of 4 GiB.
    #[error("cannot add {path} to the initrd: the file has 4 GiB or more")]
    ArchiveFileTooLarge {
        /// The path.
        path: String,
    },
    /// The command line is too long.
    #[error("kernel command line is {length} bytes long; the kernel takes at most {limit}")]
    CommandLineTooLong {
        /// Its length in bytes.
        length: usize,
        /// This kernel's limit, without the terminating NUL.
        limit: usize,
    },
    /// The command line has a byte that the kernel would misread.
    #[error("kernel command line has {what} at byte {position}")]
    CommandLineCharacter {
        /// A description of the byte.
        what: &'static str,
        /// Its position, from 0.
        position: usize,
    },
    /// The number of vCPUs cannot be described with 8-bit APIC ids.
    #[error("vcpus is {vcpus}; ACPI describes 1 to 254")]
    VcpuCount {
        /// The number asked for.
        vcpus: u8,
    },
    /// The devices' AML is too large.
    #[error("ACPI tables take {length} bytes; {limit} fit below 1 MiB")]
    AcpiTooLarge {
        /// All tables together.
        length: u64,
        /// The space for them.
        limit: u64,
    },
    /// Guest memory does not start at 0 or ends below 1 MiB.
    #[error("guest memory has no RAM from 0 to 1 MiB, where boot structures go")]
    NoLowMemory,
    /// Guest memory is in too many pieces.
    #[error("guest memory has {entries} map entries; a kernel takes at most {limit}")]
    MemoryMapTooLong {
        /// The number of entries.
        entries: usize,
        /// The maximum of the boot protocols.
        limit: usize,
    },
    /// Writing guest memory failed.
    #[error("cannot write the {what} to guest memory at {address:#x}")]
    GuestMemory {
        /// The structure or part of a file.
        what: String,
        /// Guest physical address.
        address: u64,
        /// The reason.
        source: vm_memory::GuestMemoryError,
    },
}

/// The role of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The kernel image.
    Kernel,
    /// The initial RAM file system.
    Initrd,
}

/// A file in a message: `kernel /boot/vmlinux`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileName {
    /// Its role.
    pub role: Role,
    /// The name the user gave.
    pub name: String,
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            Role::Kernel => "kernel",
            Role::Initrd => "initrd",
        };
        write!(f, "{role} {}", self.name)
    }
}

/// A size in bytes. A message shows it in the largest unit in which it is a whole number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n > 0 && n % (1 << 20) == 0 => write!(f, "{} MiB", n >> 20),
            n if n > 0 && n % (1 << 10) == 0 => write!(f, "{} KiB", n >> 10),
            n => write!(f, "{n} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_file_and_the_sizes() {
        let file = FileName { role: Role::Initrd, name: "/x".into() };
        let error = Error::InitrdTooLarge { file, size: Size(600 << 20), memory: Size(512 << 20) };
        assert_eq!(error.to_string(), "initrd /x: 600 MiB do not fit in 512 MiB guest memory");
        assert_eq!(Size(1025).to_string(), "1025 bytes");
        assert_eq!(Size(3072).to_string(), "3 KiB");
    }
}
