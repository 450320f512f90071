//! Encodings of a chunk: raw, lz4 or zstd. Only this module uses the codecs' libraries, which are C and
//! written by the codecs' authors. Rust's lz4 takes one and a half times as long to decode a chunk, and two
//! and a half times without `unsafe`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use zstd_safe::{CCtx, DCtx};

use crate::error::{Error, Result};

/// Zstd's own default.
const ZSTD_LEVEL: i32 = 3;
/// Levels up to zstd's highest. Negative levels are worse than lz4 in both speed and size.
const ZSTD_LEVELS: std::ops::RangeInclusive<i32> = 1..=22;

/// Compression of memory, written as `lz4` or `zstd:LEVEL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Compression {
    /// Fast.
    Lz4,
    /// Small.
    Zstd {
        /// 1 to 22.
        level: i32,
    },
}

impl FromStr for Compression {
    type Err = Error;

    /// Parses `lz4`, `zstd` or `zstd:LEVEL`.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::config(
                "compress",
                format!("{text:?}: write lz4, zstd or zstd:LEVEL with a level from 1 to 22"),
            )
        };
        match text.split_once(':') {
            None if text == "lz4" => Ok(Self::Lz4),
            None if text == "zstd" => Ok(Self::Zstd { level: ZSTD_LEVEL }),
            Some(("zstd", level)) => {
                let level = level.parse().ok().filter(|level| ZSTD_LEVELS.contains(level));
                level.map(|level| Self::Zstd { level }).ok_or_else(wrong)
            }
            _ => Err(wrong()),
        }
    }
}

impl TryFrom<String> for Compression {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Compression> for String {
    fn from(compression: Compression) -> Self {
        compression.to_string()
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd { level } => write!(f, "zstd:{level}"),
        }
    }
}

/// Encoding of a stored chunk, with its number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Encoding {
    /// Uncompressed.
    Raw = 1,
    /// An LZ4 block.
    Lz4 = 2,
    /// A zstd frame.
    Zstd = 3,
}

impl Encoding {
    pub(crate) fn of(number: u8) -> Option<Self> {
        [Self::Raw, Self::Lz4, Self::Zstd].into_iter().find(|encoding| *encoding as u8 == number)
    }
}

impl Encoding {
    /// Name of the encoding, for users.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Compresses chunk after chunk, on one thread.
pub struct Encoder {
    how: Method,
    /// Least saving, in percent of the chunk, for which a chunk is stored compressed.
    least_saving: u8,
    room: usize,
}

enum Method {
    Lz4,
    Zstd(CCtx<'static>, i32),
}

impl Encoder {
    /// Makes an encoder for chunks of up to `chunk_len` bytes.
    ///
    /// # Errors
    /// The host has no memory for it.
    pub fn new(compression: Compression, chunk_len: u32, least_saving: u8) -> Result<Self> {
        let how = match compression {
            Compression::Lz4 => Method::Lz4,
            Compression::Zstd { level } => Method::Zstd(CCtx::try_create().ok_or_else(no_memory)?, level),
        };
        let room = lz4::block::compress_bound(chunk_len as usize);
        let room =
            room.map_err(|source| Error::host(format!("compress chunks of {chunk_len} bytes"), source))?;
        Ok(Self { how, least_saving, room })
    }

    /// The most bytes that [`Encoder::encode`] needs for a chunk.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Writes the encoded chunk to `out`, uncompressed if compression saves too little. Returns encoding and
    /// length.
    pub fn encode(&mut self, chunk: &[u8], out: &mut [u8]) -> (Encoding, u32) {
        let most = most_that_pays(chunk.len(), self.least_saving);
        let (encoding, len) = match &mut self.how {
            Method::Lz4 => (Encoding::Lz4, lz4::block::compress_to_buffer(chunk, None, false, out).ok()),
            // The codec stops as soon as it would save too little.
            Method::Zstd(context, level) => {
                (Encoding::Zstd, context.compress(&mut out[..most], chunk, *level).ok())
            }
        };
        if let Some(len) = len.filter(|len| *len <= most) {
            return (encoding, len as u32);
        }
        out[..chunk.len()].copy_from_slice(chunk);
        (Encoding::Raw, chunk.len() as u32)
    }
}

/// The longest encoding of a chunk of `len` bytes that saves enough.
fn most_that_pays(len: usize, least_saving: u8) -> usize {
    let left = 100_usize.saturating_sub(least_saving.into());
    (len * left / 100).min(len.saturating_sub(1))
}

/// Decodes chunk after chunk, on one thread.
#[derive(Default)]
pub struct Decoder {
    /// Buffer for a stored chunk. It only grows: a read overwrites it, so it needs no zeros.
    stored: Vec<u8>,
    zstd: Option<DCtx<'static>>,
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder").field("zstd", &self.zstd.is_some()).finish_non_exhaustive()
    }
}

impl Decoder {
    /// Makes a decoder. It allocates memory on first use.
    #[must_use]
    pub const fn new() -> Self {
        Self { stored: Vec::new(), zstd: None }
    }

