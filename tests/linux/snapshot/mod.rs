//! Linux goes on after snapshots, forks and rewinds, and a power cut leaves whole files.

mod clocks;
mod memory;
mod power_cuts;
mod restoring;
mod working_set;
