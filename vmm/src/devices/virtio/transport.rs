//! Virtio over MMIO, version 2 (virtio 1.2, section 4.2): the registers for status, features and queues of
//! every device.
//!
//! ```text
//!  reset ──ACKNOWLEDGE, DRIVER──> features ──FEATURES_OK──> queues are set up ──DRIVER_OK──> the device works
//!    ^                                                                                              │
//!    └── the driver writes 0 to the status (in any state) ─────────────────── the device fails <────┘
//! ```

use std::sync::{Arc, Mutex};

use log::Level;
use serde::{Deserialize, Serialize};
use virtio_queue::QueueT;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use volt_kernel::acpi_tables::aml;

use super::failures::Failures;
use super::interrupt::InterruptState;
use super::queue::{QueueState, VirtQueue};
use super::registers::{reg, status};
use super::view::View;
use super::watch::Watch;
use super::{DeviceKind, VirtioDevice, feature};
use crate::devices::bus::{BusDevice, BusView};
use crate::devices::lines::InterruptLine;
use crate::devices::virtio::device_loop::{FirstTurn, NotStarted, Task, Worker};
use crate::devices::{BusRange, Device};
use crate::error::{Error, Result};
use crate::events::Events;
use crate::memory::ram::GuestRam;
use crate::persist::{Blob, Persist};
use crate::sandbox::ThreadKind;
use crate::sync::lock;

/// Length of a device's range of guest physical addresses.
pub const LEN: u64 = 0x1000;
/// Offset of the register that the driver notifies by.
pub const NOTIFY: u64 = reg::QUEUE_NOTIFY;

/// A device's transport.
#[derive(Debug)]
pub struct Transport {
    // Configuration.
    name: Arc<str>,
    kind: DeviceKind,
    /// The kind of its worker's thread.
    thread: ThreadKind,
    // Glue.
    ram: GuestRam,
    notify: Arc<EventFd>,
    worker: Option<Working>,
    failures: Arc<Failures>,
    /// Features that the device offers. A copy, because the device's lock is held while it works.
    offered: u64,
    // Volatile.
    device: Arc<Mutex<dyn VirtioDevice>>,
    view: Arc<View>,
    registers: TransportRegisters,
    /// The queues, while no worker owns them.
    queues: Vec<VirtQueue>,
}

/// A worker, and which of its queues are ready.
#[derive(Debug)]
struct Working {
    worker: Worker,
    ready: Vec<bool>,
}

/// The registers that the driver wrote, besides those of queues and interrupt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TransportRegisters {
    status: u32,
    features: u64,
    device_features_sel: u32,
    driver_features_sel: u32,
    queue_sel: u32,
}

/// State of a transport and its device.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransportState {
    registers: TransportRegisters,
    interrupt: InterruptState,
    queues: Vec<QueueState>,
    device: Blob,
}

