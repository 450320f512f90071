//! Snapshots, diffs, clones, forks and rewinds: guests continue, and files stay complete.

pub mod benching;
pub mod diffs;
mod forking;
mod leaks;
mod leftovers;
mod live;
mod max_pause;
mod on_disk;
mod other_kvm;
pub mod packed;
mod prewarming;
mod recording;
mod registers;
pub mod restoring;
mod rewinding;
mod tsc;
pub mod two_files;
mod two_vcpus;
mod whole_state;
mod working_set;
