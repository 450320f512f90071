//! The message to a memory handler: the place of guest memory in this process and in the memory's file. The
//! names are those of Firecracker's message.

use serde::Serialize;
use volt_kernel::layout::ram_ranges;

/// A range of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Mapping {
    /// Its address in this process.
    base_host_virt_addr: u64,
    /// Bytes.
    size: u64,
    /// Its offset in the memory's file.
    offset: u64,
    /// Bytes of its pages.
    page_size: u64,
    /// The same in bytes, too: older handlers know this name alone.
    page_size_kib: u64,
}

/// The ranges of `len` bytes of guest memory at `start`, which are adjacent here and in the file. Their pages
/// have `page_size` bytes.
pub(super) fn of(start: u64, len: u64, page_size: u64) -> Vec<Mapping> {
    let mut offset = 0;
    let each = |(_, size)| {
        let base_host_virt_addr = start + offset;
        let mapping = Mapping { base_host_virt_addr, size, offset, page_size, page_size_kib: page_size };
        offset += size;
        mapping
    };
    ram_ranges(len).into_iter().map(each).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_above_3_gib_is_a_mapping_of_its_own() {
        let text = serde_json::to_string(&of(1 << 40, (3 << 30) + (1 << 20), 4096)).unwrap();
        let first = r#"{"base_host_virt_addr":1099511627776,"size":3221225472,"offset":0"#;
        let second = r#"{"base_host_virt_addr":1102732853248,"size":1048576,"offset":3221225472"#;
        let pages = r#""page_size":4096,"page_size_kib":4096}"#;
        assert_eq!(text, format!("[{first},{pages},{second},{pages}]"));
        assert_eq!(of(0, 1 << 30, 2 << 20).len(), 1);
    }
}
