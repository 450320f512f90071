//! Names of files in a directory.

/// Longest name of a file, in bytes.
pub const LONGEST_NAME: usize = 255;

/// Tells whether a file can have the name. `.` and `..` belong to the directory itself.
pub(crate) fn is_name(name: &[u8]) -> bool {
    (1..=LONGEST_NAME).contains(&name.len())
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}
