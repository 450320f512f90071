//! Writes boot structures into guest memory.

use vm_memory::{ByteValued, Bytes, GuestAddress, GuestMemory};

use crate::error::Error;

/// Writes `bytes` to guest physical `address`; errors call them `what`.
pub(crate) fn write<M: GuestMemory>(memory: &M, what: &str, address: u64, bytes: &[u8]) -> Result<(), Error> {
    memory.write_slice(bytes, GuestAddress(address)).map_err(|source| Error::GuestMemory {
        what: what.into(),
        address,
        source,
    })
}

/// Writes a structure of the boot ABI.
pub(crate) fn write_object<M: GuestMemory, T: ByteValued>(
    memory: &M,
    what: &str,
    address: u64,
    object: &T,
) -> Result<(), Error> {
    write(memory, what, address, object.as_slice())
}
