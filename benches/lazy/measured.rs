//! Times of touches, at one size of chunk.

use std::fs::File;
use std::sync::Arc;

use volt_benches::guest_memory::{Memory, codecs};
use volt_benches::memory_options::MemoryOptions;

use crate::options::ROUNDS;
use volt_benches::shuffle::shuffle;
use volt_benches::stats::{Times, mib, micros, ratio};
use volt_benches::table::Table;
use volt_benches::{OrSay, Result};
use volt_vmm::internal::lazy_base::{Floor, LazyBase, Mapped};

/// Times of all contenders.
pub struct Measured {
    pub chunk_len: u32,
    /// The first is the floor.
    pub contenders: Vec<Contender>,
    clone: Times,
    usual: Times,
}

/// Times of one.
pub struct Contender {
    pub name: &'static str,
    pub times: Times,
    /// Ratio of memory's pages that are not zero to the packed size. The floor has none.
    pub ratio: Option<f64>,
}

/// The table of the first touches.
pub fn first() -> Table {
    Table::new(&[
        "first touch of a chunk",
        "KiB",
        "p50, us",
        "p90, us",
        "p99, us",
        "mean, us",
        "MiB/s",
        "of the floor",
    ])
}

/// The table of later ones.
pub fn later() -> Table {
    Table::new(&[
        "chunk that another has touched",
        "KiB",
        "p50, us",
        "p90, us",
        "p99, us",
        "mean, us",
        "of a usual fault",
    ])
}

impl Measured {
    /// Measures, all contenders in each round.
    ///
    /// # Errors
    /// The host refuses something.
    pub fn of(memory: &Memory, chunk_len: u32, options: &MemoryOptions) -> Result<Self> {
        let mut order: Vec<usize> = memory.chunks(chunk_len as usize).map(|(at, _)| at).collect();
        shuffle(&mut order);
        let touch = |mapped: &Mapped| touch(mapped, chunk_len as usize, &order);
        let mut contenders = vec![Contender { name: "floor", times: Times::default(), ratio: None }];
        let mut packs = Vec::new();
        for (name, packing) in codecs() {
            let pack = memory.pack(&packing.chunk_len(chunk_len))?;
            let ratio = memory.touched() as f64 / (pack.data_len() + pack.index_len()) as f64;
            contenders.push(Contender { name, times: Times::default(), ratio: Some(ratio) });
            packs.push(pack);
        }
        let (mut clone, mut usual) = (Times::default(), Times::default());
        let image = Arc::new(File::open(&memory.path).or_say("open the memory")?);
        for round in 0..options.rounds(ROUNDS) {
            let floor = Floor::over(Arc::clone(&image), chunk_len.into()).or_say("make the floor")?;
            contenders[0].times.extend(touch(&floor.map().or_say("map memory")?));
            drop(floor);
            for (pack, contender) in packs.iter().zip(&mut contenders[1..]) {
                let file = pack.file().try_clone().or_say("open the pack again")?;
                let base = LazyBase::open(file, pack.name()).or_say("open the pack")?;
                let map = || base.map().or_say("map memory");
                let first = map()?;
                contender.times.extend(touch(&first));
                // Both are mapped before either is touched, and take turns in being first, which warms
                // something up.
                let (second, plain) = (map()?, Mapped::file(&base.file()).or_say("map memory")?);
                let mut both = [(&second, &mut clone), (&plain, &mut usual)];
                both.rotate_left(round % 2);
                both.into_iter().for_each(|(mapped, times)| times.extend(touch(mapped)));
            }
        }
        Ok(Self { chunk_len, contenders, clone, usual })
    }

    /// Adds rows.
    pub fn report(&self, first: &mut Table, later: &mut Table) {
        let kib = (self.chunk_len >> 10).to_string();
        let floor = self.contenders[0].times.mean();
        for Contender { name, times, .. } in &self.contenders {
            let mean = times.mean();
            let mut cells = vec![(*name).to_owned(), kib.clone()];
            cells.extend(microseconds(times));
            cells.push(format!("{:.0}", mib(self.chunk_len.into()) / mean.as_secs_f64()));
            cells.push(format!("{:.2}", ratio(mean, floor)));
            first.row(cells);
        }
        let usual = self.usual.percentile(50);
        for (name, times) in [("lazy", &self.clone), ("usual", &self.usual)] {
            let mut cells = vec![name.to_owned(), kib.clone()];
            cells.extend(microseconds(times));
            cells.push(format!("{:.2}", ratio(times.percentile(50), usual)));
            later.row(cells);
        }
    }
}

/// Reads a byte of each chunk, a page further on in each.
fn touch(memory: &Mapped, chunk_len: usize, order: &[usize]) -> Vec<std::time::Duration> {
    let within = |number: usize| number * 4096 % chunk_len;
    let touch = |(number, chunk): (usize, &usize)| memory.touch((chunk * chunk_len + within(number)) as u64);
    order.iter().enumerate().map(touch).collect()
}

/// p50, p90, p99 and mean.
fn microseconds(times: &Times) -> impl Iterator<Item = String> {
    let percentiles = [50, 90, 99].map(|percent| times.percentile(percent));
    percentiles.into_iter().chain([times.mean()]).map(|time| format!("{:.2}", micros(time)))
}
