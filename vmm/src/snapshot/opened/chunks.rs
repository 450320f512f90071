//! A pack as the source of memory that page faults fill.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::memory::lazy::source::{Chunk, ChunkReader, PageSource};
use crate::pager::place::PagerPlace;
use crate::pager::server;
use crate::snapshot::format::pack::{Decoder, Pack};

/// See the module.
#[derive(Debug)]
struct PackedChunks(Arc<Pack>);

impl PageSource for PackedChunks {
    fn memory_len(&self) -> u64 {
        self.0.memory_len()
    }

    fn chunk_len(&self) -> u64 {
        self.0.chunk_len().into()
    }

    fn reader(&self) -> Box<dyn ChunkReader + '_> {
        Box::new(PackReader { pack: &self.0, decoder: Decoder::new() })
    }
}

/// Makes a source of a pack.
pub(crate) fn source_of(pack: Arc<Pack>) -> Box<dyn PageSource> {
    Box::new(PackedChunks(pack))
}

/// Serves as the pager of the pack in `pack`, called `name` in errors, until it has had no VM for `linger`.
/// Returns at once if another pager serves it. VMs of `group` find it in `directory`. Calls `listening` once
/// VMs can connect. In a confined process the calling thread is confined from then on.
///
/// # Errors
/// The file is no pack, or the host refuses a resource.
pub fn serve_pager(
    pack: File,
    name: &Path,
    (directory, group): (&Path, Option<&str>),
    linger: Duration,
    listening: impl FnOnce(),
) -> Result<()> {
    let place = PagerPlace::of(&pack, directory, group)?;
    let pack = Arc::new(Pack::open(pack, name)?);
    server::serve(&place, &|| source_of(Arc::clone(&pack)), linger, listening)
}

struct PackReader<'p> {
    pack: &'p Pack,
    decoder: Decoder,
}

impl ChunkReader for PackReader<'_> {
    fn read(&mut self, chunk: u64, into: &mut [u8]) -> Result<Chunk> {
        let chunk = chunk as u32; // a pack has at most 2^28
        let is_stored = self.pack.read_unless_zero(chunk, into, &mut self.decoder)?;
        Ok(if is_stored { Chunk::Bytes } else { Chunk::Zero })
    }
}
