//! Guest memory that is filled on access: in the process, by a shared pager, and damaged.

mod changed_memory;
mod large_base;
mod lazy;
mod lazy_forks;
mod pager;
mod pager_devices;
mod pager_groups;
mod pager_hostile;
mod unreadable;
