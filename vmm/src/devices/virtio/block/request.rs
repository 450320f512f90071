//! Requests to a disk, read out of a chain and checked (virtio 1.2, section 5.2.6). After the checks only
//! the host can refuse a request.

use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
    VIRTIO_BLK_T_WRITE_ZEROES,
};
use vm_memory::ByteValued;

use crate::devices::virtio::DeviceFailed;
use crate::devices::virtio::chain::{Buffers, Chain};

/// Bytes of a sector.
pub const SECTOR: u64 = 512;
/// Ranges in one discard.
pub const MAX_DISCARD_SEGMENTS: u32 = 16;
/// Sectors in a range of a discard: 1 GiB. The host only changes metadata for them.
pub const MAX_DISCARD_SECTORS: u32 = 1 << 21;
/// Ranges in one request to write zeros.
pub const MAX_ZERO_SEGMENTS: u32 = 1;
/// Sectors in a range of a request to write zeros: 16 MiB. A host without a faster way writes them.
pub const MAX_ZERO_SECTORS: u32 = 1 << 15;
/// Bytes of a disk's name.
const ID_LEN: usize = 20;

/// Status that the driver reads (`VIRTIO_BLK_S_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestStatus {
    Done = 0,
    Failed = 1,
    Unsupported = 2,
}

/// A checked request.
#[derive(Debug)]
pub enum BlockRequest<'m> {
    /// Reads from this byte on.
    Read { at: u64, into: Buffers<'m> },
    /// Writes from this byte on.
    Write { at: u64, from: Buffers<'m> },
    /// Makes completed writes safe from a crash of the host.
    Flush,
    /// Returns the disk's name.
    GetId { into: Buffers<'m> },
    /// Gives up the content of these ranges.
    Discard(Vec<DiskRange>),
    /// Makes these ranges read as zeros.
    WriteZeroes(Vec<DiskRange>),
}

impl BlockRequest<'_> {
    /// Returns the bytes of data that the request transfers.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Read { into: data, .. } | Self::Write { from: data, .. } => data.len() as u64,
            Self::Flush | Self::GetId { .. } | Self::Discard(_) | Self::WriteZeroes(_) => 0,
        }
    }
}

/// A range of a disk in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRange {
    pub at: u64,
    pub len: u64,
    /// The host may free the range's space.
    pub unmap: bool,
}

/// Limits that requests are checked against.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Sectors.
    pub capacity: u64,
    pub read_only: bool,
}

/// Where the response to a request goes.
#[derive(Debug)]
pub struct Responder<'m> {
    pub head: u16,
    /// The status byte.
    pub status: Buffers<'m>,
    /// Writable bytes before the status.
    pub data: usize,
}

/// Start of every request (`struct virtio_blk_req`).
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

/// Parses a chain into the place of its response and its request, or the status that rejects the request.
///
/// # Errors
/// [`DeviceFailed`] if the chain has no room for a status.
pub fn parse(
    chain: Chain<'_>,
    limits: RequestLimits,
) -> Result<(Responder<'_>, std::result::Result<BlockRequest<'_>, RequestStatus>), DeviceFailed> {
    let Chain { head, readable, mut writable } = chain;
    let data = writable.len().checked_sub(1).ok_or(DeviceFailed("a disk request has no status byte"))?;
    // The status is the last writable byte, at whatever descriptor boundary the driver puts it.
    let into = writable.take(data);
    let responder = Responder { head, status: writable, data };
    Ok((responder, parse_body(readable, into, limits)))
}

fn parse_body<'m>(
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
            // A discard frees space by definition, so the unmap flag does not apply to it.
            let ranges = limits.ranges(readable, (MAX_DISCARD_SEGMENTS, MAX_DISCARD_SECTORS), 0)?;
            Ok(BlockRequest::Discard(ranges))
        }
        VIRTIO_BLK_T_WRITE_ZEROES => {
            let ranges = limits.ranges(readable, (MAX_ZERO_SEGMENTS, MAX_ZERO_SECTORS), UNMAP)?;
            Ok(BlockRequest::WriteZeroes(ranges))
        }
        _ => Err(RequestStatus::Unsupported),
    }
}

impl RequestLimits {
    fn check_writable(self) -> std::result::Result<(), RequestStatus> {
        if self.read_only { Err(RequestStatus::Failed) } else { Ok(()) }
    }

    /// Returns the offset of `sector` if the disk has `len` bytes from there on.
    fn check(self, sector: u64, len: u64) -> std::result::Result<u64, RequestStatus> {
        let sector = u64::from_le(sector);
        let whole = len.is_multiple_of(SECTOR);
        let end = sector.checked_add(len / SECTOR).filter(|end| whole && *end <= self.capacity);
        // The capacity is a file's length in sectors, so this product does not overflow.
        end.map(|_| sector * SECTOR).ok_or(RequestStatus::Failed)
    }

    fn ranges(
        self,
        mut segments: Buffers<'_>,
        (max_ranges, max_sectors): (u32, u32),
        known_flags: u32,
    ) -> std::result::Result<Vec<DiskRange>, RequestStatus> {
        self.check_writable()?;
        let (count, rest) = (segments.len() / size_of::<Segment>(), segments.len() % size_of::<Segment>());
        if count == 0 || count > max_ranges as usize || rest != 0 {
            return Err(RequestStatus::Failed);
        }
        let range = |_| {
            let segment: Segment = segments.read_value().map_err(|_| RequestStatus::Failed)?;
            let (sectors, flags) = (u32::from_le(segment.sectors), u32::from_le(segment.flags));
            if flags & !known_flags != 0 {
                return Err(RequestStatus::Unsupported);
            }
            if sectors > max_sectors {
                return Err(RequestStatus::Failed);
            }
            let len = u64::from(sectors) * SECTOR;
            Ok(DiskRange { at: self.check(segment.sector, len)?, len, unmap: flags & UNMAP != 0 })
        };
        (0..count).map(range).collect()
    }
}

/// Writes a disk's name, padded with zeros. Returns the bytes for which the buffers had room.
pub fn write_name(name: &str, mut into: Buffers<'_>) -> usize {
    let mut bytes = [0; ID_LEN];
    let len = name.len().min(ID_LEN);
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    into.write(&bytes)
}

impl Responder<'_> {
    /// Writes the status after `filled` bytes of data. Returns the bytes written from the front without a
    /// gap, which is the length in the used ring.
    pub fn respond(mut self, status: RequestStatus, filled: usize) -> usize {
        self.status.write(&[status as u8]);
        written(filled, self.data)
    }
}

/// Returns the bytes written from the front, if `filled` of the `data` bytes before the status were written.
pub fn written(filled: usize, data: usize) -> usize {
    if filled == data { filled + 1 } else { filled }
}
