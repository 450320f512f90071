//! Linux continues after snapshots, forks and rewinds, and power cuts leave complete files or none.

mod clocks;
mod generation;
mod jumps;
mod memory;
mod power_cuts;
mod restoring;
mod working_set;
