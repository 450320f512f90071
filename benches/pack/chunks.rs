//! How small memory gets, and how long a chunk takes to read, decode and verify, by chunk size and codec.

use std::time::{Duration, Instant};

use volt_benches::table::Table;
use volt_benches::{OrSay, Result};
use volt_vmm::snapshot::pack::{Decoder, Kind, Pack};
use volt_vmm::{Compression, Packing};

use crate::memory::Memory;
use crate::options::Options;

/// The codecs, and no codec: what reading and verifying takes by itself.
fn codecs() -> [(&'static str, Packing); 3] {
    let lz4 = Packing::new(Compression::Lz4);
    // Nothing saves all of a chunk.
    let raw = Packing { least_saving: 100, ..lz4 };
    [("raw", raw), ("lz4", lz4), ("zstd", Packing::new(Compression::Zstd { level: 3 }))]
}

/// Rows of sizes and times.
pub fn measure(memory: &Memory, options: &Options) -> Result<Table> {
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
        for &chunk_len in &options.chunks {
            let pack = memory.pack(&Packing { chunk_len, ..packing })?;
            let times = (0..options.rounds).map(|_| decode(&pack)).collect::<Result<Vec<_>>>()?;
            let best = times.into_iter().min_by_key(Times::total).unwrap_or_default();
            let file = pack.data_len() + pack.index_len();
            let rate = mib(best.bytes) / best.total().as_secs_f64();
            table.row([
                name.to_owned(),
                (chunk_len >> 10).to_string(),
                (file >> 10).to_string(),
                format!("{:.2}", file as f64 / whole as f64),
                format!("{:.2}", memory.touched() as f64 / file as f64),
                best.repeats.to_string(),
                format!("{:.1}", micros(best.percentile(50))),
                format!("{:.1}", micros(best.percentile(99))),
                format!("{rate:.0}"),
            ]);
        }
    }
    Ok(table)
}

/// What it is all compared with: one zstd frame over the whole memory file.
fn zstd_over_all(memory: &Memory) -> Result<u64> {
    let mut out = vec![0; zstd_safe::compress_bound(memory.bytes.len())];
    let compressed = zstd_safe::compress(&mut out[..], &memory.bytes, 3);
    compressed.map(|len| len as u64).map_err(|code| zstd_safe::get_error_name(code).to_owned())
}

#[derive(Default)]
struct Times {
    times: Vec<Duration>,
    bytes: u64,
    repeats: usize,
}

impl Times {
    fn total(&self) -> Duration {
        self.times.iter().sum()
    }

    fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.times.len() * percent).div_ceil(100).max(1);
        self.times.get(rank - 1).copied().unwrap_or_default()
    }
}

/// Reads every stored chunk, in an order that no cache foresees.
fn decode(pack: &Pack) -> Result<Times> {
    let geometry = pack.geometry();
    let (mut decoder, mut times) = (Decoder::new(), Times::default());
    // Whole pages, as a handler of faults decodes to: a copy by the kernel to 16 bytes after a page takes three times as long.
    let mut room = vec![0; geometry.chunk_len() as usize + 4096];
    let start = room.as_ptr().align_offset(4096);
    let chunk = &mut room[start..];
    let mut order: Vec<u32> = Vec::new();
    for number in 0..geometry.chunks() {
        match pack.kind(number).or_say("read the index")? {
            Kind::Zero => {}
            Kind::Stored { same_as: Some(_), .. } => times.repeats += 1,
            Kind::Stored { .. } => order.push(number),
        }
    }
    shuffle(&mut order);
    for number in order {
        let into = &mut chunk[..geometry.len_of(number)];
        let start = Instant::now();
        pack.read_chunk(number, into, &mut decoder).or_say("read a chunk")?;
        times.times.push(start.elapsed());
        times.bytes += into.len() as u64;
    }
    times.times.sort_unstable();
    Ok(times)
}

/// The same every time.
fn shuffle(order: &mut [u32]) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..order.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(last, (state % (last as u64 + 1)) as usize);
    }
}

pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}

pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
