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
//! A base may be filled as it is touched: a [`source::PageSource`] says what is in it, a [`filler::Filler`] puts that there, a
//! [`service::Service`] does so for the page faults of all VMs over it, and each VM has its [`faults::Faults`]. Where the service is in
//! another process is nothing that a VM notices: it knows a [`paging::Paging`]. What a guest is likely to touch is read ahead of it
//! ([`prefetch`]).

pub mod backing;
pub mod faults;
pub mod filler;
pub mod floor;
pub mod freeze;
#[cfg(test)]
mod lazy_tests;
pub mod lease;
pub mod pages;
pub mod paging;
mod patience;
pub mod populated;
pub mod prefetch;
pub mod presence;
pub mod put_back;
pub mod ram;
pub mod reclaim;
mod resident;
pub mod runs;
pub mod sealing;
pub mod service;
pub mod source;
#[cfg(test)]
pub mod testing;
pub mod touch;
pub mod userfault;
pub mod whole;
pub mod writes;

/// Bytes of a page, the unit of everything here.
pub const PAGE: u64 = 4096;
