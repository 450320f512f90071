//! Tracks which pages of guest memory were written, and puts them back.

pub mod freeze;
pub mod populated;
pub mod reset;
