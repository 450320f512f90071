//! Commands that clients start: their output, input and end.
//!
//! ```text
//! start ── spawn ── Process ─┬─ pump: pipe or terminal ── ring ── follow: one task a client
//!                            ├─ supervise: deadline, end
//!                            └─ input
//! ```
//!
//! The main process of a VM is one of them. Process 1 starts it, and waits for its end ([`main_process`]).

mod attach;
mod end;
mod ended;
mod follow;
mod group;
mod input;
mod log;
pub mod main_process;
mod process;
mod pump;
mod ring;
pub mod service;
mod spawn;
mod supervise;
pub mod table;