impl Transport {
    /// Makes the transport of `device`.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub(crate) fn new(name: &str, device: Arc<Mutex<dyn VirtioDevice>>, ram: GuestRam) -> Result<Self> {
        let notify = EventFd::new(EFD_NONBLOCK).map_err(|source| Error::host("make an eventfd", source))?;
        let (view, kind, thread, offered) = {
            let device = lock(&device);
            (View::new(&*device)?, device.kind(), device.thread(), offered_by(&*device))
        };
        Ok(Self {
            name: name.into(),
            kind,
            thread,
            ram,
            notify: Arc::new(notify),
            worker: None,
            failures: Arc::new(Failures::new(Arc::default())),
            offered,
            device,
            view: Arc::new(view),
            registers: TransportRegisters::default(),
            queues: fresh_queues(kind),
        })
    }

    /// The registers that need no lock of the transport.
    pub(crate) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view)
    }

    /// The ioeventfd for [`NOTIFY`].
    pub(crate) fn notifications(&self) -> &EventFd {
        &self.notify
    }

    /// Tells those who follow the VM of the device's failures. Called before the device works.
    pub(crate) fn report_to(&mut self, events: &Arc<Events>) {
        self.failures = Arc::new(Failures::new(Arc::clone(events)));
    }

    /// Connects the device's interrupt to its pin, and to the irqfd as the second way. Called before the
    /// device works.
    ///
    /// # Errors
    /// KVM refuses the irqfd.
    pub(crate) fn connect(&mut self, pin: InterruptLine) -> Result<()> {
        pin.connect(self.view.interrupt.line())?;
        self.view.interrupt.connect(pin);
        Ok(())
    }

    /// The irqfd.
    #[cfg(test)]
    pub(crate) fn interrupt_line(&self) -> &EventFd {
        self.view.interrupt.line()
    }

    /// Whether only the halt keeps the device from working. A driver that sets FAILED has given the device up
    /// until it resets it.
    pub(crate) fn is_waiting(&self) -> bool {
        self.registers.status & (status::DRIVER_OK | status::FAILED) == status::DRIVER_OK
            && self.worker.is_none()
            && !self.view.interrupt.is_reset_needed()
    }

    /// Tells the driver that the host has changed the configuration space.
    #[cfg(test)]
    pub(crate) fn config_changed(&self) {
        self.view.config_changed(&*lock(&self.device));
    }

    /// Resumes the device if its driver has started it.
    ///
    /// # Errors
    /// The host has no thread left.
    pub(crate) fn resume(&mut self) -> Result<()> {
        self.work_by(Worker::start)
    }

    /// As [`Transport::resume`], without a thread for an idle device. The caller takes the first turn without
    /// the transport's lock, and then calls [`Transport::settle`].
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub(crate) fn stand_by(&mut self) -> Result<Option<FirstTurn>> {
        self.work_by(Worker::prepare)?;
        Ok(self.worker.as_ref().map(|working| working.worker.first_turn()))
    }

    /// Starts a thread if the first turn left work. Otherwise returns the idle device's descriptors: an event
    /// there calls for [`Transport::wake`].
    ///
    /// # Errors
    /// The host has no thread or descriptor left.
    pub(crate) fn settle(&mut self) -> Result<Option<Watch>> {
        self.worker.as_mut().map_or(Ok(None), |working| working.worker.settle())
    }

    /// Starts the thread of an idle device. Does nothing for others.
    ///
    /// # Errors
    /// The host has no thread left.
    pub(crate) fn wake(&mut self) -> Result<()> {
        self.worker.as_mut().map_or(Ok(()), |working| working.worker.start_thread())
    }

    fn work_by(
        &mut self,
        begin: fn(Task, Vec<VirtQueue>) -> std::result::Result<Worker, NotStarted>,
    ) -> Result<()> {
        if !self.is_waiting() {
            return Ok(());
        }
        let usable = |queue: &VirtQueue| !queue.ring.ready() || queue.is_usable(self.ram.guest());
        if !self.queues.iter().all(usable) {
            self.view.interrupt.needs_reset();
            self.failures.report(Level::Warn, &self.name, format_args!("a queue outside of memory"));
            return Ok(());
        }
        let task = Task {
            name: Arc::clone(&self.name),
            device: Arc::clone(&self.device),
            ram: self.ram.clone(),
            view: Arc::clone(&self.view),
            notify: Arc::clone(&self.notify),
            features: self.registers.features,
            failures: Arc::clone(&self.failures),
            thread: self.thread,
        };
        let ready = self.queues.iter().map(|queue| queue.ring.ready()).collect();
        match begin(task, std::mem::take(&mut self.queues)) {
            Ok(worker) => {
                self.worker = Some(Working { worker, ready });
                Ok(())
            }
            Err((error, queues)) => {
                self.queues = queues;
                Err(error)
            }
        }
    }

    /// Stops the device: its queues and its state do not change afterwards.
    pub(crate) fn halt(&mut self) {
        let Some(Working { worker, ready: _ }) = self.worker.take() else { return };
        self.queues = worker.stop().unwrap_or_else(|| {
            let name = &self.name;
            self.failures
                .log
                .log(Level::Error, format_args!("{name}: the device's worker panicked, a bug of volt-vmm"));
            self.view.interrupt.needs_reset();
            fresh_queues(self.kind)
        });
    }

    /// The loop of an idle device.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn idle_slot(&self) -> Option<Arc<crate::devices::virtio::device_loop::IdleSlot>> {
        self.worker.as_ref().map(|working| Arc::clone(working.worker.idle_slot()))
    }

    #[cfg(feature = "fuzzing")]
    pub(super) fn is_broken(&self) -> bool {
        self.view.interrupt.is_reset_needed()
    }

    /// The queues, while no worker owns them.
    #[cfg(feature = "fuzzing")]
    pub(super) fn halted_queues(&self) -> &[VirtQueue] {
        &self.queues
    }

    fn reset(&mut self) {
        self.halt();
        let mut device = lock(&self.device);
        device.reset();
        self.view.copy_config(&*device);
        drop(device);
        self.queues = fresh_queues(self.kind);
        self.view.interrupt.reset();
        self.registers = TransportRegisters::default();
        self.view.set_status(self.registers.status);
    }

    /// The selected queue, if the driver may set it up now.
    fn queue_to_set_up(&mut self) -> Option<&mut virtio_queue::Queue> {
        let settled = status::FEATURES_OK | status::DRIVER_OK;
        if self.registers.status & settled != status::FEATURES_OK {
            return None;
        }
        let queue = self.queues.get_mut(self.registers.queue_sel as usize)?;
        Some(&mut queue.ring).filter(|ring| !ring.ready())
    }

    /// Reads a register that is not in the view.
    fn read_register(&self, offset: u64) -> u32 {
        let half = |value: u64, select: u32| match select {
            0 => value as u32,
            1 => (value >> 32) as u32,
            _ => 0,
        };
        match offset {
            reg::DEVICE_FEATURES => half(self.offered, self.registers.device_features_sel),
            reg::QUEUE_NUM_MAX => {
                self.kind.queues.get(self.registers.queue_sel as usize).map_or(0, |max| (*max).into())
            }
            reg::QUEUE_READY => {
                let at = self.registers.queue_sel as usize;
                let ready = match &self.worker {
                    Some(working) => working.ready.get(at).copied(),
                    None => self.queues.get(at).map(|queue| queue.ring.ready()),
                };
                ready.unwrap_or(false).into()
            }
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
            reg::STATUS => self.set_status(value),
            reg::QUEUE_READY if value & 1 == 0 => self.close_queue(),
            _ => {
                let Some(ring) = self.queue_to_set_up() else { return };
                match offset {
                    // An impossible size changes nothing. The rings then lie elsewhere than the driver
                    // thinks.
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

    /// A driver only adds bits, or resets the device with 0.
    fn set_status(&mut self, value: u32) {
        if value == 0 {
            return self.reset();
        }
        let before = self.registers.status;
        let mut now = (before | value) & status::ALL & !status::NEEDS_RESET;
        let features = self.registers.features;
        let taken = features & feature::VERSION_1 != 0 && features & !self.offered == 0;
        if before & status::FEATURES_OK == 0 && now & status::FEATURES_OK != 0 && !taken {
            now &= !status::FEATURES_OK;
        }
        if now & status::FEATURES_OK == 0 {
            now &= !status::DRIVER_OK;
        }
        self.registers.status = now;
        self.view.set_status(now);
        if now & status::FAILED != 0 {
            self.halt();
        } else if before & status::DRIVER_OK == 0 && now & status::DRIVER_OK != 0 {
            let event_idx = features & feature::EVENT_IDX != 0;
            self.queues.iter_mut().for_each(|queue| queue.ring.set_event_idx(event_idx));
            self.work_or_break();
        }
    }

    /// Takes the selected queue out of use, as its driver asks. Its addresses and positions stay.
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
        if let Err(error) = self.resume() {
            self.failures.log.log(Level::Error, format_args!("{}", crate::error::report(&error)));
            self.view.interrupt.needs_reset();
        }
    }
}

fn offered_by(device: &dyn VirtioDevice) -> u64 {
    feature::TRANSPORT | device.features()
}

fn fresh_queues(kind: DeviceKind) -> Vec<VirtQueue> {
    kind.queues.iter().map(|&max_size| VirtQueue::new(max_size)).collect()
}

impl BusDevice for Transport {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        if self.view.read(offset, data) {
            return;
        }
        data.fill(0);
        if data.len() == 4 && offset.is_multiple_of(4) {
            data.copy_from_slice(&self.read_register(offset).to_le_bytes());
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if self.view.write(offset, data) {
            return;
        }
        if let Some(offset) = offset.checked_sub(reg::CONFIG) {
            if self.registers.status & status::DRIVER != 0 {
                let mut device = lock(&self.device);
                device.write_config(offset, data);
                self.view.copy_config(&*device);
            }
        } else if let (Ok(value), true) = (data.try_into(), offset.is_multiple_of(4)) {
            self.write_register(offset, u32::from_le_bytes(value));
        }
    }
}

impl Device for Transport {
    /// Describes the device as ACPI does for virtio-mmio (`LNRO0005`, Linux drivers/virtio/virtio_mmio.c).
    fn aml(&self, place: &BusRange) -> Vec<u8> {
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

    /// Called on a halted device.
    fn save(&self) -> Result<TransportState> {
        let Self {
            name,
            kind: _,
            thread: _,
            ram: _,
            notify: _,
            worker,
            failures: _,
            offered: _,
            device,
            view,
            registers,
            queues,
        } = self;
        assert!(worker.is_none(), "{name} is saved while it works");
        Ok(TransportState {
            registers: *registers,
            interrupt: view.interrupt.save(),
            queues: queues.iter().map(VirtQueue::save).collect(),
            device: lock(device).save_blob(name)?,
        })
    }

    fn restore(&mut self, state: &TransportState) -> Result<()> {
        let TransportState { registers, interrupt, queues, device } = state;
        self.reset();
        let refused = |what: &str| Error::config("devices", format!("{}: {what}", self.name));
        {
            let mut restored = lock(&self.device);
            restored.restore_blob(&self.name, device)?;
            self.offered = offered_by(&*restored);
            self.view.copy_config(&*restored);
        }
        let max_sizes = self.kind.queues;
        if queues.len() != max_sizes.len() {
            return Err(refused("the state has a different number of queues"));
        }
        let restored = queues.iter().zip(max_sizes).map(|(state, &max)| VirtQueue::restored(state, max));
        self.queues =
            restored.collect::<Option<_>>().ok_or_else(|| refused("the state has an invalid queue"))?;
        self.registers = *registers;
        self.view.set_status(registers.status);
        self.view.interrupt.restore(interrupt);
        Ok(())
    }
}

#[cfg(test)]
#[path = "transport_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "busy_tests.rs"]
mod busy_tests;
