//! Writes trees as streams.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, fstatfs, openat, openat2,
    readlinkat, statat,
};
use rustix::io::Errno;

use super::attributes::{attributes, header};
use super::content;
use super::escaped::Escaped;
use super::header::{DEPTH, Header, Kind, PATH, failed};

/// Magic numbers of file systems that hold no files but views of the kernel: proc, sysfs, cgroup, cgroup2,
/// debugfs, tracefs, securityfs, bpf, efivarfs, pstore, configfs, selinuxfs.
const VIEWS: [u32; 12] = [
    0x9fa0,
    0x6265_6572,
    0x0027_e0eb,
    0x6367_7270,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0xcafe_4a11,
    0xde5e_81e4,
    0x6165_676c,
    0x6265_6570,
    0xf97c_ff8c,
];

/// A file or directory that becomes a stream.
#[derive(Debug)]
pub struct Source {
    parent: OwnedFd,
    /// The name in `parent`.
    entry: CString,
    stat: Stat,
    /// The name in the stream.
    name: Vec<u8>,
}

impl Source {
    /// Finds the entry. A symlink is the entry itself, unless it is to be followed.
    ///
    /// # Errors
    /// The entry does not exist, or may not be read.
    pub fn open(path: &Path, follow: bool) -> io::Result<Self> {
        let name = path.file_name().map_or(&b"root"[..], OsStrExt::as_bytes).to_vec();
        let failed = |error: io::Error| failed("read", path.as_os_str().as_bytes(), error);
        let real = if follow { std::fs::canonicalize(path).map_err(failed)? } else { path.to_owned() };
        let (parent, entry) = match (real.parent(), real.file_name()) {
            (Some(parent), Some(entry)) if parent.as_os_str().is_empty() => {
                (Path::new("."), entry.as_bytes())
            }
            (Some(parent), Some(entry)) => (parent, entry.as_bytes()),
            _ => (real.as_path(), &b"."[..]),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = openat(CWD, parent, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        let entry = CString::new(entry)?;
        let stat = statat(&parent, &entry, AtFlags::SYMLINK_NOFOLLOW);
        Ok(Self { stat: stat.map_err(|error| failed(error.into()))?, parent, entry, name })
    }

    /// Writes the stream. If the source fails, the stream ends with the reason, and this returns it too.
    ///
    /// # Errors
    /// The source cannot be read, or the output not be written.
    pub fn pack(self, output: &mut dyn Write) -> io::Result<()> {
        let mut packer = Packer { output, links: HashMap::new(), pending: Vec::new(), in_content: false };
        let packed = packer.tree(&self);
        let last = match &packed {
            Ok(()) => Header::default(),
            // The reader would take the record as content.
            Err(_) if packer.in_content => return packed,
            Err(error) => Header::message(Kind::Error, error.to_string()),
        };
        let ended = last.write(packer.output).and_then(|()| packer.output.flush());
        packed.and(ended)
    }
}

struct Packer<'a> {
    output: &'a mut dyn Write,
    /// Paths of files with further names, and how many these are.
    links: HashMap<(u64, u64), (Vec<u8>, u32)>,
    /// Directories that are still to come, each with the number of its parent's device.
    pending: Vec<(Vec<u8>, Option<u64>)>,
    in_content: bool,
}

impl Packer<'_> {
    fn tree(&mut self, source: &Source) -> io::Result<()> {
        let kind = FileType::from_raw_mode(source.stat.st_mode);
        if kind == FileType::RegularFile && is_view(source.parent.as_fd()) {
            let why = "it is a view of the kernel, without a size; let a command print it";
            return Err(failed("read", &source.name, io::Error::new(ErrorKind::InvalidInput, why)));
        }
        if kind != FileType::Directory {
            return self.entry(source.parent.as_fd(), &source.entry, source.name.clone(), &source.stat);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = openat(&source.parent, &source.entry, flags, Mode::empty())
            .map_err(|error| failed("read", &source.name, error))?;
        self.pending.push((source.name.clone(), None));
        while let Some((path, device)) = self.pending.pop() {
            let below = path.get(source.name.len() + 1..).unwrap_or(b".");
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            match openat2(&root, below, flags, Mode::empty(), resolve) {
                Ok(directory) => self.directory(directory, path, device)?,
                // Somebody replaced it in the meantime.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(failed("read", &path, error)),
            }
        }
        Ok(())
    }

    fn directory(&mut self, directory: OwnedFd, path: Vec<u8>, above: Option<u64>) -> io::Result<()> {
        let stat = fstat(&directory).map_err(|error| failed("read", &path, error))?;
        let mut header = header(Kind::Dir, path, &stat);
        self.add_attributes(directory.as_fd(), &mut header)?;
        header.write(self.output)?;
        let path = header.path.0;
        if above != Some(stat.st_dev) && is_view(directory.as_fd()) {
            return self.warn(&path, "it is a view of the kernel");
        }
        let device = stat.st_dev;
        let entries = Dir::read_from(&directory).map_err(|error| failed("read", &path, error))?;
        for entry in entries {
            let entry = entry.map_err(|error| failed("read", &path, error))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let path = [&path, &b"/"[..], name.to_bytes()].concat();
            let stat = match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) => found,
                // It disappeared in the meantime.
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(failed("read", &path, error)),
            };
            if path.len() > PATH || path.iter().filter(|&&byte| byte == b'/').count() >= DEPTH {
                self.warn(&path, "its path is too long")?;
            } else if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                self.pending.push((path, Some(device)));
            } else {
                self.entry(directory.as_fd(), name, path, &stat)?;
            }
        }
        Ok(())
    }

    /// Writes an entry that is no directory.
    fn entry(&mut self, parent: BorrowedFd<'_>, name: &CStr, path: Vec<u8>, stat: &Stat) -> io::Result<()> {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => self.file(parent, name, path),
            FileType::Symlink => {
                let target = match readlinkat(parent, name, Vec::new()) {
                    Ok(target) => target.into_bytes(),
                    Err(Errno::NOENT | Errno::INVAL) => return Ok(()),
                    Err(error) => return Err(failed("read", &path, error)),
                };
                Header { target: Some(Escaped(target)), ..header(Kind::Symlink, path, stat) }
                    .write(self.output)
            }
            FileType::Fifo => header(Kind::Fifo, path, stat).write(self.output),
            FileType::Socket => self.warn(&path, "it is a socket"),
            _ => self.warn(&path, "it is a device"),
        }
    }

    fn file(&mut self, parent: BorrowedFd<'_>, name: &CStr, path: Vec<u8>) -> io::Result<()> {
        // A FIFO may have taken its place, and must not block this thread.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(parent, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::LOOP) => return Ok(()),
            Err(error) => return Err(failed("read", &path, error)),
        };
        let read = |error: io::Error| failed("read", &path, error);
        let stat = fstat(&file).map_err(|error| read(error.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return self.warn(&path, "another entry replaced it");
        }
        if let Some(target) = self.earlier_name(&path, &stat) {
            let target = Some(Escaped(target));
            return Header { target, ..header(Kind::Hardlink, path, &stat) }.write(self.output);
        }
        let size = stat.st_size.cast_unsigned();
        let extents = content::extents(file.as_fd(), size).map_err(read)?;
        let mut header = Header { size, extents, ..header(Kind::File, path, &stat) };
        self.add_attributes(file.as_fd(), &mut header)?;
        header.write(self.output)?;
        self.in_content = true;
        let is_whole = content::send(file.as_fd(), &header, self.output)?;
        self.in_content = false;
        if is_whole { Ok(()) } else { self.tell(&header.path.0, "became shorter while it was read") }
    }

    /// The name by which the stream has the file already.
    fn earlier_name(&mut self, path: &[u8], stat: &Stat) -> Option<Vec<u8>> {
        if stat.st_nlink < 2 {
            return None;
        }
        let key = (stat.st_dev, stat.st_ino);
        let Some((first, left)) = self.links.get_mut(&key) else {
            self.links.insert(key, (path.to_vec(), stat.st_nlink as u32 - 1));
            return None;
        };
        *left -= 1;
        if *left > 0 {
            return Some(first.clone());
        }
        self.links.remove(&key).map(|(first, _)| first)
    }

    fn add_attributes(&mut self, file: BorrowedFd<'_>, header: &mut Header) -> io::Result<()> {
        match attributes(file) {
            Some(found) => header.xattrs = found,
            None => self.tell(&header.path.0, "has too many extended attributes, and goes without")?,
        }
        Ok(())
    }

    fn warn(&mut self, path: &[u8], why: &str) -> io::Result<()> {
        self.tell(path, &format!("is left out: {why}"))
    }

    fn tell(&mut self, path: &[u8], what: &str) -> io::Result<()> {
        let message = format!("{} {what}", Escaped(path.to_vec()));
        Header::message(Kind::Warning, message).write(self.output)
    }
}

fn is_view(directory: BorrowedFd<'_>) -> bool {
    fstatfs(directory).is_ok_and(|found| VIEWS.contains(&(found.f_type as u32)))
}
