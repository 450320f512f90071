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
//! ```
//!
//! A VM keeps its userfaultfd and the memfd. If the pager dies, faults wait; the VM starts another one (`client`), and gives it both.
//! Chunks that the dead one has read are there. If there is none in time, the VM ends.
//!
//! **Who could fool whom.** All processes that share a pager are of one user: the sockets lie in a directory that only that user
//! can enter, and both ends look who the other is. A pack is known by what the file system says of its file, which a pack's author
//! cannot choose (its digest he could). What a VM says about its memory is only ever applied to that VM's own memory, and only within
//! the length of the base, and so is what it would have fetched ahead: the pager copies the list before it looks at it. A VM that brings a
//! memfd, which it does when a pager has died, vouches for what is in it: as any process of that user could write to it.

pub mod client;
mod list;
mod message;
pub mod place;
pub mod server;
