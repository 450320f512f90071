//! Layers of images: streams with headers whose checksums are right, and trees as text.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use arbitrary::Arbitrary;
use volt_image::erofs::{BLOCK, Metadata};
use volt_image::layer::Record;
use volt_image::tree::{InodeId, Kind, Tree};

const RECORD: usize = 512;

/// An entry of a stream.
#[derive(Debug, Arbitrary)]
pub struct Entry {
    kind: EntryKind,
    path: Path,
    link: Path,
    mode: u16,
    user: u16,
    /// Replaces the size that the content has.
    size: Option<u64>,
    content: Vec<u8>,
    records: Vec<(Key, Vec<u8>)>,
}

/// The types of entries, with one that does not exist.
#[derive(Clone, Copy, Debug, Arbitrary)]
enum EntryKind {
    Regular,
    Old,
    Link,
    Symlink,
    Character,
    Block,
    Directory,
    Fifo,
    Sparse,
    LongName,
    LongLink,
    Global,
    Unknown,
}

/// Names that meet often.
#[derive(Debug, Arbitrary)]
struct Path {
    names: Vec<Name>,
    is_absolute: bool,
}

#[derive(Clone, Copy, Debug, Arbitrary)]
enum Name {
    A,
    B,
    C,
    Parent,
    Self_,
    Removed,
    Opaque,
    Long,
}

#[derive(Clone, Copy, Debug, Arbitrary)]
enum Key {
    Path,
    Linkpath,
    Size,
    Mtime,
    User,
    Attribute,
    Overlay,
    Map,
    Major,
    RealSize,
    SparseSize,
}

impl Path {
    fn text(&self) -> Vec<u8> {
        let name = |name: &Name| match name {
            Name::A => b"a".to_vec(),
            Name::B => b"b".to_vec(),
            Name::C => b"c".to_vec(),
            Name::Parent => b"..".to_vec(),
            Name::Self_ => b".".to_vec(),
            Name::Removed => b".wh.a".to_vec(),
            Name::Opaque => b".wh..wh..opq".to_vec(),
            Name::Long => vec![b'l'; 255],
        };
        let names: Vec<_> = self.names.iter().map(name).collect();
        [if self.is_absolute { &b"/"[..] } else { b"" }, &names.join(&b'/')].concat()
    }
}

impl EntryKind {
    fn flag(self) -> u8 {
        match self {
            Self::Regular => b'0',
            Self::Old => 0,
            Self::Link => b'1',
            Self::Symlink => b'2',
            Self::Character => b'3',
            Self::Block => b'4',
            Self::Directory => b'5',
            Self::Fifo => b'6',
            Self::Sparse => b'S',
            Self::LongName => b'L',
            Self::LongLink => b'K',
            Self::Global => b'g',
            Self::Unknown => b'~',
        }
    }
}

impl Key {
    fn text(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Linkpath => "linkpath",
            Self::Size => "size",
            Self::Mtime => "mtime",
            Self::User => "uid",
            Self::Attribute => "SCHILY.xattr.user.a",
            Self::Overlay => "SCHILY.xattr.trusted.overlay.opaque",
            Self::Map => "GNU.sparse.map",
            Self::Major => "GNU.sparse.major",
            Self::RealSize => "GNU.sparse.realsize",
            Self::SparseSize => "GNU.sparse.size",
        }
    }
}

impl Entry {
    /// Adds the entry to a stream.
    pub fn write(&self, stream: &mut Vec<u8>) {
        let records: Vec<u8> =
            self.records.iter().flat_map(|(key, value)| record(key.text(), value)).collect();
        if !records.is_empty() {
            header(stream, b'x', b"records", b"", 0, 0, records.len() as u64);
            padded(stream, &records);
        }
        let size = self.size.unwrap_or(self.content.len() as u64);
        let (path, link) = (self.path.text(), self.link.text());
        header(stream, self.kind.flag(), &path, &link, self.mode, self.user, size);
        padded(stream, &self.content);
    }
}

fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let bare = key.len() + value.len() + 3;
    let len = (bare + 1..).find(|len| bare + len.to_string().len() == *len).expect("a length");
    [len.to_string().as_bytes(), b" ", key.as_bytes(), b"=", value, b"\n"].concat()
}

