//! A value in a file of memory that outlives this program, for the next one.
//!
//! The file begins with the place and the length of the value. A new value goes beside the old one before the
//! beginning names it, so that a program that is killed meanwhile leaves one of both.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use serde::Serialize;
use serde::de::DeserializeOwned;

const HEADER: u64 = 16;

/// The file.
#[derive(Debug)]
pub struct Kept(File);

impl Kept {
    /// Takes a file. An empty one has no value.
    pub fn new(file: OwnedFd) -> Self {
        Self(file.into())
    }

    /// Reads the value.
    pub fn load<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        let Some((place, length)) = self.place()? else { return Ok(None) };
        let mut text = vec![0; length as usize];
        self.0.read_exact_at(&mut text, place)?;
        Ok(Some(serde_json::from_slice(&text)?))
    }

    /// Replaces the value.
    pub fn save(&self, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_vec(value)?;
        let place = match self.place()? {
            Some((old, length)) if old - HEADER < text.len() as u64 => old + length,
            _ => HEADER,
        };
        self.0.write_all_at(&text, place)?;
        let mut header = [0; HEADER as usize];
        header[..8].copy_from_slice(&place.to_le_bytes());
        header[8..].copy_from_slice(&(text.len() as u64).to_le_bytes());
        self.0.write_all_at(&header, 0)
    }

    fn place(&self) -> io::Result<Option<(u64, u64)>> {
        let mut header = [0; HEADER as usize];
        if self.0.read_at(&mut header, 0)? == 0 {
            return Ok(None);
        }
        let (place, length) = header.split_at(8);
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
        Ok(Some((number(place), number(length))).filter(|(place, _)| *place >= HEADER))
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn last_value_is_read_from_a_duplicate_of_the_file() {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        let next = Kept::new(file.try_clone().unwrap());
        let kept = Kept::new(file);
        assert_eq!(next.load::<String>().unwrap(), None);
        for length in [3, 1000, 2000, 5, 0, 100_000, 7] {
            let value = "x".repeat(length);
            kept.save(&value).unwrap();
            assert_eq!(next.load::<String>().unwrap(), Some(value));
        }
    }
}
