//! The pager is a process that fills the base of all VMs of a host over one packed snapshot. It reads each
//! chunk once for all of them. The first VM starts it, and it ends some seconds after the last.
//!
//! ```text
//!   VM                                       pager, one for each pack (see `place`)
//!    │ connect ─────────────────────────────> │
//!    │ Base (its memfd, if it has one) ─────> │  adopts that, or makes one
//!    │ <──────────────────── its memfd, ro ── │
//!    │ maps and registers it                  │
//!    │ Serve (address; its userfaultfd) ────> │  wakes the whole range, and reads its faults from now on
//!    │ <───────────────────────────── Done ── │
//!    │ Prefetch (a list of pages) ──────────> │  fetches them, once for all VMs that name the same list
//!    │ Fetched ─────────────────────────────> │
//!    │ <──── Fetched (a list of chunks; sums) │
//!    │ Complete ────────────────────────────> │  fetches the missing chunks
//!    │ <─────────────────── Done / Refused ── │
//!    │ <───────────── Unreadable (a range) ── │  at any time; the VM ends, and refuses that range itself
//!    │ Ping ────────────────────────────────> │  while faults or an answer wait longer than they should
//!    │ <──────────────────────────── Alive ── │
//!    │ shuts its sending side down ─────────> │  stops acting on that VM's memory, then
//!    │ <───────────── ends the connection ─── │
//! ```
//!
//! A VM keeps its userfaultfd and the memfd. If the pager dies, faults wait; the VM starts another pager
//! (`client`) and gives both to it. The chunks that the dead pager read stay in the memfd. If no pager starts
//! in time, the VM ends. It also ends if a living pager does not answer while faults wait.
//!
//! A VM that ends frees its memory at once, and its process may reuse the addresses after the pager has ended
//! the connection. A zero-fill that came later would change the memory that is registered there by then.
//!
//! **Trust.** Any process with the base, even if only for reading, can fill the holes of an incomplete base.
//! It can open the memfd again for writing, and a read of a hole through another mapping makes a page of
//! zeros. Therefore all VMs that share a base trust each other. They belong to one user and one trust group.
//! Each group has pagers of its own, in a directory that only the user can enter, and both ends check the
//! user of the other.
//!
//! A pack is identified by the file system's data about its file. The author of a pack could choose its
//! digest, but not these.
//!
//! A message of a VM affects that VM's memory alone, and only within the length of the base. The same holds
//! for its list of pages to fetch: the pager copies the list before it checks it. A VM that brings a memfd,
//! because its pager died, vouches for the content. The pager gives that memfd only to VMs that bring the
//! same one.

pub mod client;
pub(crate) mod connection;
pub mod handler;
pub mod list;
pub mod message;
pub mod options;
pub mod place;
pub mod server;
mod watch;

#[cfg(test)]
mod tests;
