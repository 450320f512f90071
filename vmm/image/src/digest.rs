//! Digests of content, as descriptors name it (OCI image specification, descriptor.md, Digests).

use std::fmt::Write;
use std::io::{self, Read};

pub use oci_spec::image::Digest;
use oci_spec::image::DigestAlgorithm;
use sha2::{Digest as _, Sha256};

/// A stream that is hashed while it is read.
#[derive(Debug)]
pub struct Hashed<R> {
    inner: R,
    hash: Sha256,
    len: u64,
}

impl<R> Hashed<R> {
    /// Hashes what is read of a stream from now on.
    pub fn new(inner: R) -> Self {
        Self { inner, hash: Sha256::new(), len: 0 }
    }

    /// Returns the digest and the length of what was read.
    pub fn finish(self) -> (Digest, u64) {
        (named(&self.hash.finalize()), self.len)
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hash.update(&buffer[..count]);
        self.len += count as u64;
        Ok(count)
    }
}

/// Returns the digest of bytes.
#[must_use]
pub fn of(bytes: &[u8]) -> Digest {
    named(&Sha256::digest(bytes))
}

/// Tells whether this crate can compute digests of the algorithm.
#[must_use]
pub fn is_known(digest: &Digest) -> bool {
    *digest.algorithm() == DigestAlgorithm::Sha256
}

fn named(hash: &[u8]) -> Digest {
    let mut name = String::from("sha256:");
    hash.iter().for_each(|byte| write!(name, "{byte:02x}").expect("strings take all text"));
    name.parse().expect("a digest")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_has_the_digest_of_its_bytes() {
        let mut stream = Hashed::new(&b"abc"[..]);
        io::copy(&mut stream, &mut io::sink()).unwrap();
        let (digest, len) = stream.finish();
        // FIPS 180-4's example.
        let expected = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((digest.to_string().as_str(), len, digest), (expected, 3, of(b"abc")));
    }
}
