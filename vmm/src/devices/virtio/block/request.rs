//! One request to a disk, read out of a chain and checked (virtio 1.2, section 5.2.6): what is left to do is what the host
//! may refuse.

use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
    VIRTIO_BLK_T_WRITE_ZEROES,
};
use vm_memory::ByteValued;

use crate::devices::virtio::Broken;
use crate::devices::virtio::chain::{Buffers, Chain};

/// Bytes that a sector number counts.
pub const SECTOR: u64 = 512;
/// Stretches of sectors that one discard may name.
pub const MAX_DISCARD_SEGMENTS: u32 = 16;
/// Sectors that each of them may have: 1 GiB. The host only takes note of them.
pub const MAX_DISCARD_SECTORS: u32 = 1 << 21;
/// Stretches that one request to write zeros may name.
pub const MAX_ZERO_SEGMENTS: u32 = 1;
/// Sectors that it may have: 16 MiB, which a host that knows no better has to write.
pub const MAX_ZERO_SECTORS: u32 = 1 << 15;
/// Bytes of the name of a disk.
const ID_LEN: usize = 20;

/// What the driver is told of a request's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestStatus {
    Done = 0,
    Failed = 1,
    Unsupported = 2,
}

/// What a request asks for.
#[derive(Debug)]
pub enum BlockRequest<'m> {
    /// Reads from this byte on.
    Read { at: u64, into: Buffers<'m> },
    /// Writes from this byte on.
    Write { at: u64, from: Buffers<'m> },
    /// What was written is to be safe.
    Flush,
    /// The disk's name.
    GetId { into: Buffers<'m> },
    /// What these hold is not needed any more.
    Discard(Vec<DiskRange>),
    /// These are to hold zeros.
    WriteZeroes(Vec<DiskRange>),
}

impl BlockRequest<'_> {
    /// How much data it moves.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Read { into: data, .. } | Self::Write { from: data, .. } => data.len() as u64,
            Self::Flush | Self::GetId { .. } | Self::Discard(_) | Self::WriteZeroes(_) => 0,
        }
    }
}

/// A stretch of a disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRange {
    pub at: u64,
    pub len: u64,
    /// Its place on the host may be given up.
    pub unmap: bool,
}

/// What requests are checked against.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Sectors.
    pub capacity: u64,
    pub read_only: bool,
}

/// Where a request's answer goes.
#[derive(Debug)]
pub struct Responder<'m> {
    pub head: u16,
    /// One byte.
    pub status: Buffers<'m>,
    /// Bytes to write that come before it.
    pub data: usize,
}

/// The start of every request (`struct virtio_blk_req`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct RequestHeader {
    kind: u32,
    reserved: u32,
    sector: u64,
}

/// `struct virtio_blk_discard_write_zeroes`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Segment {
    sector: u64,
    sectors: u32,
    flags: u32,
}

const UNMAP: u32 = 1;

const _: () = assert!(size_of::<RequestHeader>() == 16 && size_of::<Segment>() == 16);

