//! A process of its own that fills the base of all VMs on a host that run from one packed snapshot, so that a chunk is read once for
//! all of them. Started by the first of them, it goes some seconds after the last.
//!
//! ```text
//!   VM                                       pager                       one for each pack, as `place` has it
//!    │ connect ─────────────────────────────> │
//!    │ Base (its memfd, if it has one) ─────> │  adopts that, or makes one
//!    │ <──────────────────── its memfd, ro ── │
//!    │ maps and registers it                  │
//!    │ Serve (where; its userfaultfd) ──────> │  wakes all of it, reads its faults from now on
//!    │ <───────────────────────────── Done ── │
//!    │ Prefetch (a list of pages) ──────────> │  fetches them, once for all VMs that name the same
//!    │ Fetched ─────────────────────────────> │
//!    │ <──── Fetched (a list of chunks; sums) │
//!    │ Complete ────────────────────────────> │  fetches what is missing
//!    │ <─────────────────── Done / Refused ── │
//!    │ <───────────── Unreadable (a range) ── │  at any time; the VM ends, and refuses that range itself
//!    │ Ping ────────────────────────────────> │  while faults or an answer wait longer than they should
//!    │ <──────────────────────────── Alive ── │
//!    │ says no more ────────────────────────> │  touches that VM's memory no more, then
//!    │ <────────────────────────────── ends ─ │
//! ```
//!
//! A VM keeps its userfaultfd and the memfd. If the pager dies, faults wait; the VM starts another one (`client`), and gives it both.
//! Chunks that the dead one has read are there. If there is none in time, the VM ends. So it does if the
//! pager lives and answers nothing while faults wait.
//!
//! A VM that ends frees its memory at once, and gives the addresses back to its process only once the pager
//! has ended the connection: a zero-fill that came late would land in whatever is registered there by then.
//!
//! **Who could fool whom.** A base has holes until it is filled, and whoever has it, if only to read, can
//! fill them: it can be opened for writing again, and reading a hole through another mapping makes a page of
//! zeros. So all VMs that share one trust each other: they are of one user and one trust group, each of
//! which has pagers of its own in a directory that only that user can enter, and both ends look who the
//! other is. A pack is known by what the file system says of its file, which a pack's author cannot choose
//! (its digest he could). What a VM says about its memory is only ever applied to that VM's own memory, and
//! only within the length of the base, and so is what it would have fetched ahead: the pager copies the list
//! before it looks at it. A VM that brings a memfd, which it does when a pager has died, vouches for what is in it: no VM that does not bring the same is given it.

pub mod client;
mod connection;
mod list;
mod message;
pub mod options;
pub mod place;
pub mod server;
mod watch;

#[cfg(test)]
mod tests;
