//! What it costs to touch packed memory that is unpacked as it is touched. See [`options::HELP`].
//!
//! `floor` is what any pager of this kind must do, `touch` is who has the page faults.
#![allow(unsafe_code)]

mod floor;
#[path = "../pack/memory.rs"]
#[allow(dead_code, reason = "the other benchmark of packs uses the rest")]
mod memory;
mod options;
mod touch;

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use floor::{Floor, Mapping};
use memory::{Memory, nameless};
use options::Options;
use touch::{shuffle, touch};
use volt_benches::stats::Times;
use volt_benches::table::Table;
use volt_benches::{OrSay, Result, command_line, host, process};
use volt_vmm::lazy::LazyBase;
use volt_vmm::{Compression, Packing};

const DOCUMENT: &str = "../docs/benchmarks-lazy.md";

/// The same as in the binary `volt-vmm`.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    command_line::run("lazy", options::HELP, Options::parse, run)
}

fn run(options: &Options) -> Result<()> {
    let load = host::load();
    let memory = Memory::read(&options.memory)?;
    stay_on(options.cpu)?;
    if options.realtime {
        process::go_first()?;
    }
    let mut text = String::new();
    let mut say = |part: &str| {
        println!("{part}");
        let _ = writeln!(text, "{part}");
    };
    say(&format!(
        "# Packed memory, unpacked as it is touched\n\nWritten by the benchmark itself (`--write-docs`). {}, {} CPUs; Linux {}; load average at the start {load:.1}.\n\n\
         ```sh\ncargo bench -p volt-benches --bench lazy -- {}\n```\n\nThe memory is {} MiB, of which {} MiB are in pages that are not zero. \
         All runs on one core, whoever touches and whoever answers by turns; every chunk that is not zero is touched once, in random order.\n",
        host::cpu(),
        host::cpus(),
        host::kernel(),
        options.line,
        memory.bytes.len() >> 20,
        memory.touched() >> 20,
    ));
    // For threads that answer faults to the end.
    let image: &'static [u8] = memory.bytes.clone().leak();
    let mut first = Table::new(&[
        "first touch of a chunk",
        "KiB",
        "p50, us",
        "p90, us",
        "p99, us",
        "mean, us",
        "MiB/s",
        "of the floor",
    ]);
    let mut later = Table::new(&[
        "chunk that another has touched",
        "KiB",
        "p50, us",
        "p90, us",
        "p99, us",
        "mean, us",
        "of a usual fault",
    ]);
    for &chunk_len in &options.chunks {
        let measured = Measured::of(&memory, image, chunk_len, options)?;
        measured.report(chunk_len, &mut first, &mut later);
    }
    say(
        "## The first touch\n\nThe floor is the same fault, answered from memory that is unpacked already.\n",
    );
    say(&first.to_string());
    say(
        "## The touch of another VM\n\nThe base is filled, and mapped once more with a userfaultfd of its own; beside it the same file \
         mapped `MAP_PRIVATE` and nothing else.\n",
    );
    say(&later.to_string());
    if options.write_docs {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(DOCUMENT);
        std::fs::write(&path, text.trim_end().to_owned() + "\n").or_say("write docs/benchmarks-lazy.md")?;
    }
    Ok(())
}

/// Times of all contenders at one size of chunk.
struct Measured {
    contenders: Vec<(&'static str, Times)>,
    clone: Times,
    usual: Times,
}

impl Measured {
    fn of(memory: &Memory, image: &'static [u8], chunk_len: u32, options: &Options) -> Result<Self> {
        let len = chunk_len as usize;
        let mut order: Vec<usize> = memory
            .bytes
            .chunks(len)
            .enumerate()
            .filter(|(_, chunk)| chunk.iter().any(|byte| *byte != 0))
            .map(|(at, _)| at)
            .collect();
        shuffle(&mut order);
        let packing = |compression| Packing { chunk_len, ..Packing::new(compression) };
        let codecs = [
            ("raw", Packing { least_saving: 100, ..packing(Compression::Lz4) }),
            ("lz4", packing(Compression::Lz4)),
            ("zstd", packing(Compression::Zstd { level: 3 })),
        ];
        let packs = codecs.map(|(name, packing)| memory.pack(&packing).map(|pack| (name, pack)));
        let packs = packs.into_iter().collect::<Result<Vec<_>>>()?;
        let mut measured = Self {
            contenders: vec![("floor", Times::default())],
            clone: Times::default(),
            usual: Times::default(),
        };
        measured.contenders.extend(codecs.map(|(name, _)| (name, Times::default())));
        for _ in 0..options.rounds {
            let memfd = nameless()?;
            memfd.set_len(image.len() as u64).or_say("size the floor's memory")?;
            let floor = Floor::over(&memfd, image, len)?;
            add(&mut measured.contenders[0].1, &touch(floor.memory.start, len, &order));
            drop(floor);
            for ((_, pack), (_, times)) in packs.iter().zip(&mut measured.contenders[1..]) {
                let file = pack.file().try_clone().or_say("open the pack again")?;
                let base = LazyBase::open(file, pack.name()).or_say("open the pack")?;
                let memory = base.map().or_say("map memory")?;
                add(times, &touch(memory.address_of(0) as u64, len, &order));
                // By turns, for what is first warms something up.
                let clone = base.map().or_say("map memory")?;
                let usual = Mapping::of(&base.file(), image.len(), libc::MAP_PRIVATE, libc::PROT_READ)?;
                add(&mut measured.clone, &touch(clone.address_of(0) as u64, len, &order));
                add(&mut measured.usual, &touch(usual.start, len, &order));
                usual.unmap();
            }
        }
        Ok(measured)
    }

    fn report(&self, chunk_len: u32, first: &mut Table, later: &mut Table) {
        let kib = (chunk_len >> 10).to_string();
        let floor = mean(&self.contenders[0].1);
        for (name, times) in &self.contenders {
            let mean = mean(times);
            let mut cells = vec![(*name).to_owned(), kib.clone()];
            cells.extend(micros(times));
            cells.push(format!("{:.0}", f64::from(chunk_len) / f64::from(1 << 20) / mean.as_secs_f64()));
            cells.push(format!("{:.2}", mean.as_secs_f64() / floor.as_secs_f64()));
            first.row(cells);
        }
        let usual = self.usual.percentile(50);
        for (name, times) in [("lazy", &self.clone), ("usual", &self.usual)] {
            let mut cells = vec![name.to_owned(), kib.clone()];
            cells.extend(micros(times));
            cells.push(format!("{:.2}", times.percentile(50).as_secs_f64() / usual.as_secs_f64()));
            later.row(cells);
        }
    }
}

fn add(to: &mut Times, more: &Times) {
    more.each().for_each(|time| to.add(time));
}

fn mean(times: &Times) -> Duration {
    times.each().sum::<Duration>() / (times.len().max(1) as u32)
}

/// p50, p90, p99 and mean.
fn micros(times: &Times) -> Vec<String> {
    let of = |time: Duration| format!("{:.2}", time.as_secs_f64() * 1e6);
    [50, 90, 99].map(|percent| of(times.percentile(percent))).into_iter().chain([of(mean(times))]).collect()
}

/// This thread and those it starts.
fn stay_on(cpu: usize) -> Result<()> {
    // SAFETY: the set is initialised as zeroes, which is the empty set, and only read by the call.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()).or_say("stay on one core") }
}
