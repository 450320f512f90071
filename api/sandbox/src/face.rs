//! The two faces of builders: their setters are the same, and their acts block or are async.

/// The acts of a builder block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {}
