//! How fast memory is packed, beside the codec alone; what an index costs; how fast checksums are.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use volt_benches::guest_memory::{Memory, nameless};
use volt_benches::memory_options::MemoryOptions;

use crate::options::ROUNDS;
use volt_benches::scratch::Scratch;
use volt_benches::stats::{mib, micros};
use volt_benches::table::Table;
use volt_benches::{OrSay, Result, host};
use volt_vmm::Progress;
use volt_vmm::internal::pack::{ChunkKind, Pack, pack};
use volt_vmm::{Compression, Packing};

use crate::large::Large;

/// Times packing beside the same codec over the same chunks on as many threads. The codec runs once by
/// itself, without reading, lookup, verification or writing. It runs once with its output written, as any
/// compressor must.
pub fn packing(memory: &Memory, options: &MemoryOptions) -> Result<Table> {
    let mut table = Table::new(&[
        "codec",
        "chunk, KiB",
        "packing, MiB/s",
        "bare codec, MiB/s",
        "share",
        "and written, MiB/s",
        "share",
    ]);
    for compression in [Compression::Lz4, Compression::Zstd { level: 3 }] {
        for chunk_len in options.chunk_lens() {
            if ![32 << 10, 64 << 10, 128 << 10].contains(&chunk_len) {
                continue;
            }
            let chunks: Vec<_> = memory.chunks(chunk_len as usize).map(|(_, chunk)| chunk).collect();
            let bytes = chunks.iter().map(|chunk| chunk.len() as u64).sum();
            let (mut ours, mut bare, mut written) = (Duration::MAX, Duration::MAX, Duration::MAX);
            for _ in 0..options.rounds(ROUNDS) {
                let start = Instant::now();
                let pack = memory.pack(&Packing::new(compression).chunk_len(chunk_len))?;
                ours = ours.min(start.elapsed());
                drop(pack); // which frees the file
                bare = bare.min(bare_codec(&chunks, compression, None)?);
                written = written.min(bare_codec(&chunks, compression, Some(&nameless()?))?);
            }
            let rate = |time: Duration| mib(bytes) / time.as_secs_f64();
            table.row([
                compression.to_string(),
                (chunk_len >> 10).to_string(),
                format!("{:.0}", rate(ours)),
                format!("{:.0}", rate(bare)),
                format!("{:.2}", rate(ours) / rate(bare)),
                format!("{:.0}", rate(written)),
                format!("{:.2}", rate(ours) / rate(written)),
            ]);
        }
    }
    Ok(table)
}

/// Time of the codec. Its output goes into `file`, a MiB at a time.
fn bare_codec(chunks: &[&[u8]], compression: Compression, file: Option<&File>) -> Result<Duration> {
    let (next, end) = (AtomicUsize::new(0), AtomicU64::new(0));
    let work = || -> std::io::Result<()> {
        let longest = chunks.iter().map(|chunk| chunk.len()).max().unwrap_or_default();
        let room = lz4::block::compress_bound(longest)?;
        let mut out = vec![0; (1 << 20) + room];
        let mut zstd = zstd_safe::CCtx::create();
        let mut filled = 0;
        while let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let out = &mut out[..];
            let into = &mut out[filled..];
            let len = match compression {
                Compression::Lz4 => lz4::block::compress_to_buffer(chunk, None, false, into).ok(),
                Compression::Zstd { level } => zstd.compress(into, chunk, level).ok(),
            };
            filled += black_box(len.unwrap_or_default());
            if filled >= 1 << 20 {
                if let Some(file) = file {
                    file.write_all_at(&out[..filled], end.fetch_add(filled as u64, Ordering::Relaxed))?;
                }
                filled = 0;
            }
        }
        Ok(())
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..host::cpus()).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?.or_say("write"))
    })?;
    Ok(start.elapsed())
}

/// The index of 16 GiB: how large it is, and how long it takes to open, to look something up, to look at all
/// of it.
pub fn index(rounds: usize) -> Result<Table> {
    let mut table = Table::new(&[
        "chunk, KiB",
        "index, KiB",
        "of the memory",
        "open, us",
        "first look-up, us",
        "later, ns",
        "all, ms",
    ]);
    let scratch = Scratch::new()?;
    for chunk_len in [32 << 10, 64 << 10, 128 << 10] {
        let path = scratch.path(&chunk_len.to_string());
        let file = File::create_new(&path).or_say("create a pack")?;
        let packing = Packing::new(Compression::Lz4).chunk_len(chunk_len);
        pack(&Large::new(), Large::LEN, &packing, (&file, &path), &Progress::default()).or_say("pack")?;
        let opened = || {
            File::open(&path)
                .or_say("open the pack")
                .and_then(|file| Pack::open(file, &path).or_say("open the pack"))
        };
        let (index, chunks) = opened().map(|pack| (pack.index_len(), pack.geometry().chunks()))?;
        let (mut open, mut first, mut later, mut all) = ([Duration::MAX; 4]).into();
        for _ in 0..rounds.max(5) {
            let start = Instant::now();
            let again = opened()?;
            open = open.min(start.elapsed());
            let look = |chunk| -> Result<Duration> {
                let start = Instant::now();
                let kind = again.kind(chunk).or_say("look a chunk up")?;
                let took = start.elapsed();
                if kind == ChunkKind::Zero { Err("no chunk of this is zero".to_owned()) } else { Ok(took) }
            };
            first = first.min(look(chunks / 2)?);
            later = later.min(look(chunks / 2)?);
            let start = Instant::now();
            (0..chunks).try_for_each(|chunk| look(chunk).map(drop))?;
            all = all.min(start.elapsed());
        }
        table.row([
            (chunk_len >> 10).to_string(),
            (index >> 10).to_string(),
            format!("{:.4} %", 100.0 * index as f64 / Large::LEN as f64),
            format!("{:.0}", micros(open)),
            format!("{:.1}", micros(first)),
            later.as_nanos().to_string(),
            format!("{:.1}", all.as_secs_f64() * 1e3),
        ]);
    }
    Ok(table)
}

type Sum<'a> = &'a dyn Fn(&[u8]) -> u64;

/// Cost of verifying a chunk, with this checksum and with others.
pub fn checksums(memory: &Memory, rounds: usize) -> Table {
    static CRC: crc::Crc<u64, crc::Table<16>> = crc::Crc::<u64, crc::Table<16>>::new(&crc::CRC_64_ECMA_182);
    let chunks: Vec<_> = memory.chunks(64 << 10).map(|(_, chunk)| chunk).collect();
    let bytes = chunks.iter().map(|chunk| chunk.len() as u64).sum();
    let mut table = Table::new(&["checksum of 64 KiB", "us", "MiB/s"]);
    let sums: [(&str, Sum<'_>); 3] = [
        ("XXH3-64 (used)", &xxhash_rust::xxh3::xxh3_64),
        ("XXH3-128", &|chunk| xxhash_rust::xxh3::xxh3_128(chunk) as u64),
        ("CRC-64 by tables", &|chunk| CRC.checksum(chunk)),
    ];
    for (name, sum) in sums {
        let mut best = Duration::MAX;
        for _ in 0..rounds {
            let start = Instant::now();
            for chunk in &chunks {
                black_box(sum(chunk));
            }
            best = best.min(start.elapsed());
        }
        let us = micros(best) / chunks.len() as f64;
        table.row([name.to_owned(), format!("{us:.1}"), format!("{:.0}", mib(bytes) / best.as_secs_f64())]);
    }
    table
}
