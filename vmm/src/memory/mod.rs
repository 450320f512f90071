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

pub mod backing;
pub mod freeze;
pub mod pages;
pub mod populated;
pub mod ram;
pub mod reclaim;
pub mod writes;

/// Bytes of a page, the unit of everything here.
pub const PAGE: u64 = 4096;
