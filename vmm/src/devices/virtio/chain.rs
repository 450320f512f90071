//! A checked descriptor chain: guest memory for a device to read, and memory for it to write (virtio 1.2,
//! section 2.7.4). A driver may put anything into a chain. All memory of an existing [`Chain`] lies in guest
//! memory.
#![allow(unsafe_code)]

use std::collections::VecDeque;

use virtio_queue::desc::split::Descriptor;
use vm_memory::bitmap::Bitmap;
use vm_memory::{ByteValued, Bytes, GuestAddress, GuestMemoryBackend};

use super::DeviceFailed;
use crate::memory::own_writes::{GuestMemory, Slice, presence};

/// A chain.
#[derive(Debug)]
pub struct Chain<'m> {
    /// The first descriptor, by which the driver recognises a returned chain.
    pub head: u16,
    /// Memory that the device may read.
    pub readable: Buffers<'m>,
    /// Memory that the device may write.
    pub writable: Buffers<'m>,
}

/// A sequence of bytes in any number of pieces. Reads and writes take bytes from its front.
#[derive(Debug, Default)]
pub struct Buffers<'m> {
    pieces: PieceQueue<'m>,
    len: usize,
}

/// Pieces in order. Most sequences are one piece, which needs no allocation.
#[derive(Debug, Default)]
struct PieceQueue<'m> {
    first: Option<Slice<'m>>,
    /// May hold pieces even if `first` is empty.
    rest: VecDeque<Slice<'m>>,
}

/// Position of the next descriptor of a chain. Each descriptor is read once: the guest may change it at any
/// time, and the checked value must be the used one.
struct Position {
    table: GuestAddress,
    /// Number of descriptors in the table.
    entries: u16,
    index: u16,
    is_indirect: bool,
}

const ENDLESS: DeviceFailed = DeviceFailed("a chain of descriptors that does not end");

impl Position {
    /// Reads the descriptor at this position.
    fn read(&self, memory: &GuestMemory) -> Result<Descriptor, DeviceFailed> {
        if self.index >= self.entries {
            return Err(ENDLESS);
        }
        let offset = u64::from(self.index) * size_of::<Descriptor>() as u64;
        let at = self.table.0.checked_add(offset).ok_or(ENDLESS)?;
        memory.read_obj(GuestAddress(at)).map_err(|_| ENDLESS)
    }

    /// Start of the indirect table that a descriptor names. Makes the table present. An indirect table names
    /// no other.
    fn of_table(&self, named: Descriptor, memory: &GuestMemory) -> Result<Self, DeviceFailed> {
        let len = named.len() as usize;
        let entries = u16::try_from(len / size_of::<Descriptor>()).map_err(|_| ENDLESS)?;
        if self.is_indirect || !len.is_multiple_of(size_of::<Descriptor>()) {
            return Err(ENDLESS);
        }
        has_page(memory, named.addr(), len as u64)?;
        Ok(Self { table: named.addr(), entries, index: 0, is_indirect: true })
    }
}

impl<'m> Chain<'m> {
    /// Walks the descriptors of the chain at `head` in the table of a queue, and follows an indirect table.
    /// The queue's own table is present.
    ///
    /// # Errors
    /// [`DeviceFailed`] for a chain that loops, has no descriptors, more descriptors than the queue has
    /// entries (section 2.7.5.3.1), or more than 2^32 bytes. The same for a descriptor of length zero,
    /// outside memory, or readable after a writable one.
    pub(super) fn walk(
        table: GuestAddress,
        queue_size: u16,
        head: u16,
        memory: &'m GuestMemory,
    ) -> Result<Self, DeviceFailed> {
        let mut chain = Self { head, readable: Buffers::default(), writable: Buffers::default() };
        let mut position = Position { table, entries: queue_size, index: head, is_indirect: false };
        let (mut count, mut bytes) = (0, 0_u32);
        loop {
            let descriptor = position.read(memory)?;
            if descriptor.refers_to_indirect_table() {
                position = position.of_table(descriptor, memory)?;
                continue;
            }
            if count == queue_size {
                // In the queue's own table, such a chain has returned to an earlier descriptor.
                let longer = DeviceFailed("a chain of more descriptors than the queue has");
                return Err(if position.is_indirect { longer } else { ENDLESS });
            }
            count += 1;
            bytes = bytes.checked_add(descriptor.len()).ok_or(ENDLESS)?;
            chain.push(descriptor, memory)?;
            if !descriptor.has_next() {
                return Ok(chain);
            }
            position.index = descriptor.next();
        }
    }

    fn push(&mut self, descriptor: Descriptor, memory: &'m GuestMemory) -> Result<(), DeviceFailed> {
        if descriptor.len() == 0 {
            return Err(DeviceFailed("a descriptor of length 0"));
        }
        #[cfg(feature = "fuzzing")]
        if descriptor.is_write_only() {
            super::fuzzing_hooks::grant(descriptor.addr().0, descriptor.len().into());
        }
        let to = match descriptor.is_write_only() {
            true => &mut self.writable,
            false if self.writable.is_empty() => &mut self.readable,
            false => return Err(DeviceFailed("a readable descriptor follows a writable one")),
        };
        to.push(memory, descriptor.addr(), descriptor.len() as usize)
    }
}

