//! A large memory that is nearly empty, for its index.

use std::ops::Range;

use volt_vmm::internal::pack::MemorySource;

/// Memory of 16 GiB, with a number in each 32 KiB.
pub struct Large(Range<u64>);

impl Large {
    pub const LEN: u64 = 16 << 30;

    pub fn new() -> Self {
        Self(0..Self::LEN)
    }
}

impl MemorySource for Large {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> volt_vmm::Result<()> {
        into.fill(0);
        into[..8].copy_from_slice(&(offset + 1).to_le_bytes());
        Ok(())
    }

    fn populated(&self) -> &[Range<u64>] {
        std::slice::from_ref(&self.0)
    }
}
