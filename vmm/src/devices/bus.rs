//! A bus finds the device at an address. One bus serves ports, one MMIO.

use std::sync::{Arc, Mutex};

use crate::sync::lock;

/// A device's answer to the guest's accesses.
pub trait BusDevice: Send {
    /// Reads `data` (1, 2, 4 or 8 bytes) at `offset` from the device's start.
    fn read(&mut self, offset: u64, data: &mut [u8]);
    /// Writes `data` at `offset` from the device's start.
    fn write(&mut self, offset: u64, data: &[u8]);
}

/// The registers of a device that are accessible without its lock, which may be held while the device waits
/// for the host.
pub trait BusView: Send + Sync {
    /// As [`BusDevice::read`]. Returns false for a register that needs the lock.
    fn read(&self, offset: u64, data: &mut [u8]) -> bool;
    /// As [`BusDevice::write`]. Returns false for a register that needs the lock.
    fn write(&self, offset: u64, data: &[u8]) -> bool;
}

/// Devices by address. Clones share the devices.
#[derive(Clone, Default)]
pub struct Bus {
    /// Sorted by start, without overlaps.
    entries: Vec<Entry>,
}

#[derive(Clone)]
struct Entry {
    base: u64,
    len: u64,
    device: Arc<Mutex<dyn BusDevice>>,
    view: Option<Arc<dyn BusView>>,
}

impl Bus {
    /// Inserts a device at `base..base + len`, which must be free.
    pub fn insert(&mut self, base: u64, len: u64, device: Arc<Mutex<dyn BusDevice>>) {
        self.insert_entry(Entry { base, len, device, view: None });
    }

    /// As [`Bus::insert`], with a view that is asked first.
    pub fn insert_with_view(
        &mut self,
        base: u64,
        len: u64,
        device: Arc<Mutex<dyn BusDevice>>,
        view: Arc<dyn BusView>,
    ) {
        self.insert_entry(Entry { base, len, device, view: Some(view) });
    }

    fn insert_entry(&mut self, new: Entry) {
        let (base, len) = (new.base, new.len);
        let at = self.entries.partition_point(|entry| entry.base < base);
        let before = at.checked_sub(1).map(|at| &self.entries[at]);
        let is_free = before.is_none_or(|entry| entry.base + entry.len <= base)
            && self.entries.get(at).is_none_or(|entry| base + len <= entry.base);
        assert!(is_free, "two devices at {base:#x}: the platform's table is wrong");
        self.entries.insert(at, new);
    }

    /// Reads from the device at `address`. Without a device all bits are set, as on a real bus.
    pub fn read(&self, address: u64, data: &mut [u8]) {
        match self.find(address) {
            Some((offset, Entry { view: Some(view), .. })) if view.read(offset, data) => {}
            Some((offset, entry)) => lock(&entry.device).read(offset, data),
            None => data.fill(0xff),
        }
    }

    /// Writes to the device at `address`. Without a device the write is lost.
    pub fn write(&self, address: u64, data: &[u8]) {
        match self.find(address) {
            Some((offset, Entry { view: Some(view), .. })) if view.write(offset, data) => {}
            Some((offset, entry)) => lock(&entry.device).write(offset, data),
            None => {}
        }
    }

    fn find(&self, address: u64) -> Option<(u64, &Entry)> {
        let at = self.entries.partition_point(|entry| entry.base <= address).checked_sub(1)?;
        let entry = &self.entries[at];
        let offset = address - entry.base;
        (offset < entry.len).then_some((offset, entry))
    }
}

impl std::fmt::Debug for Bus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.entries.iter().map(|entry| entry.base..entry.base + entry.len)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Recorder(Vec<(u64, Vec<u8>)>);

    impl BusDevice for Recorder {
        fn read(&mut self, offset: u64, data: &mut [u8]) {
            data.fill(offset as u8);
        }
        fn write(&mut self, offset: u64, data: &[u8]) {
            self.0.push((offset, data.to_vec()));
        }
    }

    #[test]
    fn access_reaches_only_the_device_at_its_address() {
        let device = Arc::new(Mutex::new(Recorder::default()));
        let mut bus = Bus::default();
        bus.insert(0x60, 5, Arc::new(Mutex::new(Recorder::default())));
        bus.insert(0x3f8, 8, Arc::clone(&device) as _);
        let read = |address| {
            let mut data = [0; 2];
            bus.read(address, &mut data);
            data
        };
        assert_eq!(read(0x3ff), [7; 2]);
        for outside in [0, 0x5f, 0x65, 0x3f7, 0x400, u64::MAX] {
            assert_eq!(read(outside), [0xff; 2], "{outside:#x}");
        }
        bus.write(0x3f9, &[1, 2]);
        bus.write(0x400, &[3]);
        assert_eq!(lock(&device).0, [(1, vec![1, 2])]);
    }

    #[test]
    #[should_panic(expected = "two devices")]
    fn two_devices_do_not_share_an_address() {
        let mut bus = Bus::default();
        bus.insert(8, 8, Arc::new(Mutex::new(Recorder::default())));
        bus.insert(4, 5, Arc::new(Mutex::new(Recorder::default())));
    }
}
