//! The CRC-64/ECMA-182 of state files and of guest memory.

use crc::{CRC_64_ECMA_182, Crc, Table};

/// 16 tables of 2 KiB reach 2.5 GB/s, and need no set-up at run time.
pub(crate) static CRC: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_ECMA_182);
