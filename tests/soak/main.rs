//! The soak: guests with busy devices go through snapshots, diffs, forks, rewinds, restores and packs at
//! random, for hours. Each act checks content, and nothing may grow. `scripts/soak.sh` starts it.
//!
//! ```text
//! Options ──> Herd (a guest of each kind) ──chance──> act ──> the guest and its clones go on
//!                        └── each minute: Watch (memory, descriptors, threads, files) ──> table, verdict
//! ```

mod acts;
mod chance;
mod herd;
mod interrupt;
mod options;
mod tally;
mod watch;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use chance::Chance;
use herd::Herd;
use options::Options;
use tally::Tally;
use watch::Watch;

/// Time between two measurements.
const MINUTE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(text) => {
            eprintln!("soak: {text}");
            return ExitCode::from(2);
        }
    };
    interrupt::listen();
    println!("soak: seed {}, {} s", options.seed, options.time.as_secs());
    let result = catch_unwind(AssertUnwindSafe(|| soak(&options)));
    match result {
        Ok(true) => ExitCode::SUCCESS,
        // The message of the panic is on standard error.
        _ if interrupt::came() => {
            println!("soak: interrupted");
            ExitCode::from(130)
        }
        _ => {
            println!("soak: FAILED (--seed {} begins with the same acts)", options.seed);
            ExitCode::FAILURE
        }
    }
}

/// Runs until the time is over. Returns whether nothing has grown.
fn soak(options: &Options) -> bool {
    let start = Instant::now();
    let mut chance = Chance::of(options.seed);
    let mut herd = Herd::new(options.linux);
    let (mut watch, mut tally) = (Watch::default(), Tally::default());
    let mut next = start + MINUTE;
    while start.elapsed() < options.time && !interrupt::came() {
        acts::one(&mut herd, &mut chance, &mut tally);
        if Instant::now() >= next {
            watch.measure(&mut herd);
            println!("soak: {:>4} min  {tally}  {watch}", start.elapsed().as_secs() / 60);
            next += MINUTE;
        }
    }
    watch.measure(&mut herd);
    println!("{}\n{}", tally.table(), watch.table());
    let grown = watch.grown();
    for name in &grown {
        println!("soak: GROWN: {name}");
    }
    grown.is_empty() && !interrupt::came()
}