/// The device stops because its VM ends. The VM's end gives the reason.
pub(super) const UNAVAILABLE: DeviceFailed = DeviceFailed("guest memory is unavailable");

/// Makes memory that page faults fill present before a device touches it.
///
/// # Errors
/// The memory is unavailable, and the VM ends.
pub(super) fn has_page(memory: &GuestMemory, at: GuestAddress, len: u64) -> Result<(), DeviceFailed> {
    presence(memory).map_or(Ok(()), |presence| presence.ensure(at.0, len).map_err(|_| UNAVAILABLE))
}

impl<'m> PieceQueue<'m> {
    fn push_back(&mut self, piece: Slice<'m>) {
        if self.first.is_none() && self.rest.is_empty() {
            self.first = Some(piece);
        } else {
            self.rest.push_back(piece);
        }
    }

    fn push_front(&mut self, piece: Slice<'m>) {
        if let Some(second) = self.first.replace(piece) {
            self.rest.push_front(second);
        }
    }

    fn pop_front(&mut self) -> Option<Slice<'m>> {
        self.first.take().or_else(|| self.rest.pop_front())
    }

    fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    fn iter(&self) -> impl Iterator<Item = &Slice<'m>> {
        self.first.iter().chain(&self.rest)
    }
}

impl<'m> Buffers<'m> {
    fn push(&mut self, memory: &'m GuestMemory, at: GuestAddress, len: usize) -> Result<(), DeviceFailed> {
        has_page(memory, at, len as u64)?;
        for piece in memory.get_slices(at, len) {
            let piece = piece.map_err(|_| DeviceFailed("a descriptor outside of memory"))?;
            self.len += piece.len();
            self.pieces.push_back(piece);
        }
        Ok(())
    }

    /// Number of bytes left.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no bytes are left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Removes and returns the first `count` bytes, or as many as are left.
    pub fn take(&mut self, count: usize) -> Self {
        let mut taken = Self::default();
        while taken.len < count {
            let Some(piece) = self.pieces.pop_front() else { break };
            let fitting = piece.len().min(count - taken.len);
            let (front, rest) = piece.split_at(fitting).expect("no longer than the piece");
            if !rest.is_empty() {
                self.pieces.push_front(rest);
            }
            taken.len += fitting;
            taken.pieces.push_back(front);
        }
        self.len -= taken.len;
        taken
    }

    /// Copies from the front to `bytes`. Returns the number of bytes copied.
    pub fn read(&mut self, bytes: &mut [u8]) -> usize {
        let mut done = 0;
        for piece in self.take(bytes.len()).pieces.iter() {
            done += piece.copy_to(&mut bytes[done..]);
        }
        done
    }

    /// Copies from the front to `bytes`, and takes nothing. Returns the number of bytes copied.
    pub fn peek(&self, bytes: &mut [u8]) -> usize {
        let mut done = 0;
        for piece in self.pieces.iter() {
            done += piece.copy_to(&mut bytes[done..]);
        }
        done
    }

    /// Copies from `bytes` to the front. Returns the number of bytes copied.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let mut done = 0;
        for piece in self.take(bytes.len()).pieces.iter() {
            piece.copy_from(&bytes[done..]);
            done += piece.len();
        }
        done
    }

    /// Takes a value from the front.
    ///
    /// # Errors
    /// [`DeviceFailed`] if too few bytes are left.
    pub fn read_value<T: ByteValued + Default>(&mut self) -> Result<T, DeviceFailed> {
        let mut value = T::default();
        let wanted = value.as_slice().len();
        if self.read(value.as_mut_slice()) == wanted {
            Ok(value)
        } else {
            Err(DeviceFailed("a request that is too short"))
        }
    }

    /// Records that other code wrote the first `count` bytes.
    pub fn written(&self, mut count: usize) {
        for piece in self.pieces.iter() {
            let here = count.min(piece.len());
            piece.bitmap().mark_dirty(0, here);
            count -= here;
        }
    }

    /// The pieces for a vectored system call. If the call writes to them, [`Buffers::written`] must follow.
    /// The pieces borrow guest memory, whose bytes change at any time.
    #[must_use]
    pub fn iovecs(&self) -> Vec<libc::iovec> {
        let mut iovecs = Vec::with_capacity(self.pieces.len());
        self.add_to(&mut iovecs, usize::MAX);
        iovecs
    }

    /// Appends all pieces to `iovecs`, unless it would then have more than `most`. Returns whether it did.
    pub fn add_to(&self, iovecs: &mut Vec<libc::iovec>, most: usize) -> bool {
        let iovec = |piece: &Slice<'_>| libc::iovec {
            iov_base: piece.ptr_guard_mut().as_ptr().cast(),
            iov_len: piece.len(),
        };
        let fits = self.pieces.len() <= most.saturating_sub(iovecs.len());
        if fits {
            iovecs.extend(self.pieces.iter().map(iovec));
        }
        fits
    }
}
