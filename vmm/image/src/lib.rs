//! Images of file trees, as disks of microVMs.
//!
//! A [`Tree`] describes files whose content lies in blocks of a disk. [`erofs::Metadata`] is the metadata of
//! a file system of them (Documentation/filesystems/erofs.rst of Linux). A [`store::Store`] keeps images. An
//! [`ext4::FileSystem`] is an empty disk that takes what a VM writes above them. A VM reads a
//! [`directory::Directory`] of the host as a disk.

pub mod archive;
mod cancel;
mod crc32c;
pub mod digest;
pub mod directory;
pub mod erofs;
pub mod error;
pub mod ext4;
pub mod layer;
pub mod lock;
pub mod manifest;
pub mod merge;
mod name;
pub mod reference;
pub mod store;
pub mod tar;
#[cfg(test)]
mod testing;
pub mod tree;
pub mod unpacked;
pub mod vmdk;

pub use error::{Error, Result};
pub use tree::Tree;
