//! Virtio over MMIO, version 2 (virtio 1.2, section 4.2): status, negotiation and queue registers of every device.
//!
//! ```text
//!  reset ──ACKNOWLEDGE, DRIVER──> features are negotiated ──FEATURES_OK──> queues are set up ──DRIVER_OK──> works
//!    ^                                                                                                       │
//!    └── 0 is written to the status (from anywhere) ────────────────────────────── the device is broken <─────┘
//! ```

use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use virtio_queue::QueueT;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use volt_kernel::acpi_tables::aml;

use super::interrupt::{Interrupt, InterruptState};
use super::queue::{QueueState, VirtQueue};
use super::watch::Watch;
use super::worker::{Task, Worker};
use super::{VirtioDevice, feature};
use crate::devices::bus::BusDevice;
use crate::devices::lines::Line;
use crate::devices::{Device, Place};
use crate::error::{Error, Result};
use crate::memory::ram::GuestRam;
use crate::persist::{Blob, Persist};
use crate::sync::lock;

/// Bytes of guest physical addresses that a device takes.
pub const LEN: u64 = 0x1000;
/// Where the driver notifies.
pub const NOTIFY: u64 = reg::QUEUE_NOTIFY;
/// "virt"
const MAGIC: u32 = 0x7472_6976;
const VERSION: u32 = 2;
/// "VOLT"
const VENDOR: u32 = 0x544c_4f56;

/// Offsets of the registers.
mod reg {
    pub const MAGIC: u64 = 0x00;
    pub const VERSION: u64 = 0x04;
    pub const DEVICE_ID: u64 = 0x08;
    pub const VENDOR_ID: u64 = 0x0c;
    pub const DEVICE_FEATURES: u64 = 0x10;
    pub const DEVICE_FEATURES_SEL: u64 = 0x14;
    pub const DRIVER_FEATURES: u64 = 0x20;
    pub const DRIVER_FEATURES_SEL: u64 = 0x24;
    pub const QUEUE_SEL: u64 = 0x30;
    pub const QUEUE_NUM_MAX: u64 = 0x34;
    pub const QUEUE_NUM: u64 = 0x38;
    pub const QUEUE_READY: u64 = 0x44;
    pub const QUEUE_NOTIFY: u64 = 0x50;
    pub const INTERRUPT_STATUS: u64 = 0x60;
    pub const INTERRUPT_ACK: u64 = 0x64;
    pub const STATUS: u64 = 0x70;
    pub const QUEUE_DESC_LOW: u64 = 0x80;
    pub const QUEUE_DESC_HIGH: u64 = 0x84;
    pub const QUEUE_DRIVER_LOW: u64 = 0x90;
    pub const QUEUE_DRIVER_HIGH: u64 = 0x94;
    pub const QUEUE_DEVICE_LOW: u64 = 0xa0;
    pub const QUEUE_DEVICE_HIGH: u64 = 0xa4;
    pub const SHM_LEN_LOW: u64 = 0xb0;
    pub const SHM_BASE_HIGH: u64 = 0xbc;
    pub const CONFIG_GENERATION: u64 = 0xfc;
    pub const CONFIG: u64 = 0x100;
}

/// Bits of the status register (virtio 1.2, section 2.1).
mod status {
    pub const DRIVER: u32 = 2;
    pub const DRIVER_OK: u32 = 4;
    pub const FEATURES_OK: u32 = 8;
    pub const NEEDS_RESET: u32 = 0x40;
    pub const FAILED: u32 = 0x80;
    pub const ALL: u32 = 0xcf;
}

/// A device's transport.
#[derive(Debug)]
pub struct Transport {
    // Configuration.
    name: Arc<str>,
    // Glue.
    ram: GuestRam,
    notify: Arc<EventFd>,
    worker: Option<Working>,
    // Volatile.
    device: Arc<Mutex<dyn VirtioDevice>>,
    interrupt: Arc<Interrupt>,
    registers: Registers,
    /// Here while no worker has them.
    queues: Vec<VirtQueue>,
}

/// A worker, and which of the queues that it has are ready.
#[derive(Debug)]
struct Working {
    worker: Worker,
    ready: Vec<bool>,
}

/// What the driver wrote that is neither a queue's nor the interrupt's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Registers {
    status: u32,
    features: u64,
    device_features_sel: u32,
    driver_features_sel: u32,
    queue_sel: u32,
}

/// A transport, its device, and how far both have come.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransportState {
    registers: Registers,
    interrupt: InterruptState,
    queues: Vec<QueueState>,
    device: Blob,
}

