//! Tracks written pages of guest memory, and resets them.

pub mod freeze;
pub mod populated;
pub mod reset;
