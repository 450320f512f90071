//! Disks in snapshots: copies of their layers, and what images without a layer were at the instant.

pub mod images;
pub mod layers;
