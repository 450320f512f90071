//! The files of an archive by their path, whatever form it has.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::section::Section;
use crate::cancel::Cancellable;
use crate::error::{Error, Result};
use crate::manifest::MOST;
use crate::store::Store;
use crate::tar::{Content, Reader, TarError};
use crate::unpacked::{Limits, Unpacked};

/// Most links that lead to a file: docker names equal layers so.
const MOST_LINKS: usize = 8;

/// Files of an archive.
#[derive(Debug)]
pub(super) struct Files {
    path: PathBuf,
    form: Form,
}

#[derive(Debug)]
enum Form {
    Directory,
    Tar { file: Arc<File>, places: BTreeMap<String, Place> },
}

#[derive(Debug)]
enum Place {
    Section {
        at: u64,
        len: u64,
    },
    /// Another path of the archive.
    Link(String),
}

impl Files {
    /// Opens a directory or an archive. A compressed one is unpacked into the store's directory, without a
    /// name.
    pub(super) fn open(
        store: &Store,
        path: &Path,
        limits: Limits,
        is_cancelled: &AtomicBool,
    ) -> Result<Self> {
        let file = File::open(path).map_err(Error::host("open", path))?;
        let found = file.metadata().map_err(Error::host("look at", path))?;
        let form = if found.is_dir() {
            Form::Directory
        } else {
            let unreadable = |error: TarError| match error {
                TarError::Read(source) => Error::Host { act: "read", path: path.to_owned(), source },
                TarError::Malformed(_) | TarError::Entry { .. } => {
                    Error::Document { what: path.display().to_string(), problem: error.to_string() }
                }
            };
            let file = if found.is_file() && is_plain(&file).map_err(Error::host("read", path))? {
                file
            } else {
                let stream = Unpacked::new(file, limits).map_err(Error::host("read", path))?;
                store.unpack(Cancellable { inner: stream, is_cancelled }, path)?
            };
            let file = Arc::new(file);
            let whole = Section::new(Arc::clone(&file), 0, file.metadata().map_or(0, |found| found.len()));
            Form::Tar { places: places(whole).map_err(unreadable)?, file }
        };
        Ok(Self { path: path.to_owned(), form })
    }

    /// The archive's path, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Tells whether the archive has a file.
    pub(super) fn has(&self, name: &str) -> bool {
        self.find(name).is_ok()
    }

    /// Returns the length of a file, and its stream.
    pub(super) fn find(&self, name: &str) -> io::Result<(u64, Box<dyn Read + Send>)> {
        match &self.form {
            Form::Directory => {
                let name = normal(name.as_bytes(), "").ok_or(io::ErrorKind::InvalidInput)?;
                let file = File::open(self.path.join(name))?;
                Ok((file.metadata()?.len(), Box::new(file)))
            }
            Form::Tar { file, places } => {
                let mut name = normal(name.as_bytes(), "").ok_or(io::ErrorKind::InvalidInput)?;
                for _ in 0..MOST_LINKS {
                    match places.get(&name).ok_or(io::ErrorKind::NotFound)? {
                        Place::Section { at, len } => {
                            return Ok((*len, Box::new(Section::new(Arc::clone(file), *at, *len))));
                        }
                        Place::Link(target) => name.clone_from(target),
                    }
                }
                Err(io::ErrorKind::NotFound.into())
            }
        }
    }

    /// Reads a small file.
    pub(super) fn read(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.path.join(name);
        let (len, stream) = self.find(name).map_err(Error::host("open", &path))?;
        if len > MOST {
            let problem = format!("it has {len} bytes, and may have {MOST}");
            return Err(Error::Document { what: path.display().to_string(), problem });
        }
        let mut bytes = Vec::new();
        stream.take(MOST).read_to_end(&mut bytes).map_err(Error::host("read", &path))?;
        Ok(bytes)
    }
}

impl Store {
    /// Unpacks a stream into a file without a name.
    fn unpack(&self, mut stream: impl Read, archive: &Path) -> Result<File> {
        let path = self.partial_of_archive();
        let file = File::options().create_new(true).read(true).write(true).open(&path);
        let mut file = file.map_err(Error::host("create", &path))?;
        fs::remove_file(&path).map_err(Error::host("remove", &path))?;
        io::copy(&mut stream, &mut file).map_err(Error::host("unpack", archive))?;
        Ok(file)
    }
}

fn is_plain(file: &File) -> io::Result<bool> {
    use std::os::unix::fs::FileExt;
    let mut magic = [0; 5];
    let is_tar = file.read_at(&mut magic, 257)? == magic.len() && magic == *b"ustar";
    Ok(is_tar)
}

/// Finds the files of a tar stream.
fn places(stream: Section) -> std::result::Result<BTreeMap<String, Place>, TarError> {
    let mut places = BTreeMap::new();
    let mut reader = Reader::new(stream);
    while let Some(entry) = reader.next_entry()? {
        let Some(name) = normal(&entry.path, "") else { continue };
        let place = match entry.content {
            Content::File { size, .. } => Place::Section { at: reader.input().at(), len: size },
            Content::HardLink(target) => match normal(&target, "") {
                Some(target) => Place::Link(target),
                None => continue,
            },
            Content::Symlink(target) => {
                let parent = name.rsplit_once('/').map_or("", |(parent, _)| parent);
                match normal(&target, parent) {
                    Some(target) => Place::Link(target),
                    None => continue,
                }
            }
            _ => continue,
        };
        places.insert(name, place);
    }
    Ok(places)
}

/// Writes a path out from the archive's root. Returns `None` if it leads out of it.
fn normal(path: &[u8], directory: &str) -> Option<String> {
    let path = str::from_utf8(path).ok()?;
    let mut names: Vec<&str> = directory.split('/').filter(|name| !name.is_empty()).collect();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()?),
            name => names.push(name),
        }
    }
    Some(names.join("/"))
}
