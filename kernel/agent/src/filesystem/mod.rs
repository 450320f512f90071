//! The file system: entries, directories and watches.

pub mod entry;
mod list;
pub mod path;
mod remove;
pub mod service;
pub mod walk;
mod watch;
pub mod watchers;
