//! Statistics of the guest's memory (virtio 1.2, section 5.5.6.3).

use serde::{Deserialize, Serialize};

use crate::devices::virtio::chain::Buffers;

/// Bytes of a statistic: a tag of 16 bits and a value of 64, in little-endian.
const LEN: usize = 10;
/// Most statistics read from one buffer. Virtio defines 11.
const MOST: usize = 64;

/// The driver's last statistics. A driver may leave some out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Statistics {
    /// Bytes swapped in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_in: Option<u64>,
    /// Bytes swapped out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_out: Option<u64>,
    /// Page faults that read from a disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major_faults: Option<u64>,
    /// Page faults without I/O.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minor_faults: Option<u64>,
    /// Unused bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_memory: Option<u64>,
    /// Bytes in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_memory: Option<u64>,
    /// Bytes available to a new program without swapping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_memory: Option<u64>,
    /// Bytes of file cache that can be reclaimed without I/O.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_caches: Option<u64>,
    /// Huge pages allocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugetlb_allocations: Option<u64>,
    /// Huge pages that could not be allocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugetlb_failures: Option<u64>,
    /// Processes killed for lack of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_kills: Option<u64>,
    /// Allocations that had to reclaim memory first. This and the next ones are not part of a saved state;
    /// the guest sends them again.
    #[serde(skip)]
    pub allocation_stalls: Option<u64>,
    /// Pages looked at by the kernel's reclaiming threads.
    #[serde(skip)]
    pub async_scans: Option<u64>,
    /// Pages looked at by allocations.
    #[serde(skip)]
    pub direct_scans: Option<u64>,
    /// Pages reclaimed by the kernel's threads.
    #[serde(skip)]
    pub async_reclaims: Option<u64>,
    /// Pages reclaimed by allocations.
    #[serde(skip)]
    pub direct_reclaims: Option<u64>,
}

impl Statistics {
    /// Reads the statistics of a driver's buffer. Skips unknown tags and a statistic that is cut off.
    pub(super) fn read(buffer: &mut Buffers<'_>) -> Self {
        let mut statistics = Self::default();
        let mut bytes = [0; LEN * MOST];
        let len = buffer.read(&mut bytes);
        for statistic in bytes[..len].chunks_exact(LEN) {
            let (tag, value) = statistic.split_at(2);
            let tag = u16::from_le_bytes(tag.try_into().expect("two bytes"));
            if let Some(field) = statistics.field(tag) {
                *field = Some(u64::from_le_bytes(value.try_into().expect("eight bytes")));
            }
        }
        statistics
    }

    fn field(&mut self, tag: u16) -> Option<&mut Option<u64>> {
        Some(match tag {
            0 => &mut self.swap_in,
            1 => &mut self.swap_out,
            2 => &mut self.major_faults,
            3 => &mut self.minor_faults,
            4 => &mut self.free_memory,
            5 => &mut self.total_memory,
            6 => &mut self.available_memory,
            7 => &mut self.disk_caches,
            8 => &mut self.hugetlb_allocations,
            9 => &mut self.hugetlb_failures,
            10 => &mut self.oom_kills,
            11 => &mut self.allocation_stalls,
            12 => &mut self.async_scans,
            13 => &mut self.direct_scans,
            14 => &mut self.async_reclaims,
            15 => &mut self.direct_reclaims,
            _ => return None,
        })
    }
}