    /// A buffer for a chunk stored in `len` bytes.
    pub(crate) fn room(&mut self, len: usize) -> &mut [u8] {
        if self.stored.len() < len {
            self.stored.resize(len, 0);
        }
        &mut self.stored[..len]
    }

    /// Decodes the first `stored_len` bytes of [`Decoder::room`] to all of `into`.
    ///
    /// # Errors
    /// The bytes are damaged, decode to another length than `into`'s, or the host has no memory.
    pub(crate) fn decode(
        &mut self,
        encoding: Encoding,
        stored_len: usize,
        into: &mut [u8],
    ) -> std::result::Result<(), String> {
        let stored = &self.stored[..stored_len];
        let len = match encoding {
            Encoding::Raw => {
                let whole = into.len() == stored.len();
                whole
                    .then(|| into.copy_from_slice(stored))
                    .map(|()| stored.len())
                    .ok_or("the length is wrong".to_owned())
            }
            Encoding::Lz4 => {
                let len = into.len() as i32; // at most 2 MiB
                lz4::block::decompress_to_buffer(stored, Some(len), into).map_err(|error| error.to_string())
            }
            Encoding::Zstd => {
                if self.zstd.is_none() {
                    self.zstd = Some(DCtx::try_create().ok_or("no memory for zstd")?);
                }
                let context = self.zstd.as_mut().ok_or("no memory for zstd")?;
                context.decompress(into, stored).map_err(|code| zstd_safe::get_error_name(code).to_owned())
            }
        };
        match len {
            Ok(len) if len == into.len() => Ok(()),
            Ok(len) => Err(format!("its {encoding} bytes decode to {len} bytes, not to {}", into.len())),
            Err(why) => Err(format!("its {encoding} bytes cannot be decoded: {why}")),
        }
    }
}

fn no_memory() -> Error {
    Error::host("set up zstd", std::io::Error::from(std::io::ErrorKind::OutOfMemory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compression_is_parsed_from_its_name_and_no_other() {
        for (text, compression) in [
            ("lz4", Compression::Lz4),
            ("zstd:3", Compression::Zstd { level: 3 }),
            ("zstd:22", Compression::Zstd { level: 22 }),
        ] {
            assert_eq!(text.parse::<Compression>().unwrap(), compression);
            assert_eq!(compression.to_string(), text);
        }
        assert_eq!("zstd".parse::<Compression>().unwrap(), Compression::Zstd { level: 3 });
        for text in ["", "gzip", "lz4:1", "zstd:", "zstd:0", "zstd:23", "zstd:-1", "zstd:x", "ZSTD"] {
            assert!(text.parse::<Compression>().is_err(), "{text}");
        }
    }

    #[test]
    fn compression_pays_below_its_limit() {
        assert_eq!(most_that_pays(65_536, 5), 62_259);
        assert_eq!(most_that_pays(65_536, 0), 65_535);
        assert_eq!(most_that_pays(65_536, 100), 0);
        assert_eq!(most_that_pays(4096, 1), 4055);
    }

    /// A chunk of which compression saves about `saved` percent.
    fn chunk(saved: usize) -> Vec<u8> {
        let mut chunk = super::super::testing::noise(1, 4096 * (100 - saved) / 100);
        chunk.resize(4096, 0);
        chunk
    }

    #[test]
    fn compression_that_does_not_pay_is_not_used() {
        for compression in [Compression::Lz4, Compression::Zstd { level: 3 }] {
            let encoded = |least_saving, saved| {
                let chunk = chunk(saved);
                let mut encoder = Encoder::new(compression, 4096, least_saving).unwrap();
                let mut bytes = vec![7; encoder.room()];
                let (encoding, len) = encoder.encode(&chunk, &mut bytes);
                assert_eq!(encoding == Encoding::Raw, bytes[..len as usize] == chunk);
                encoding
            };
            assert_eq!(encoded(0, 0), Encoding::Raw, "noise");
            assert_ne!(encoded(0, 20), Encoding::Raw);
            assert_ne!(encoded(15, 20), Encoding::Raw);
            assert_eq!(encoded(25, 20), Encoding::Raw);
            assert_eq!(encoded(100, 90), Encoding::Raw);
        }
    }
}
