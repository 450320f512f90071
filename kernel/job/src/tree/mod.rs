//! Trees: a file, or a directory with all below it, as a stream.
//!
//! ```text
//! u32, little-endian   length of the header, at most 1 MiB
//! JSON                 the header: path, kind, mode, owner, time, size, target, xattrs, extents
//! bytes                the extents' content, one after another; holes are not sent
//! …                    more such records
//!                      a record of kind `end`, or `error` with a message
//! ```
//!
//! A directory comes before what is below it, and all below it comes before what is beside it. The first
//! component of all paths is the name of the first entry. In texts, a percent sign and two hexadecimal digits
//! stand for a byte: a control character, a percent sign, or one outside UTF-8. A `hardlink` has the path of
//! an earlier file as its target. A `warning` tells what the stream lacks, such as sockets and devices.
//!
//! [`Source`] writes a stream, and [`unpack()`] reads one into a directory. A stream may come from a hostile
//! guest: its reader writes nothing outside of the directory, and follows no symlink of the tree.

mod attributes;
mod content;
mod escaped;
mod header;
mod pack;
mod place;
mod unpack;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod scratch;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use attributes::Owner;
pub use pack::Source;
pub use unpack::{Options, unpack};

/// Path of the agent's calls. A GET sends a tree, and a POST takes one.
pub const PATH: &str = "/volt/tree";

/// The agent's answer to a POST.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Unpacked {
    /// The first warnings.
    pub warnings: Vec<String>,
    /// The number of those that are left out.
    pub more_warnings: u64,
}