impl Transport {
    /// Puts a transport before `device`.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub(crate) fn new(name: &str, device: Arc<Mutex<dyn VirtioDevice>>, ram: GuestRam) -> Result<Self> {
        let notify = EventFd::new(EFD_NONBLOCK).map_err(|source| Error::host("make an eventfd", source))?;
        let queues = fresh_queues(&*lock(&device));
        Ok(Self {
            name: name.into(),
            ram,
            notify: Arc::new(notify),
            worker: None,
            device,
            interrupt: Arc::new(Interrupt::new()?),
            registers: Registers::default(),
            queues,
        })
    }

    /// The device's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The ioeventfd for [`NOTIFY`].
    pub(crate) fn notifications(&self) -> &EventFd {
        &self.notify
    }

    /// Lets the device raise its interrupt, directly or else through the irqfd. Before it works.
    ///
    /// # Errors
    /// KVM refuses the irqfd.
    pub(crate) fn connect(&mut self, pin: Line) -> Result<()> {
        pin.connect(self.interrupt.line())?;
        Arc::get_mut(&mut self.interrupt).expect("a halted device shares it with nobody").connect(pin);
        Ok(())
    }

    /// The irqfd.
    #[cfg(test)]
    pub(crate) fn interrupt_line(&self) -> &EventFd {
        self.interrupt.line()
    }

    /// Whether it would work, but for having been halted.
    pub(crate) fn is_waiting(&self) -> bool {
        self.registers.status & status::DRIVER_OK != 0
            && self.worker.is_none()
            && !self.interrupt.is_reset_needed()
    }

    /// The device's configuration space has changed by the host's will: the driver is to look at it.
    pub(crate) fn config_changed(&self) {
        self.interrupt.config();
    }

    /// Lets the device work, if its driver has said so.
    ///
    /// # Errors
    /// The host has no thread left.
    pub(crate) fn go_on(&mut self) -> Result<()> {
        self.work_by(Worker::start)
    }

    /// As [`Transport::go_on`], but a device that has nothing to do gets no thread: when what this returns is ready, the device
    /// is to be woken.
    ///
    /// # Errors
    /// The host has no thread or descriptor left.
    pub(crate) fn stand_by(&mut self) -> Result<Option<&Watch>> {
        self.work_by(Worker::begin)?;
        Ok(self.worker.as_mut().and_then(|working| working.worker.idle_watch()))
    }

    /// Gives an idle device a thread. Any other stays as it is.
    ///
    /// # Errors
    /// The host has no thread left.
    pub(crate) fn wake(&mut self) -> Result<()> {
        self.worker.as_mut().map_or(Ok(()), |working| working.worker.hire())
    }

    fn work_by(&mut self, begin: fn(Task, Vec<VirtQueue>) -> Result<Worker>) -> Result<()> {
        if !self.is_waiting() {
            return Ok(());
        }
        let usable = |queue: &VirtQueue| !queue.ring.ready() || queue.is_usable(self.ram.guest());
        if !self.queues.iter().all(usable) {
            log::warn!(
                "{}: a queue outside of memory; the device stops until its driver resets it",
                self.name
            );
            self.interrupt.needs_reset();
            return Ok(());
        }
        let task = Task {
            name: Arc::clone(&self.name),
            device: Arc::clone(&self.device),
            ram: self.ram.clone(),
            interrupt: Arc::clone(&self.interrupt),
            notify: Arc::clone(&self.notify),
            features: self.registers.features,
        };
        let ready = self.queues.iter().map(|queue| queue.ring.ready()).collect();
        let worker = begin(task, std::mem::take(&mut self.queues))?;
        self.worker = Some(Working { worker, ready });
        Ok(())
    }

    /// Brings the device's work to an end; its queues and its state stand still afterwards.
    pub(crate) fn halt(&mut self) {
        let Some(Working { worker, ready: _ }) = self.worker.take() else { return };
        self.queues = worker.stop().unwrap_or_else(|| {
            log::error!("{}: volt-vmm has a bug: the device panicked", self.name);
            self.interrupt.needs_reset();
            fresh_queues(&*lock(&self.device))
        });
    }

    /// What works here and now, if something does.
    #[cfg(feature = "fuzzing")]
    pub(super) fn shift(&mut self) -> Option<&mut super::worker::Shift> {
        self.worker.as_mut()?.worker.idle()
    }

    #[cfg(feature = "fuzzing")]
    pub(super) fn is_broken(&self) -> bool {
        self.interrupt.is_reset_needed()
    }

    /// The queues, while nothing works.
    #[cfg(feature = "fuzzing")]
    pub(super) fn halted_queues(&self) -> &[VirtQueue] {
        &self.queues
    }

    fn reset(&mut self) {
        self.halt();
        let mut device = lock(&self.device);
        device.reset();
        self.queues = fresh_queues(&*device);
        self.interrupt.reset();
        self.registers = Registers::default();
    }

    fn offered(&self) -> u64 {
        feature::TRANSPORT | lock(&self.device).features()
    }

    /// The selected queue, while the driver may set it up.
    fn queue_to_set_up(&mut self) -> Option<&mut virtio_queue::Queue> {
        let settled = status::FEATURES_OK | status::DRIVER_OK;
        if self.registers.status & settled != status::FEATURES_OK {
            return None;
        }
        let queue = self.queues.get_mut(self.registers.queue_sel as usize)?;
        Some(&mut queue.ring).filter(|ring| !ring.ready())
    }

    fn read_register(&self, offset: u64) -> u32 {
        let half = |value: u64, select: u32| match select {
            0 => value as u32,
            1 => (value >> 32) as u32,
            _ => 0,
        };
        match offset {
            reg::MAGIC => MAGIC,
            reg::VERSION => VERSION,
            reg::DEVICE_ID => lock(&self.device).kind().id,
            reg::VENDOR_ID => VENDOR,
            reg::DEVICE_FEATURES => half(self.offered(), self.registers.device_features_sel),
            reg::QUEUE_NUM_MAX => {
                let queues = lock(&self.device).kind().queues;
                queues.get(self.registers.queue_sel as usize).map_or(0, |max| (*max).into())
            }
            reg::QUEUE_READY => {
                let at = self.registers.queue_sel as usize;
                let ready = match &self.worker {
                    Some(working) => working.ready.get(at).copied(),
                    None => self.queues.get(at).map(|queue| queue.ring.ready()),
                };
                ready.unwrap_or(false).into()
            }
            reg::INTERRUPT_STATUS => self.interrupt.status(),
            reg::STATUS if self.interrupt.is_reset_needed() => self.registers.status | status::NEEDS_RESET,
            reg::STATUS => self.registers.status,
            // No shared memory: a length and an address of all ones.
            reg::SHM_LEN_LOW..=reg::SHM_BASE_HIGH => u32::MAX,
            reg::CONFIG_GENERATION => self.interrupt.generation(),
            _ => 0,
        }
    }

    fn write_register(&mut self, offset: u64, value: u32) {
        let address = match offset {
            reg::QUEUE_DESC_LOW | reg::QUEUE_DRIVER_LOW | reg::QUEUE_DEVICE_LOW => (Some(value), None),
            _ => (None, Some(value)),
        };
        match offset {
            reg::DEVICE_FEATURES_SEL => self.registers.device_features_sel = value,
            reg::DRIVER_FEATURES_SEL => self.registers.driver_features_sel = value,
            reg::DRIVER_FEATURES => self.take_features(value),
            reg::QUEUE_SEL => self.registers.queue_sel = value,
            reg::QUEUE_NOTIFY => {
                let _ = self.notify.write(1); // fails only when notifications enough are waiting
            }
            reg::INTERRUPT_ACK => self.interrupt.acknowledge(value),
            reg::STATUS => self.set_status(value),
            reg::QUEUE_READY if value & 1 == 0 => self.close_queue(),
            _ => {
                let Some(ring) = self.queue_to_set_up() else { return };
                match offset {
                    // An impossible size leaves the largest, with which the rings lie elsewhere than the driver thinks.
                    reg::QUEUE_NUM => ring.set_size(u16::try_from(value).unwrap_or(0)),
                    reg::QUEUE_READY => ring.set_ready(true),
                    reg::QUEUE_DESC_LOW | reg::QUEUE_DESC_HIGH => {
                        ring.set_desc_table_address(address.0, address.1)
                    }
                    reg::QUEUE_DRIVER_LOW | reg::QUEUE_DRIVER_HIGH => {
                        ring.set_avail_ring_address(address.0, address.1);
                    }
                    reg::QUEUE_DEVICE_LOW | reg::QUEUE_DEVICE_HIGH => {
                        ring.set_used_ring_address(address.0, address.1);
                    }
                    _ => {}
                }
            }
        }
    }

    fn take_features(&mut self, half: u32) {
        if self.registers.status & (status::DRIVER | status::FEATURES_OK) != status::DRIVER {
            return;
        }
        let features = &mut self.registers.features;
        match self.registers.driver_features_sel {
            0 => *features = *features & !0xffff_ffff | u64::from(half),
            1 => *features = *features & 0xffff_ffff | u64::from(half) << 32,
            _ => {}
        }
    }

    /// Bits are only ever added, and 0 is a reset.
    fn set_status(&mut self, value: u32) {
        if value == 0 {
            return self.reset();
        }
        let before = self.registers.status;
        let mut now = (before | value) & status::ALL & !status::NEEDS_RESET;
        let features = self.registers.features;
        let taken = features & feature::VERSION_1 != 0 && features & !self.offered() == 0;
        if before & status::FEATURES_OK == 0 && now & status::FEATURES_OK != 0 && !taken {
            now &= !status::FEATURES_OK;
        }
        if now & status::FEATURES_OK == 0 {
            now &= !status::DRIVER_OK;
        }
        self.registers.status = now;
        if now & status::FAILED != 0 {
            self.halt();
        } else if before & status::DRIVER_OK == 0 && now & status::DRIVER_OK != 0 {
            let event_idx = features & feature::EVENT_IDX != 0;
            self.queues.iter_mut().for_each(|queue| queue.ring.set_event_idx(event_idx));
            self.work_or_break();
        }
    }

    /// The driver takes a queue back.
    fn close_queue(&mut self) {
        let worked = self.worker.is_some();
        self.halt();
        if let Some(queue) = self.queues.get_mut(self.registers.queue_sel as usize) {
            queue.ring.set_ready(false);
        }
        if worked {
            self.work_or_break();
        }
    }

    fn work_or_break(&mut self) {
        if let Err(error) = self.go_on() {
            log::error!("{}", crate::error::report(&error));
            self.interrupt.needs_reset();
        }
    }
}

