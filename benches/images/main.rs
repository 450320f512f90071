//! Rates at which layers of images become EROFS files. See [`Options`].

mod source;

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::Parser;
use source::Source;
use volt_benches::document::{Document, circumstances};
use volt_benches::scratch::Scratch;
use volt_benches::stats::{Times, milliseconds};
use volt_benches::table::Table;
use volt_benches::{Result, command_line, host};
use volt_image::digest::Hashed;
use volt_image::layer::{Forget, Layer};
use volt_image::store::{Claim, Packed, Store};
use volt_image::unpacked::{Limits, Unpacked};

const DOCUMENT: &str = "docs/benchmarks-images.md";

/// The same as in the binary `volt-vmm`.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Measures how fast a layer becomes an EROFS file, beside what any reader of it must do.
#[derive(Debug, Parser)]
#[command(
    args_override_self = true,
    name = "images",
    bin_name = "cargo bench -p volt-benches --bench images --"
)]
struct Options {
    /// The layer is a tar of this directory
    #[arg(long, value_name = "DIR", default_value = "/usr/lib")]
    source: PathBuf,

    /// Most bytes of the layer, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    most: u64,

    /// Directory of the results [default: /dev/shm, which is memory]
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    place: PathBuf,

    /// Rounds of each measurement
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,

    /// Write the result to docs/benchmarks-images.md
    #[arg(long)]
    write_docs: bool,
}

fn main() -> ExitCode {
    command_line::run(run)
}

fn run(options: &Options) -> Result<()> {
    let load = host::load();
    let scratch = Scratch::new()?;
    let source = Source::of(&options.source, options.most << 20, &scratch);
    let source = source.map_err(|error| error.to_string())?;
    let place = options.place.join(format!("volt-bench-images-{}", std::process::id()));
    let measured = measure(options, &source, &place);
    let _ = fs::remove_dir_all(&place);
    let rows = measured.map_err(|error| error.to_string())?;
    let mut table = Table::new(&["act, one processor", "rounds", "fastest, ms", "p50, ms", "p50, MB/s"]);
    for (name, times) in &rows {
        let rate = source.plain.len() as f64 / 1e6 / times.percentile(50).as_secs_f64();
        let [fastest, middle] = [0, 50].map(|percent| milliseconds(times.percentile(percent)));
        table.row([(*name).to_owned(), times.len().to_string(), fastest, middle, format!("{rate:.0}")]);
    }
    let mut document = Document::default();
    document.say(&format!(
        "# Layers of images\n\nThe benchmark itself writes this page (`--write-docs`). {}",
        circumstances("images", &command_line::given(), load)
    ));
    document.say(&format!(
        "The layer is a tar of {}: {} files, {:.0} MB, {:.0} MB compressed by `gzip -1`. Rates are of the \
         plain stream. A stored layer has its digests checked, its metadata, and the rest of its stream, \
         by which it is saved again. The target is 300 MB/s for a plain stream.\n\n{table}",
        options.source.display(),
        source.files,
        source.plain.len() as f64 / 1e6,
        source.packed.len() as f64 / 1e6,
    ));
    if options.write_docs { document.write(DOCUMENT) } else { Ok(()) }
}

/// A result with whatever error a step has.
type Any<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Times of acts by their names.
type Rows = Vec<(&'static str, Times)>;

fn measure(options: &Options, source: &Source, place: &PathBuf) -> Any<Rows> {
    let store = Store::open(place)?;
    let layer_path = store.layer_path(&source.diff_id)?;
    let stored = |stream: &[u8], packed: Option<&Packed>| -> Any<Duration> {
        let started = Instant::now();
        let Claim::Missing(partial) = store.claim_layer(&source.diff_id, &AtomicBool::new(false))? else {
            return Err("the layer is there already".into());
        };
        partial.fill(stream, packed, Limits::default())?;
        let time = started.elapsed();
        fs::remove_file(&layer_path)?;
        Ok(time)
    };
    let hashed = || timed(|| drained(Hashed::new(&source.plain[..])));
    let unpacked = || timed(|| drained(Unpacked::new(&source.packed[..], Limits::default())?));
    let blob = place.join("blob");
    let converted = || {
        let file = fs::File::create(&blob)?;
        timed(|| Layer::read(&source.plain[..], &file, &mut Forget).map(drop).map_err(io::Error::other))
    };
    let mut rows: Rows = Vec::new();
    let mut row = |name, act: &dyn Fn() -> Any<Duration>| -> Any<()> {
        act()?; // once for the caches
        let times = (0..options.rounds).map(|_| act()).collect::<Any<Vec<_>>>()?;
        rows.push((name, times.into_iter().collect()));
        Ok(())
    };
    row("SHA-256 of the plain stream alone", &hashed)?;
    row("gunzip alone", &unpacked)?;
    row("conversion alone", &converted)?;
    row("a plain stream, stored", &|| stored(&source.plain, None))?;
    let packed = Packed { digest: source.digest.clone(), size: source.packed.len() as u64 };
    row("a gzip stream, stored", &|| stored(&source.packed, Some(&packed)))?;
    Ok(rows)
}

fn timed(act: impl FnOnce() -> io::Result<()>) -> Any<Duration> {
    let started = Instant::now();
    act()?;
    Ok(started.elapsed())
}

fn drained(mut stream: impl Read) -> io::Result<()> {
    io::copy(&mut stream, &mut io::sink()).map(drop)
}
