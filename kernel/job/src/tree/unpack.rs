//! Reads streams into a directory.

use std::ffi::OsStr;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, chownat, fstat, linkat, mkfifoat, openat, statat, symlinkat, utimensat,
};

use super::attributes::{Owner, apply, owner, times};
use super::content;
use super::header::{Header, Kind, failed, malformed};
use super::place::{Destination, name};

/// Choices of a reader.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// The name that the first entry gets, else its own. `.` is the directory itself.
    pub name: Option<&'a OsStr>,
    /// The owner of new entries.
    pub owner: Owner,
}

/// Reads a stream to its end into a directory, and tells warnings to `warn`.
///
/// Directories that exist stay as they are, and get the new entries. Other entries that exist are replaced by
/// whole new ones. After an error, what was unpacked before it stays.
///
/// # Errors
/// The stream is cut or malformed, or an entry cannot be made. The error names the act and the path.
pub fn unpack(
    input: &mut dyn Read,
    directory: &Path,
    options: &Options<'_>,
    warn: &mut dyn FnMut(&str),
) -> io::Result<()> {
    let destination = Destination::open(directory, options.name)?;
    let mut unpacker =
        Unpacker { input, warn, owner: options.owner, destination, open: Vec::new(), is_empty: true };
    let unpacked = unpacker.all();
    // After an error too, so that no directory stays closed to its owner.
    let finished = unpacker.leave(None);
    unpacked.and(finished)
}

struct Unpacker<'a> {
    input: &'a mut dyn Read,
    warn: &'a mut dyn FnMut(&str),
    owner: Owner,
    destination: Destination,
    /// New directories on the way to the last entry. They get owner, mode and time after what is below them.
    open: Vec<(Vec<u8>, Header)>,
    is_empty: bool,
}

impl Unpacker<'_> {
    fn all(&mut self) -> io::Result<()> {
        loop {
            let header = Header::read(self.input)?;
            match header.kind {
                Kind::End if self.is_empty => return Err(malformed("has no entry")),
                Kind::End => return self.expect_end(),
                Kind::Warning => (self.warn)(&printable(header.message.as_deref())),
                Kind::Error => {
                    let why = printable(header.message.as_deref());
                    let why = format!("the sender broke off: {why}");
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, why));
                }
                _ => self.entry(header)?,
            }
        }
    }

    fn expect_end(&mut self) -> io::Result<()> {
        loop {
            match self.input.read(&mut [0]) {
                Ok(0) => return Ok(()),
                Ok(_) => return Err(malformed("goes on after its last record")),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn entry(&mut self, header: Header) -> io::Result<()> {
        self.is_empty = false;
        let path = self.destination.path(&header.path.0)?;
        self.leave(Some(&path))?;
        if path.is_empty() {
            return match header.kind {
                Kind::Dir => Ok(()),
                _ => {
                    let why = "it is no directory, and cannot become the destination itself";
                    Err(failed("unpack", &header.path.0, io::Error::new(ErrorKind::NotADirectory, why)))
                }
            };
        }
        match header.kind {
            Kind::Dir => {
                if self.destination.make_directory(&path)? {
                    // A thousand of them may be open: only what a directory has is kept.
                    let Header { kind, mode, uid, gid, mtime, xattrs, .. } = header;
                    let kept = Header { kind, mode, uid, gid, mtime, xattrs, ..Header::default() };
                    self.open.push((path, kept));
                }
                Ok(())
            }
            Kind::File => self.file(&path, &header),
            Kind::Hardlink => self.link(&path, &header),
            Kind::Fifo => self.fifo(&path, &header),
            _ => self.symlink(&path, &header),
        }
    }

    /// Finishes the directories that do not lead to this path.
    fn leave(&mut self, next: Option<&[u8]>) -> io::Result<()> {
        let leads = |directory: &[u8]| {
            next.and_then(|next| next.strip_prefix(directory)).is_some_and(|rest| rest.starts_with(b"/"))
        };
        let mut result = Ok(());
        while let Some((path, header)) = self.open.pop_if(|(path, _)| !leads(path)) {
            let finished = self.destination.directory(&path).and_then(|directory| {
                let applied = apply(directory.as_fd(), &header, self.owner);
                applied.map_err(|error| failed("finish", &path, error))
            });
            match finished {
                Ok(refused) => self.tell_refused(&header, &refused),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }

    fn file(&mut self, path: &[u8], header: &Header) -> io::Result<()> {
        let Self { input, owner, destination, .. } = self;
        let mut refused = Vec::new();
        destination.replace(path, &mut |parent, temporary| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = openat(parent, temporary, flags, Mode::RUSR | Mode::WUSR)
                .map_err(|error| failed("make", path, error))?;
            content::receive(&file, header, input)?;
            refused = apply(file.as_fd(), header, *owner).map_err(|error| failed("finish", path, error))?;
            Ok(())
        })?;
        self.tell_refused(header, &refused);
        Ok(())
    }

    fn link(&mut self, path: &[u8], header: &Header) -> io::Result<()> {
        let target = header.target.as_ref().map_or(&b""[..], |target| &target.0);
        let target = self.destination.path(target)?;
        let make = |error: io::Error| failed("link", path, error);
        let from = self.destination.parent(&target)?.try_clone_to_owned()?;
        let found = statat(&from, name(&target), AtFlags::SYMLINK_NOFOLLOW);
        let found = found.map_err(|error| failed("link to", &target, error))?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            let why = "it is no file";
            return Err(failed("link to", &target, io::Error::new(ErrorKind::InvalidData, why)));
        }
        self.destination.replace(path, &mut |parent, temporary| {
            linkat(&from, name(&target), parent, temporary, AtFlags::empty())
                .map_err(|error| make(error.into()))
        })
    }

    fn fifo(&mut self, path: &[u8], header: &Header) -> io::Result<()> {
        let owner = self.owner;
        self.destination.replace(path, &mut |parent, temporary| {
            make_fifo(parent, temporary, header, owner).map_err(|error| failed("make", path, error))
        })
    }

    fn symlink(&mut self, path: &[u8], header: &Header) -> io::Result<()> {
        let Some(target) = &header.target else {
            return Err(malformed(format_args!("has a symlink {} without a target", header.path)));
        };
        let owner = owner(self.owner, header);
        self.destination.replace(path, &mut |parent, temporary| {
            let make = |error: rustix::io::Errno| failed("make", path, error);
            symlinkat(target.0.as_slice(), parent, temporary).map_err(make)?;
            if let Some((user, group)) = owner {
                chownat(parent, temporary, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(make)?;
            }
            utimensat(parent, temporary, &times(header.mtime), AtFlags::SYMLINK_NOFOLLOW).map_err(make)
        })
    }

    fn tell_refused(&mut self, header: &Header, refused: &[String]) {
        if !refused.is_empty() {
            (self.warn)(&format!("{} goes without its attributes {}", header.path, refused.join(", ")));
        }
    }
}

fn make_fifo(parent: BorrowedFd<'_>, name: &str, header: &Header, owner: Owner) -> io::Result<()> {
    mkfifoat(parent, name, Mode::RUSR | Mode::WUSR)?;
    // This does not wait for a writer. Another process may have replaced the entry.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fifo = openat(parent, name, flags, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&fifo)?.st_mode) != FileType::Fifo {
        return Err(io::Error::other("another process replaced it"));
    }
    apply(fifo.as_fd(), header, owner)?;
    Ok(())
}

/// A message of the stream, without what a terminal would obey.
fn printable(message: Option<&str>) -> String {
    let letters = message.unwrap_or_default().chars().take(4096);
    letters.map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}
