//! The counters of a machine's devices, to be read without the machine's lock: a pause holds it, which may
//! wait long for a page of memory.

use std::sync::{Arc, Mutex};

use super::i8042::{I8042, I8042Accesses};
use super::serial::Room;
use super::virtio::view::View;
use crate::counters::Counter;
use crate::counters::device::DeviceMetrics;
use crate::sync::lock;

/// The counters of all devices.
#[derive(Debug)]
pub(crate) struct DeviceWork {
    /// The virtio devices by name, in the order in which the guest numbers them.
    pub(super) virtio: Vec<(String, Arc<View>)>,
    pub(super) serial: Arc<Room>,
    pub(super) keyboard: Arc<Mutex<I8042>>,
}

impl DeviceWork {
    /// The work of the virtio devices. No device's lock is taken, which is held while the device works.
    pub(crate) fn virtio(&self) -> Vec<DeviceMetrics> {
        self.virtio.iter().map(|(name, view)| view.metrics(name)).collect()
    }

    /// Bytes that the guest read from its serial port, bytes that it wrote there, and those of the latter
    /// that a limit dropped.
    pub(crate) fn serial_bytes(&self) -> [u64; 3] {
        let Room { received, sent, dropped, .. } = &*self.serial;
        [received, sent, dropped].map(Counter::get)
    }

    /// The guest's accesses to the keyboard controller.
    pub(crate) fn i8042_accesses(&self) -> I8042Accesses {
        lock(&self.keyboard).accesses()
    }
}
