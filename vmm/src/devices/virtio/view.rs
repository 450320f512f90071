//! The registers of a device that a driver may access while the device is busy: identity, interrupt status,
//! device status, configuration space and interrupt acknowledgement.
//!
//! ```text
//!   vCPU ─────────> View ──any other register──> Transport, whose lock is held while the device halts
//!                   ^
//!                   └── the configuration space, copied after each change under the device's lock
//! ```
//!
//! A vCPU in an interrupt handler must not wait for a disk's sync. No lock of this module is held during I/O.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use super::VirtioDevice;
use super::interrupt::Interrupt;
use super::registers::{reg, status};
use crate::counters::device::{DeviceCounters, DeviceMetrics};
use crate::devices::bus::BusView;
use crate::error::Result;
use crate::sync::lock;

/// "virt"
const MAGIC: u32 = 0x7472_6976;
const VERSION: u32 = 2;
/// "VOLT"
const VENDOR: u32 = 0x544c_4f56;

/// Shared by a device's transport, its worker and the bus.
#[derive(Debug)]
pub struct View {
    // Configuration.
    device_id: u32,
    // Glue.
    pub(super) counters: DeviceCounters,
    // Volatile.
    pub(super) interrupt: Interrupt,
    /// Copy of the transport's status register.
    status: AtomicU32,
    /// Copy of the device's configuration space.
    config: Mutex<Vec<u8>>,
}

impl View {
    /// Makes the view of a device.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub(super) fn new(device: &dyn VirtioDevice) -> Result<Self> {
        Ok(Self {
            device_id: device.kind().id,
            counters: DeviceCounters::new(device.operations()),
            interrupt: Interrupt::new()?,
            status: AtomicU32::new(0),
            config: Mutex::new(device.config()),
        })
    }

    /// The picture of the work of this device, whose name is `name`.
    pub(crate) fn metrics(&self, name: &str) -> DeviceMetrics {
        self.counters.read(name, self.interrupt.sent())
    }

    /// Sets the status register.
    pub(super) fn set_status(&self, status: u32) {
        self.status.store(status, Ordering::Release);
    }

    /// Copies the device's configuration space. The caller holds the device's lock, so that an older copy
    /// cannot come last.
    pub(super) fn copy_config(&self, device: &dyn VirtioDevice) {
        *lock(&self.config) = device.config();
    }

    /// As [`View::copy_config`], and interrupts the driver, which does not know of the change.
    pub(crate) fn config_changed(&self, device: &dyn VirtioDevice) {
        let mut config = lock(&self.config);
        *config = device.config();
        // Under the lock: a driver that has read a part of the new copy reads the new generation, too.
        self.interrupt.next_generation();
        drop(config);
        self.interrupt.config();
    }

    fn register(&self, offset: u64) -> Option<u32> {
        Some(match offset {
            reg::MAGIC => MAGIC,
            reg::VERSION => VERSION,
            reg::DEVICE_ID => self.device_id,
            reg::VENDOR_ID => VENDOR,
            reg::INTERRUPT_STATUS => self.interrupt.status(),
            reg::STATUS => {
                let needs_reset = if self.interrupt.is_reset_needed() { status::NEEDS_RESET } else { 0 };
                self.status.load(Ordering::Acquire) | needs_reset
            }
            // No shared memory: length and address are all ones.
            reg::SHM_LEN_LOW..=reg::SHM_BASE_HIGH => u32::MAX,
            reg::CONFIG_GENERATION => self.interrupt.generation(),
            _ => return None,
        })
    }
}

impl BusView for View {
    fn read(&self, offset: u64, data: &mut [u8]) -> bool {
        if let Some(offset) = offset.checked_sub(reg::CONFIG) {
            let config = lock(&self.config);
            let from = config.get(offset as usize..).unwrap_or(&[]);
            let len = from.len().min(data.len());
            data[..len].copy_from_slice(&from[..len]);
            data[len..].fill(0);
            return true;
        }
        let known = if data.len() == 4 { self.register(offset) } else { None };
        if let Some(value) = known {
            data.copy_from_slice(&value.to_le_bytes());
        }
        known.is_some()
    }

    fn write(&self, offset: u64, data: &[u8]) -> bool {
        match <[u8; 4]>::try_from(data) {
            Ok(value) if offset == reg::INTERRUPT_ACK => {
                self.interrupt.acknowledge(u32::from_le_bytes(value));
                true
            }
            _ => false,
        }
    }
}
