//! A disk over a file that another process truncates and writes.

use std::fs::File;

use arbitrary::Arbitrary;
use volt_vmm::FileRef;
use volt_vmm::config::devices::{Cache, DiskConfig, Engine, RateLimit};
use volt_vmm::fuzzing::FuzzedDevice;

use crate::{Bench, Dir};

/// Length of the file: two clusters of a layer and a part of one.
const LEN: u64 = (128 << 10) + 1536;

/// The disk's files.
#[derive(Debug)]
pub struct Disk {
    // Dropped before the directory that it lies in.
    image: File,
    layer: bool,
    config: DiskConfig,
    _dir: Dir,
}

/// The header of a disk request.
#[derive(Debug, Arbitrary)]
pub struct Head {
    kind: Kind,
    sector: Sector,
    /// Segments after the header of a discard: sectors, flags.
    segments: Option<(u8, u32, u8)>,
}

#[derive(Debug, Arbitrary)]
enum Kind {
    In,
    Out,
    Flush,
    Name,
    Discard,
    WriteZeroes,
    Any(u32),
}

#[derive(Debug, Arbitrary)]
enum Sector {
    Near(u16),
    Any(u64),
}

impl Sector {
    fn number(&self) -> u64 {
        match *self {
            Self::Near(sector) => u64::from(sector) % (LEN / 512 + 2),
            Self::Any(sector) => sector,
        }
    }
}

impl From<Head> for Vec<u8> {
    fn from(head: Head) -> Self {
        let kind = match head.kind {
            Kind::In => 0,
            Kind::Out => 1,
            Kind::Flush => 4,
            Kind::Name => 8,
            Kind::Discard => 11,
            Kind::WriteZeroes => 13,
            Kind::Any(kind) => kind,
        };
        let sector = head.sector.number().to_le_bytes();
        let mut bytes = [&u32::to_le_bytes(kind)[..], &[0; 4], &sector].concat();
        if let Some((count, sectors, flags)) = head.segments {
            for number in 0..=u32::from(count % 20) {
                bytes.extend(sector);
                bytes.extend((sectors >> number.min(31)).to_le_bytes());
                bytes.extend(u32::from(flags & 3).to_le_bytes());
            }
        }
        bytes
    }
}

/// An act on the disk's file.
#[derive(Debug, Arbitrary)]
pub enum Host {
    /// Truncates or extends it to a length.
    Truncate(u32),
    /// Restores its first length.
    Whole,
    /// Makes the disk read-only or writable, from the next process on.
    ReadOnly(bool),
}

impl Disk {
    /// Makes an image, with or without a layer over it.
    ///
    /// # Panics
    /// Temporary files cannot be made.
    #[must_use]
    pub fn new(layer: bool) -> Self {
        let dir = Dir::new();
        let path = dir.join("image");
        std::fs::write(&path, vec![0xa5; LEN as usize]).expect("a temporary file");
        let config = DiskConfig {
            id: "disk0".into(),
            path: FileRef::Path(path.clone()),
            parts: Vec::new(),
            read_only: false,
            // A crash of the host is not tested here, and syncing takes time.
            cache: Cache::Unsafe,
            engine: Engine::Sync,
            beneath: None,
            layer_size: None,
            layer: layer.then(|| FileRef::Path(dir.join("layer"))),
            limit: RateLimit::default(),
        };
        let written = if layer { dir.join("layer") } else { path };
        let image = File::options().read(true).write(true).create(true).truncate(false).open(written);
        Self { image: image.expect("a temporary file"), layer, config, _dir: dir }
    }
}

impl Bench for Disk {
    type Head = Head;
    type Host = Host;
    const REQUESTS: u8 = 0;

    fn device(&mut self) -> volt_vmm::Result<FuzzedDevice> {
        FuzzedDevice::disk(&self.config)
    }

    fn host(&mut self, act: Host) {
        let all = if self.layer { 5 * LEN } else { LEN };
        let done = match act {
            Host::Truncate(len) => self.image.set_len(u64::from(len) % all),
            Host::Whole => self.image.set_len(all),
            Host::ReadOnly(read_only) => {
                self.config.read_only = read_only;
                Ok(())
            }
        };
        done.expect("a temporary file");
    }
}
