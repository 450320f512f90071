//! A split virtqueue (virtio 1.2, section 2.7): the virtio-queue crate's, with checked chains and saved
//! state.

use std::num::Wrapping;
use std::sync::atomic::{Ordering, fence};

use serde::{Deserialize, Serialize};
use virtio_bindings::bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{Queue, QueueOwnedT, QueueState as State, QueueT};
use vm_memory::{Bytes, GuestAddress};

use super::DeviceFailed;
use super::chain::{Chain, has_page};
use crate::memory::own_writes::{GuestMemory, presence};

/// A queue.
#[derive(Debug)]
pub struct VirtQueue {
    pub(super) ring: Queue,
    /// Number of chains put since the last check whether the driver wants an interrupt.
    unannounced: u16,
}

/// Addresses of a queue in guest memory, and the positions of device and driver.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct QueueState(#[serde(with = "QueueFields")] State);

/// Serde's view of virtio-queue's state. A field that the crate adds does not compile until it is listed
/// here.
#[derive(Serialize, Deserialize)]
#[serde(remote = "State", deny_unknown_fields)]
struct QueueFields {
    max_size: u16,
    size: u16,
    ready: bool,
    event_idx_enabled: bool,
    next_avail: u16,
    next_used: u16,
    desc_table: u64,
    avail_ring: u64,
    used_ring: u64,
}

impl VirtQueue {
    /// Makes a queue that the driver has not set up. `max_size` is a power of two.
    pub(super) fn new(max_size: u16) -> Self {
        Self { ring: Queue::new(max_size).expect("a power of two"), unannounced: 0 }
    }

    pub(super) fn save(&self) -> QueueState {
        QueueState(self.ring.state())
    }

    /// Restores a queue, unless its maximum size is another or its positions are impossible.
    pub(super) fn restored(state: &QueueState, max_size: u16) -> Option<Self> {
        let ring = Queue::try_from(state.0).ok()?;
        let queue = Self { ring, unannounced: 0 };
        (queue.ring.max_size() == max_size && queue.under_way() <= queue.size()).then_some(queue)
    }