fn fresh_queues(device: &dyn VirtioDevice) -> Vec<VirtQueue> {
    device.kind().queues.iter().map(|&max_size| VirtQueue::new(max_size)).collect()
}

impl BusDevice for Transport {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if let Some(offset) = offset.checked_sub(reg::CONFIG) {
            let config = lock(&self.device).config();
            let from = config.get(offset as usize..).unwrap_or(&[]);
            let len = from.len().min(data.len());
            data[..len].copy_from_slice(&from[..len]);
        } else if data.len() == 4 && offset.is_multiple_of(4) {
            data.copy_from_slice(&self.read_register(offset).to_le_bytes());
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if let Some(offset) = offset.checked_sub(reg::CONFIG) {
            if self.registers.status & status::DRIVER != 0 {
                lock(&self.device).write_config(offset, data);
            }
        } else if let (Ok(value), true) = (data.try_into(), offset.is_multiple_of(4)) {
            self.write_register(offset, u32::from_le_bytes(value));
        }
    }
}

impl Device for Transport {
    /// As ACPI describes a virtio-mmio device (`LNRO0005`, Linux drivers/virtio/virtio_mmio.c).
    fn aml(&self, place: &Place) -> Vec<u8> {
        let (base, gsi) = (place.base as u32, place.gsi.unwrap_or(0));
        volt_kernel::guest_aml(&aml::Device::new(
            format!("V{gsi:03}").as_str().into(),
            vec![
                &aml::Name::new("_HID".into(), &"LNRO0005"),
                &aml::Name::new("_UID".into(), &gsi),
                &aml::Name::new("_CCA".into(), &aml::ONE),
                &aml::Name::new(
                    "_CRS".into(),
                    &aml::ResourceTemplate::new(vec![
                        &aml::Memory32Fixed::new(true, base, place.len as u32),
                        // Consumer, edge-triggered, active high, exclusive.
                        &aml::Interrupt::new(true, true, false, false, gsi),
                    ]),
                ),
            ],
        ))
    }
}

