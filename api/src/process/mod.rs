//! The process of one VM: its start, its signals, its forks and its exit status.

pub(crate) mod bounds;
pub(crate) mod child_command;
pub(crate) mod confinement;
pub(crate) mod confinement_choice;
pub(crate) mod environment;
pub(crate) mod exit;
pub(crate) mod fault_signals;
pub(crate) mod forbidden_calls;
pub(crate) mod fork;
pub(crate) mod guest_note;
pub(crate) mod home;
pub(crate) mod jail;
mod journal;
pub(crate) mod lines;
pub(crate) mod log;
mod main_process;
pub(crate) mod output_file;
pub(crate) mod serial_output;
pub(crate) mod shared_pager;
pub(crate) mod signals;
pub(crate) mod start;
pub(crate) mod vm_slot;
