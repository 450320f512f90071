//! Guest memory, and all of this crate's mmap.
//!
//! Guest RAM is an immutable base plus private dirty pages. A [`ram::GuestRam`] is a host range reserved once, when the
//! VM's memory slots are registered; a [`backing::Backing`] says what is mapped over it.
//!
//! ```text
//! guest physical   0 ......... 3 GiB | hole | 4 GiB ........
//! host range       [ region 0       ][ region 1 ............]   one reservation
//! base file        [ 0 ... 3 GiB    ][ 3 GiB ...............]   the same offsets
//! ```
//!
//! A base may be filled as it is touched: a [`lazy::source::PageSource`] says what is in it, a [`lazy::filler::Filler`] puts that there, a
//! [`lazy::fault_service::Service`] does so for the page faults of all VMs over it, and each VM has its [`lazy::faults::Faults`]. Where the service is in
//! another process is nothing that a VM notices: it knows a [`lazy::faults::Paging`]. What a guest is likely to touch is read ahead of it
//! ([`lazy::prefetch`]).

pub mod dirty;
pub mod files;
pub mod lazy;
pub mod page_ranges;
pub mod page_set;

pub mod backing;
pub mod base;
pub mod own_writes;
pub mod prefault;
pub mod ram;
pub mod range;
pub mod reclaim;
#[cfg(test)]
pub mod testing;

/// Bytes of a page, the unit of everything here.
pub const PAGE: u64 = 4096;