impl Persist for Transport {
    type State = TransportState;

    /// The device must have been halted.
    fn save(&self) -> Result<TransportState> {
        let Self { name, ram: _, notify: _, worker, device, interrupt, registers, queues } = self;
        assert!(worker.is_none(), "{name} is saved while it works");
        Ok(TransportState {
            registers: *registers,
            interrupt: interrupt.save()?,
            queues: queues.iter().map(VirtQueue::save).collect(),
            device: lock(device).save_blob(name)?,
        })
    }

    fn restore(&mut self, state: &TransportState) -> Result<()> {
        let TransportState { registers, interrupt, queues, device } = state;
        self.reset();
        let refused = |what: &str| Error::config("devices", format!("{}: {what}", self.name));
        lock(&self.device).restore_blob(&self.name, device)?;
        let max_sizes = lock(&self.device).kind().queues;
        if queues.len() != max_sizes.len() {
            return Err(refused("state of another number of queues"));
        }
        let restored = queues.iter().zip(max_sizes).map(|(state, &max)| VirtQueue::restored(state, max));
        self.queues = restored.collect::<Option<_>>().ok_or_else(|| refused("an impossible queue"))?;
        self.registers = *registers;
        let interrupt_of = Arc::get_mut(&mut self.interrupt).expect("a halted device shares it with nobody");
        interrupt_of.restore(interrupt)
    }
}

#[cfg(test)]
#[path = "transport_tests.rs"]
mod tests;
