//! Options of `snapshot create` and `snapshot convert` that pack guest memory.

use clap::Args;
use volt_vmm::{Compression, Error, Packing, parse_size};

/// Value of `--compress`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// `none`
    Raw,
    /// `lz4`, `zstd`, `zstd:LEVEL`
    Packed(Compression),
}

impl std::str::FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::Raw);
        }
        text.parse().map(Self::Packed).map_err(|error: Error| format!("{error}, or none"))
    }
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Raw => f.write_str("none"),
            Self::Packed(compression) => compression.fmt(f),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct PackingArgs {
    /// Pack in chunks of this size: a power of two from 4K to 2M [default: 64K]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    chunk_size: Option<u32>,

    /// Store a chunk uncompressed if compression saves less than this [default: 5]
    #[arg(long, value_name = "PERCENT")]
    least_saving: Option<u8>,
}

impl PackingArgs {
    /// Returns the packing, or none if memory stays raw.
    pub(super) fn of(self, memory: Memory) -> Result<Option<Packing>, Error> {
        let compression = match memory {
            Memory::Packed(compression) => Some(compression),
            Memory::Raw => None,
        };
        Packing::from_options(compression, self.chunk_size, self.least_saving)
    }
}

fn size(text: &str) -> Result<u32, String> {
    let size = parse_size(text, 1).ok().and_then(|size| u32::try_from(size).ok());
    size.ok_or_else(|| "write a size such as 64K or 2M".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cures;
    use crate::failure::Failure;

    #[test]
    fn chunk_size_takes_a_unit_and_refuses_other_text() {
        assert_eq!((size("64K"), size("4096"), size("2M")), (Ok(65_536), Ok(4096), Ok(2 << 20)));
        for text in ["", "x", "64KB", "5G", "-1"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn raw_memory_takes_no_options_of_packing() {
        let args = PackingArgs { chunk_size: Some(4096), least_saving: None };
        let error = Failure::from(args.of(Memory::Raw).unwrap_err()).report(cures::as_option);
        assert!(error.contains("--chunk-size"), "{error}");
        assert_eq!(PackingArgs::default().of("none".parse().unwrap()).unwrap(), None);
        let packing = args.of("zstd:7".parse().unwrap()).unwrap().unwrap();
        assert_eq!((packing.chunk_len, packing.compression), (4096, Compression::Zstd { level: 7 }));
        assert_eq!(packing.least_saving, Packing::LEAST_SAVING);
        assert!("gzip".parse::<Memory>().is_err());
    }
}
