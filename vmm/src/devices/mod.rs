//! Devices that a guest reaches through ports and MMIO. A device never knows its address; the [`platform`]
//! places it.

use std::sync::{Arc, Mutex};

use crate::persist::PersistBlob;

mod boot_timer;
pub mod bus;
mod event_device;
mod generation;
pub mod i8042;
pub(crate) mod idle_watcher;
pub mod ioapic;
pub mod lines;
mod log_limit;
pub mod platform;
pub mod power;
pub mod serial;
mod serial_limit;
mod starter_requests;
pub mod virtio;
pub mod virtio_slots;
pub(crate) mod work;

use bus::BusDevice;

/// A device on a bus. A device does not compile until it says which state it saves, if any.
pub trait Device: BusDevice + PersistBlob + std::fmt::Debug {
    /// AML that describes the device to the guest, for `\_SB`. Empty for a device that the guest finds in
    /// another way.
    fn aml(&self, place: &BusRange) -> Vec<u8>;
}

/// A device that the bus and the platform share.
pub type SharedDevice = Arc<Mutex<dyn Device>>;

/// Addresses of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusRange {
    /// First port or guest physical address.
    pub base: u64,
    /// Number of ports or bytes.
    pub len: u64,
    /// Interrupt line, if the device has one.
    pub gsi: Option<u32>,
}
