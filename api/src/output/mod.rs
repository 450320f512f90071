//! Output of commands: results as text or JSON, and progress.

pub(crate) mod inspection;
pub(crate) mod print;
pub(crate) mod progress;
pub(crate) mod recorded;
pub(crate) mod replayed;
pub(crate) mod scrape;
pub(crate) mod table;
