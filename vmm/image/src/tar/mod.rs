//! Reads tar streams: ustar, GNU's and PAX's forms.

mod header;
mod pax;
mod reader;
mod sparse;

pub use header::{Content, Entry};
pub use reader::Reader;

use thiserror::Error;

/// A fault of a stream.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("the tar stream is malformed: {0}")]
pub struct Malformed(pub(crate) &'static str);

/// Why the next entry of a stream cannot be read.
#[derive(Debug, Error)]
pub enum TarError {
    /// The stream has what no tar has.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A header has what no file can have.
    #[error("{path} in the tar stream is malformed: {}", fault.0)]
    Entry {
        /// The file's path, as its header has it.
        path: String,
        /// The fault.
        fault: Malformed,
    },
    /// The stream ends within an entry, or cannot be read.
    #[error("cannot read the tar stream")]
    Read(#[from] std::io::Error),
}
