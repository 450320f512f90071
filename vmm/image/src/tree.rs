//! A tree of files, without their content.

use std::collections::BTreeMap;

/// The number of an inode in its [`Tree`].
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct InodeId(pub(crate) usize);

/// Files of a file system. Names that share an inode are hard links.
#[derive(Clone, Debug)]
pub struct Tree {
    inodes: Vec<Inode>,
}

/// A file of any kind.
#[derive(Clone, Debug)]
pub struct Inode {
    /// The kind of file, with its content.
    pub kind: Kind,
    /// Permission bits, with set-user-ID, set-group-ID and sticky (the low 12 bits of `st_mode`).
    pub permissions: u16,
    /// The owner.
    pub user: u32,
    /// The owning group.
    pub group: u32,
    /// Time of the last change of the content.
    pub modified: Time,
    /// Extended attributes by their whole name, such as `security.capability`.
    pub attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A point in time.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Time {
    /// Seconds since 1970 in UTC.
    pub seconds: i64,
    /// Nanoseconds beyond these, below 10^9.
    pub nanoseconds: u32,
}

/// A kind of file, with its content.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Kind {
    /// A regular file: `size` bytes from the start of a block of the disk on.
    File {
        /// Bytes.
        size: u64,
        /// The first block; without meaning for an empty file.
        block: u32,
    },
    /// A directory: its entries by name, without `.` and `..`.
    Directory(BTreeMap<Vec<u8>, InodeId>),
    /// A symbolic link to this path.
    Symlink(Vec<u8>),
    /// A block device.
    BlockDevice(Device),
    /// A character device.
    CharacterDevice(Device),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// The number of a device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Device {
    /// The driver: 12 bits.
    pub major: u32,
    /// The device of that driver: 20 bits.
    pub minor: u32,
}

impl Inode {
    /// Makes an empty directory of root, last changed in 1970.
    #[must_use]
    pub fn directory(permissions: u16) -> Self {
        Self {
            kind: Kind::Directory(BTreeMap::new()),
            permissions,
            user: 0,
            group: 0,
            modified: Time::default(),
            attributes: BTreeMap::new(),
        }
    }
}

impl Tree {
    /// The root directory.
    pub const ROOT: InodeId = InodeId(0);

    /// Makes a tree of an empty root directory, whose `kind` is ignored.
    #[must_use]
    pub fn new(root: Inode) -> Self {
        Self { inodes: vec![Inode { kind: Kind::Directory(BTreeMap::new()), ..root }] }
    }

    /// Adds an inode that has no name yet.
    pub fn add(&mut self, inode: Inode) -> InodeId {
        self.inodes.push(inode);
        InodeId(self.inodes.len() - 1)
    }

    /// Gives an inode a name in a directory. Returns the inode that had it before.
    ///
    /// # Panics
    /// `directory` is none.
    pub fn link(&mut self, directory: InodeId, name: &[u8], inode: InodeId) -> Option<InodeId> {
        match &mut self.inodes[directory.0].kind {
            Kind::Directory(entries) => entries.insert(name.to_vec(), inode),
            kind => panic!("{kind:?} has no entries"),
        }
    }

    /// Takes a name away. Returns the inode that had it.
    pub fn unlink(&mut self, directory: InodeId, name: &[u8]) -> Option<InodeId> {
        match &mut self.inodes[directory.0].kind {
            Kind::Directory(entries) => entries.remove(name),
            _ => None,
        }
    }

    /// Returns the inode that has a name in a directory.
    #[must_use]
    pub fn entry(&self, directory: InodeId, name: &[u8]) -> Option<InodeId> {
        match &self.inode(directory).kind {
            Kind::Directory(entries) => entries.get(name).copied(),
            _ => None,
        }
    }

    /// Tells whether an inode is a directory.
    #[must_use]
    pub fn is_directory(&self, id: InodeId) -> bool {
        matches!(self.inode(id).kind, Kind::Directory(_))
    }

    /// Returns an inode.
    #[must_use]
    pub fn inode(&self, id: InodeId) -> &Inode {
        &self.inodes[id.0]
    }

    /// Returns an inode, to change it.
    pub fn inode_mut(&mut self, id: InodeId) -> &mut Inode {
        &mut self.inodes[id.0]
    }

    /// Returns a path that leads from the root to an inode, if one does.
    #[must_use]
    pub fn path_of(&self, id: InodeId) -> Option<Vec<u8>> {
        let mut directories = vec![(Vec::new(), Self::ROOT)];
        while let Some((path, directory)) = directories.pop() {
            let Kind::Directory(entries) = &self.inode(directory).kind else { continue };
            for (name, found) in entries {
                let path = [&path[..], b"/", name].concat();
                if *found == id {
                    return Some(path);
                }
                if self.is_directory(*found) {
                    directories.push((path, *found));
                }
            }
        }
        None
    }

    /// Returns the number of inodes, with those that have no name.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inodes.len()
    }

    /// Tells whether the tree has no inode: never, for it has a root.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }
}