    /// Number of entries that the driver chose.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.ring.size()
    }

    /// Whether the driver has set it up, and all rings lie in memory.
    pub(super) fn is_usable(&self, memory: &GuestMemory) -> bool {
        self.ring.is_valid(memory)
    }

    /// Takes the next chain that the driver has made available.
    ///
    /// # Errors
    /// [`DeviceFailed`] if the ring or the chain breaks the specification.
    pub fn pop<'m>(&mut self, memory: &'m GuestMemory) -> Result<Option<Chain<'m>>, DeviceFailed> {
        if !self.ring.ready() {
            return Ok(None);
        }
        self.has_rings(memory)?;
        let size = self.ring.size();
        let is_full = self.under_way() == size;
        let mut available = self
            .ring
            .iter(memory)
            .map_err(|_| DeviceFailed("the driver moved the available index too far"))?;
        let Some(descriptors) = available.next() else { return Ok(None) };
        let head = descriptors.head_index();
        // Each chain takes a descriptor at least, and the driver may reuse it only after the chain has come
        // back.
        if is_full {
            self.unpop();
            return Err(DeviceFailed("more chains in use than the queue has entries"));
        }
        Chain::walk(GuestAddress(self.ring.desc_table()), size, head, memory).map(Some)
    }

    /// Takes the next chain. Enables notifications if there is none, so that the driver notifies the device
    /// of the next one. A device that expects several chains disables notifications first.
    ///
    /// # Errors
    /// As [`VirtQueue::pop`].
    pub fn next_chain<'m>(&mut self, memory: &'m GuestMemory) -> Result<Option<Chain<'m>>, DeviceFailed> {
        loop {
            if let Some(chain) = self.pop(memory)? {
                return Ok(Some(chain));
            }
            if !self.enable_notifications(memory)? {
                return Ok(None);
            }
            // The driver made a chain available before it saw that notifications are enabled.
            self.disable_notifications(memory)?;
        }
    }

    /// Number of chains that were taken and not put back.
    pub(super) fn under_way(&self) -> u16 {
        self.ring.next_avail().wrapping_sub(self.ring.next_used())
    }

    /// Makes the rings present in memory that page faults fill.
    fn has_rings(&self, memory: &GuestMemory) -> Result<(), DeviceFailed> {
        if presence(memory).is_none() {
            return Ok(());
        }
        let (ring, size) = (&self.ring, u64::from(self.ring.size()));
        for (at, len) in [
            (ring.desc_table(), 16 * size),
            (ring.avail_ring(), 6 + 2 * size),
            (ring.used_ring(), 6 + 8 * size),
        ] {
            has_page(memory, GuestAddress(at), len)?;
        }
        Ok(())
    }

    /// Undoes the last [`VirtQueue::pop`].
    pub fn unpop(&mut self) {
        self.ring.go_to_previous_position();
    }

    /// Returns a chain to the driver, with the first `written` bytes of its writable part written.
    ///
    /// # Errors
    /// [`DeviceFailed`] if the used ring is not in memory, which a guest cannot cause.
    pub fn put(&mut self, memory: &GuestMemory, head: u16, written: usize) -> Result<(), DeviceFailed> {
        self.has_rings(memory)?;
        // A chain has at most 2^32 - 1 bytes (`Chain::walk`).
        let written = u32::try_from(written).unwrap_or(u32::MAX);
        self.unannounced = self.unannounced.wrapping_add(1);
        self.ring.add_used(memory, head, written).map_err(|_| DeviceFailed("a used ring outside of memory"))
    }

    /// Returns several chains as [`VirtQueue::put`] does. The driver sees all of them or none.
    ///
    /// # Errors
    /// As [`VirtQueue::put`].
    pub fn put_together(
        &mut self,
        memory: &GuestMemory,
        chains: &[(u16, usize)],
    ) -> Result<(), DeviceFailed> {
        let Some(((head, written), before)) = chains.split_last() else { return Ok(()) };
        self.has_rings(memory)?;
        // The index publishes the elements before it, so it is written with the last element.
        let mut index = Wrapping(self.ring.next_used());
        for (head, written) in before {
            let written = u32::try_from(*written).unwrap_or(u32::MAX);
            let entry = 4 + 8 * u64::from(index.0 % self.ring.size());
            let element = [u32::from(*head).to_le(), written.to_le()];
            memory
                .write_obj(element, GuestAddress(self.ring.used_ring().wrapping_add(entry)))
                .map_err(|_| DeviceFailed("a used ring outside of memory"))?;
            index += 1;
            self.unannounced = self.unannounced.wrapping_add(1);
        }
        self.ring.set_next_used(index.0);
        self.put(memory, *head, *written)
    }

    /// Number of chains put since the last check whether the driver wants an interrupt.
    #[must_use]
    pub fn unannounced(&self) -> u16 {
        self.unannounced
    }

    /// Returns whether the driver wants an interrupt for the chains put since the last call.
    ///
    /// # Errors
    /// As [`VirtQueue::put`].
    pub fn wants_interrupt(&mut self, memory: &GuestMemory) -> Result<bool, DeviceFailed> {
        let unannounced = std::mem::take(&mut self.unannounced);
        if unannounced == 0 {
            return Ok(false);
        }
        self.has_rings(memory)?;
        // The elements must be visible before the driver's setting is read (virtio 1.2, section 2.7.10).
        fence(Ordering::SeqCst);
        let load = |offset| {
            let at = GuestAddress(self.ring.avail_ring().wrapping_add(offset));
            let value: u16 =
                memory.load(at, Ordering::Relaxed).map_err(|_| DeviceFailed("a ring outside of memory"))?;
            Ok(u16::from_le(value))
        };
        if self.ring.event_idx_enabled() {
            let used_event = load(4 + 2 * u64::from(self.ring.size()))?;
            return Ok((Wrapping(self.ring.next_used()) - Wrapping(used_event) - Wrapping(1)).0 < unannounced);
        }
        Ok(u32::from(load(0)?) & VRING_AVAIL_F_NO_INTERRUPT == 0)
    }

    /// Tells the driver not to notify, while the device polls the queue.
    ///
    /// # Errors
    /// As [`VirtQueue::put`].
    pub fn disable_notifications(&mut self, memory: &GuestMemory) -> Result<(), DeviceFailed> {
        if !self.ring.ready() {
            return Ok(());
        }
        self.has_rings(memory)?;
        self.ring.disable_notification(memory).map_err(|_| DeviceFailed("a ring outside of memory"))
    }

    /// Tells the driver to notify. Returns true if a chain became available meanwhile, perhaps without a
    /// notification.
    ///
    /// # Errors
    /// As [`VirtQueue::put`].
    pub fn enable_notifications(&mut self, memory: &GuestMemory) -> Result<bool, DeviceFailed> {
        if !self.ring.ready() {
            return Ok(false);
        }
        self.has_rings(memory)?;
        self.ring.enable_notification(memory).map_err(|_| DeviceFailed("a ring outside of memory"))
    }
}

#[cfg(test)]
#[path = "queue_exhaustive.rs"]
mod exhaustive;

#[cfg(test)]
#[path = "queue_properties.rs"]
mod properties;

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
