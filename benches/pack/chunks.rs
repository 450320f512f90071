//! How small memory gets, and how long a chunk takes to read, decode and verify, by chunk size and codec.

use std::time::Instant;

use volt_benches::guest_memory::{Memory, codecs};
use volt_benches::memory_options::MemoryOptions;

use crate::options::ROUNDS;
use volt_benches::shuffle::shuffle;
use volt_benches::stats::{Times, mib, micros};
use volt_benches::table::Table;
use volt_benches::{OrSay, Result};
use volt_vmm::internal::pack::{ChunkKind, Decoder, Pack};

/// Rows of sizes and times.
pub fn measure(memory: &Memory, options: &MemoryOptions) -> Result<Table> {
    let whole = zstd_over_all(memory)?;
    let mut table = Table::new(&[
        "codec",
        "chunk, KiB",
        "file, KiB",
        "of `zstd -3`",
        "ratio",
        "repeats",
        "us a chunk",
        "p99, us",
        "MiB/s",
    ]);
    for (name, packing) in codecs() {
        for chunk_len in options.chunk_lens() {
            let pack = memory.pack(&packing.chunk_len(chunk_len))?;
            let times = (0..options.rounds(ROUNDS)).map(|_| decode(&pack)).collect::<Result<Vec<_>>>()?;
            let best = times.into_iter().min_by_key(|decoded| decoded.times.total()).unwrap_or_default();
            let file = pack.data_len() + pack.index_len();
            let rate = mib(best.bytes) / best.times.total().as_secs_f64();
            table.row([
                name.to_owned(),
                (chunk_len >> 10).to_string(),
                (file >> 10).to_string(),
                format!("{:.2}", file as f64 / whole as f64),
                format!("{:.2}", memory.touched() as f64 / file as f64),
                best.repeats.to_string(),
                format!("{:.1}", micros(best.times.percentile(50))),
                format!("{:.1}", micros(best.times.percentile(99))),
                format!("{rate:.0}"),
            ]);
        }
    }
    Ok(table)
}

/// Size for comparison: one zstd frame over the whole memory file.
fn zstd_over_all(memory: &Memory) -> Result<u64> {
    let mut out = vec![0; zstd_safe::compress_bound(memory.bytes.len())];
    let compressed = zstd_safe::compress(&mut out[..], &memory.bytes, 3);
    compressed.map(|len| len as u64).map_err(|code| zstd_safe::get_error_name(code).to_owned())
}

/// Results over all stored chunks.
#[derive(Default)]
struct Decoded {
    times: Times,
    bytes: u64,
    repeats: usize,
}

/// Reads every stored chunk, in an order that no cache foresees.
fn decode(pack: &Pack) -> Result<Decoded> {
    let geometry = pack.geometry();
    let (mut decoder, mut decoded, mut times) = (Decoder::new(), Decoded::default(), Vec::new());
    // Whole pages, as a handler of faults decodes to: a copy by the kernel to 16 bytes after a page takes
    // three times as long.
    let mut room = vec![0; geometry.chunk_len() as usize + 4096];
    let start = room.as_ptr().align_offset(4096);
    let chunk = &mut room[start..];
    let mut order: Vec<u32> = Vec::new();
    for number in 0..geometry.chunks() {
        match pack.kind(number).or_say("read the index")? {
            ChunkKind::Zero => {}
            ChunkKind::Stored { same_as: Some(_), .. } => decoded.repeats += 1,
            ChunkKind::Stored { .. } => order.push(number),
        }
    }
    shuffle(&mut order);
    for number in order {
        let into = &mut chunk[..geometry.len_of(number)];
        let start = Instant::now();
        pack.read_chunk(number, into, &mut decoder).or_say("read a chunk")?;
        times.push(start.elapsed());
        decoded.bytes += into.len() as u64;
    }
    decoded.times.extend(times);
    Ok(decoded)
}
