//! Guest memory: filled on access in the process or by a shared pager, copied for one VM, and damaged.

mod changed_memory;
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
