//! Disks that tests give to guests.

use std::fs::File;
use std::io;
use std::path::Path;

use volt_image::ext4::{Description, FileSystem};

/// Makes an ext4 disk of this size with empty directories.
///
/// # Errors
/// The disk cannot be written.
///
/// # Panics
/// The size or a name is impossible.
pub fn ext4(image: &Path, size: u64, directories: &[&str]) -> io::Result<()> {
    let description =
        Description { size, identity: [7; 16], hash_seed: [9; 16], made: 1_750_000_000, directories };
    FileSystem::new(description).expect("a possible disk").write(&File::create(image)?)
}
