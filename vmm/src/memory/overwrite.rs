//! Replaces a whole page of guest memory. Its old content does not matter, so memory that page faults fill
//! fetches no chunk for it: a restore that writes to a page would otherwise read 64 KiB first, and fail if
//! they are unavailable.

use std::io;

use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

use super::PAGE;
use super::own_writes::presence;
use super::ram::GuestRam;

/// Replaces the page at a guest physical address. The write counts among this process's own.
///
/// # Errors
/// The page is not RAM, or memory of this VM is unavailable.
pub fn overwrite_page(ram: &GuestRam, gpa: u64, content: &[u8; PAGE as usize]) -> io::Result<()> {
    let memory = ram.guest();
    if let (Some(faults), Some(presence)) = (ram.faults(), presence(memory)) {
        let at = memory.get_host_address(GuestAddress(gpa)).map_err(io::Error::other)? as u64;
        // Skips a present page, whose write below causes no fault.
        if faults.userfault().copy(at, content).is_ok() {
            let offset = at - faults.start();
            faults.there().note(offset..offset + PAGE);
        }
        // Checks for a failure, and fetches a page that could not be placed.
        let ensured = presence.ensure(gpa, PAGE);
        ensured.map_err(|_| io::Error::other(faults.failure().unwrap_or_default()))?;
    }
    memory.write_slice(content, GuestAddress(gpa)).map_err(io::Error::other)
}
