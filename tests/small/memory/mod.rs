//! Guest memory: filled on access in the process, by a shared pager or by a memory handler, copied for one
//! VM, in huge pages, and damaged.

mod changed_memory;
mod handled;
mod handler_failures;
mod huge_pages;
mod isolated;
mod large_base;
mod lazy;
mod lazy_forks;
mod limited;
mod pager;
mod pager_devices;
mod pager_groups;
mod pager_hostile;
mod unreadable;

pub(crate) use pager::{Shared, goes_on};
