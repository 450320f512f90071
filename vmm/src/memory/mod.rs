//! Guest memory, and all of this crate's mmap.
//!
//! Guest RAM is an immutable base plus private dirty pages. A [`ram::GuestRam`] is a host range reserved
//! once, when the VM's memory slots are registered. A [`backing::Backing`] decides the mapping over it.
//!
//! ```text
//! guest physical   0 ......... 3 GiB | hole | 4 GiB ........
//! host range       [ region 0       ][ region 1 ............]   one reservation
//! base file        [ 0 ... 3 GiB    ][ 3 GiB ...............]   the same offsets
//! ```
//!
//! Page faults may fill a base. A [`lazy::source::PageSource`] has its content, and a
//! [`lazy::filler::Filler`] copies that into the base. A [`lazy::fault_service::Service`] answers the page
//! faults of all VMs over it. Each VM has its [`lazy::faults::Faults`]. A VM knows the service as
//! [`lazy::faults::FaultHandler`], in this process or in another. A working set is read ahead
//! ([`lazy::prefetch`]).

pub mod dirty;
pub mod files;
pub mod lazy;
pub mod page_ranges;
pub mod page_set;

pub mod backing;
pub mod base;
pub mod holes;
pub mod overwrite;
pub mod own_writes;
pub mod prefault;
pub mod ram;
pub mod range;
pub mod reclaim;
#[cfg(test)]
pub mod testing;

/// Bytes of a page, the unit of everything here.
pub const PAGE: u64 = 4096;
