//! Results as text and as JSON, and progress.

pub(crate) mod inspection;
pub(crate) mod print;
pub(crate) mod progress;
pub(crate) mod recorded;
pub(crate) mod replayed;