fn padded(stream: &mut Vec<u8>, bytes: &[u8]) {
    stream.extend(bytes);
    stream.resize(stream.len().next_multiple_of(RECORD), 0);
}

fn header(stream: &mut Vec<u8>, kind: u8, path: &[u8], link: &[u8], mode: u16, user: u16, size: u64) {
    let mut header = [0; RECORD];
    let mut put = |at: usize, most: usize, bytes: &[u8]| {
        let len = bytes.len().min(most);
        header[at..at + len].copy_from_slice(&bytes[..len]);
    };
    put(0, 100, path);
    put(100, 8, format!("{mode:07o}").as_bytes());
    put(108, 8, format!("{user:07o}").as_bytes());
    put(116, 8, b"0000000");
    put(124, 12, format!("{:011o}", size % (1 << 33)).as_bytes());
    put(136, 12, b"00000000000");
    put(148, 8, b"        ");
    put(156, 1, &[kind]);
    put(157, 100, link);
    put(257, 8, b"ustar\x0000");
    put(329, 8, b"0000001");
    put(337, 8, b"0000003");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    stream.extend(header);
}

/// A piece of a stream: literal bytes, or offset and length in the blob.
type Piece = Result<Vec<u8>, (u64, u64)>;

/// The pieces of a stream.
#[derive(Clone, Debug, Default)]
pub struct Pieces(Rc<RefCell<Vec<Piece>>>);

impl Record for Pieces {
    fn literal(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.borrow_mut().push(Ok(bytes.to_vec()));
        Ok(())
    }

    fn content(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.0.borrow_mut().push(Err((offset, len)));
        Ok(())
    }
}

impl Pieces {
    /// Makes the stream again.
    ///
    /// # Panics
    /// The blob does not have a piece.
    #[must_use]
    pub fn joined(&self, blob: &[u8]) -> Vec<u8> {
        let piece = |piece: &Piece| match piece {
            Ok(bytes) => bytes.clone(),
            Err((offset, len)) => blob[*offset as usize..][..*len as usize].to_vec(),
        };
        self.0.borrow().iter().flat_map(piece).collect()
    }
}

/// A tree as text: each path with all that its file has, and the first path of the same file.
#[must_use]
pub fn listed(tree: &Tree) -> BTreeMap<Vec<u8>, String> {
    let (mut lines, mut first) = (BTreeMap::new(), BTreeMap::<InodeId, Vec<u8>>::new());
    let mut directories = vec![(Vec::new(), Tree::ROOT)];
    while let Some((path, directory)) = directories.pop() {
        let Kind::Directory(entries) = &tree.inode(directory).kind else { continue };
        for (name, id) in entries {
            let path = [&path[..], b"/", name].concat();
            if tree.is_directory(*id) {
                directories.push((path.clone(), *id));
            }
            first.entry(*id).or_insert_with(|| path.clone());
            lines.insert(path, *id);
        }
    }
    // Names of one file are told by the least of them.
    for (path, id) in &lines {
        first.entry(*id).and_modify(|first| *first = path.clone().min(first.clone()));
    }
    lines
        .into_iter()
        .map(|(path, id)| {
            let inode = tree.inode(id);
            let kind = match &inode.kind {
                Kind::Directory(_) => "directory".to_owned(),
                // An empty file has no block.
                Kind::File { size: 0, .. } => "empty".to_owned(),
                kind => format!("{kind:?}"),
            };
            let of = (inode.permissions, inode.user, inode.group, inode.modified, &inode.attributes);
            let text = format!("{kind} {of:?} {:?}", first[&id]);
            (path, text)
        })
        .collect()
}

/// Writes the file system of a tree whose content ends at a block. Returns nothing if EROFS cannot have it.
///
/// # Panics
/// Its metadata are longer than they say.
#[must_use]
pub fn image(tree: &Tree, mut blob: Vec<u8>) -> Option<Vec<u8>> {
    let first = u32::try_from(blob.len() / BLOCK).ok()?;
    let metadata = Metadata::new(tree, first).ok()?;
    let mut bytes = Vec::new();
    metadata.write(&mut bytes).expect("memory");
    assert_eq!(bytes.len(), metadata.blocks() as usize * BLOCK);
    blob[..BLOCK].copy_from_slice(&metadata.superblock(first + metadata.blocks(), [0; 16]));
    blob.extend(bytes);
    Some(blob)
}