// SAFETY: integers without padding between or after them.
#[allow(unsafe_code)]
unsafe impl ByteValued for RequestHeader {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl ByteValued for Segment {}

/// Takes a chain apart: where its answer goes, and what it asks for or why it gets nothing.
///
/// # Errors
/// [`Broken`] for a chain that has no room for an answer.
pub fn parse(
    chain: Chain<'_>,
    limits: RequestLimits,
) -> Result<(Responder<'_>, std::result::Result<BlockRequest<'_>, RequestStatus>), Broken> {
    let Chain { head, readable, mut writable } = chain;
    let data = writable.len().checked_sub(1).ok_or(Broken("a request to a disk without a status byte"))?;
    // The status is the very last byte, wherever the driver ends its descriptors.
    let into = writable.take(data);
    let answer = Responder { head, status: writable, data };
    Ok((answer, command(readable, into, limits)))
}

fn command<'m>(
    mut readable: Buffers<'m>,
    into: Buffers<'m>,
    limits: RequestLimits,
) -> std::result::Result<BlockRequest<'m>, RequestStatus> {
    let header: RequestHeader = readable.read_value().map_err(|_| RequestStatus::Failed)?;
    match u32::from_le(header.kind) {
        VIRTIO_BLK_T_IN => {
            let at = limits.check(header.sector, into.len() as u64)?;
            Ok(BlockRequest::Read { at, into })
        }
        VIRTIO_BLK_T_OUT => {
            limits.check_writable()?;
            let at = limits.check(header.sector, readable.len() as u64)?;
            Ok(BlockRequest::Write { at, from: readable })
        }
        VIRTIO_BLK_T_FLUSH => Ok(BlockRequest::Flush),
        VIRTIO_BLK_T_GET_ID => Ok(BlockRequest::GetId { into }),
        VIRTIO_BLK_T_DISCARD => {
            // A discard gives up the place by itself; the flag is not its own.
            let stretches = limits.stretches(readable, (MAX_DISCARD_SEGMENTS, MAX_DISCARD_SECTORS), 0)?;
            Ok(BlockRequest::Discard(stretches))
        }
        VIRTIO_BLK_T_WRITE_ZEROES => {
            let stretches = limits.stretches(readable, (MAX_ZERO_SEGMENTS, MAX_ZERO_SECTORS), UNMAP)?;
            Ok(BlockRequest::WriteZeroes(stretches))
        }
        _ => Err(RequestStatus::Unsupported),
    }
}

impl RequestLimits {
    fn check_writable(self) -> std::result::Result<(), RequestStatus> {
        if self.read_only { Err(RequestStatus::Failed) } else { Ok(()) }
    }

    /// The first of `len` bytes from a sector on, all of which the disk has.
    fn check(self, sector: u64, len: u64) -> std::result::Result<u64, RequestStatus> {
        let sector = u64::from_le(sector);
        let whole = len.is_multiple_of(SECTOR);
        let end = sector.checked_add(len / SECTOR).filter(|end| whole && *end <= self.capacity);
        // A capacity is a file's length by sectors, so that every byte of it has a number.
        end.map(|_| sector * SECTOR).ok_or(RequestStatus::Failed)
    }

    fn stretches(
        self,
        mut segments: Buffers<'_>,
        (most, longest): (u32, u32),
        known_flags: u32,
    ) -> std::result::Result<Vec<DiskRange>, RequestStatus> {
        self.check_writable()?;
        let (count, rest) = (segments.len() / size_of::<Segment>(), segments.len() % size_of::<Segment>());
        if count == 0 || count > most as usize || rest != 0 {
            return Err(RequestStatus::Failed);
        }
        let stretch = |_| {
            let segment: Segment = segments.read_value().map_err(|_| RequestStatus::Failed)?;
            let (sectors, flags) = (u32::from_le(segment.sectors), u32::from_le(segment.flags));
            if flags & !known_flags != 0 {
                return Err(RequestStatus::Unsupported);
            }
            if sectors > longest {
                return Err(RequestStatus::Failed);
            }
            let len = u64::from(sectors) * SECTOR;
            Ok(DiskRange { at: self.check(segment.sector, len)?, len, unmap: flags & UNMAP != 0 })
        };
        (0..count).map(stretch).collect()
    }
}

/// Writes a disk's name, padded with zeros, and says how much of it there was room for.
pub fn write_name(name: &str, mut into: Buffers<'_>) -> usize {
    let mut bytes = [0; ID_LEN];
    let len = name.len().min(ID_LEN);
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    into.write(&bytes)
}

impl Responder<'_> {
    /// Tells the driver how it ended, after `filled` bytes were written before the status. Gives the number of bytes written
    /// from the front without a gap, which is what the used ring counts.
    pub fn respond(mut self, status: RequestStatus, filled: usize) -> usize {
        self.status.write(&[status as u8]);
        written(filled, self.data)
    }
}

/// Bytes written from the front, where the status follows on `data` bytes of which `filled` were written.
pub fn written(filled: usize, data: usize) -> usize {
    if filled == data { filled + 1 } else { filled }
}
