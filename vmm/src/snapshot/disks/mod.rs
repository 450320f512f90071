//! Disks in snapshots: copies of layers, and records of the images of disks without a layer.

pub mod images;
pub mod layers;
