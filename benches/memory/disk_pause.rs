//! Pause of a guest for a snapshot while it writes 100 MiB/s to a disk with a layer.

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use volt_benches::scratch::Scratch;
use volt_benches::stats::{Times, percentiles};
use volt_benches::table::Table;
use volt_benches::{OrSay, Result, programs};
use volt_vmm::config::devices::{DiskConfig, Engine};
use volt_vmm::{Store, VmConfig};

use crate::guest::boot_with;
use crate::pause::cycles_a_second;

pub const ABOUT: &str = "The guest has written all of a layer of the given size and goes through it \
again and again, in requests of 1 MiB, 100 a second. Full snapshots of it are written to the file \
system of the temporary directory. A file system that shares blocks copies less before the pause, and \
as much in it.";

/// Guest memory.
const MIB: u64 = 64;
/// Requests of 1 MiB a second.
const RATE: u64 = 100;

/// Measures with each engine, with layers that hold so much.
///
/// # Errors
/// A snapshot fails.
pub fn measure(scratch: &Scratch, layers_mib: &[u64], runs: usize) -> Result<Table> {
    let columns = [
        "pause, ms",
        "runs",
        "min",
        "p50",
        "p90",
        "p99",
        "ms before it without requests, p50",
        "KiB of the layer in the pause, p50",
        "MiB of it held in memory, most",
        "s for a snapshot, p50",
        "MiB/s of new clusters",
    ];
    let mut table = Table::new(&columns);
    let kernel = scratch.program("small-guest", programs::SMALL_GUEST)?;
    let store = Store::open(&scratch.path("").display().to_string()).or_say("open a store")?;
    for &mib in layers_mib {
        for (name, engine) in [("sync", Engine::Sync), ("io_uring", Engine::IoUring)] {
            let (base, layer) = (scratch.path("base"), scratch.path("layer"));
            File::create(&base).and_then(|file| file.set_len(mib << 20)).or_say("make a base")?;
            let mut config = with_disk(&kernel, &base, &layer, engine);
            let cmdline = format!("disk-churn mib={mib} cycles={}", cycles_a_second() / RATE);
            config.boot.cmdline.clone_from(&cmdline);
            config.memory_mib = MIB;
            let start = Instant::now();
            let (vm, _) = boot_with(&kernel, &cmdline, MIB, |builder| builder.config(config))?;
            let filled = start.elapsed();
            let (mut times, mut whole, mut stopped) = (Times::default(), Times::default(), Times::default());
            let (mut pages, mut held) = (Vec::new(), 0);
            for _ in 0..runs.div_ceil(2) {
                let start = Instant::now();
                let course = vm.snapshot(&store, "disk").or_say("take a snapshot")?;
                whole.add(start.elapsed());
                std::fs::remove_dir_all(scratch.path("disk")).or_say("remove a snapshot")?;
                times.add(course.paused);
                stopped.add(course.disks_stopped);
                pages.push(course.disk_pages_in_pause);
                held = held.max(course.disk_pages_in_memory);
            }
            pages.sort_unstable();
            let mut cells = vec![format!("{name}, {mib} MiB in the layer"), times.len().to_string()];
            cells.extend(percentiles(&times));
            cells.push(format!("{:.3}", stopped.percentile(50).as_secs_f64() * 1e3));
            cells.push((pages[pages.len() / 2] * 4).to_string());
            cells.push((held >> 8).to_string());
            cells.push(format!("{:.2}", whole.percentile(50).as_secs_f64()));
            cells.push(format!("{:.0}", mib as f64 / filled.as_secs_f64()));
            table.row(cells);
            drop(vm);
            for file in [base, layer] {
                std::fs::remove_file(file).or_say("remove a disk")?;
            }
        }
    }
    Ok(table)
}

fn with_disk(kernel: &Path, base: &Path, layer: &Path, engine: Engine) -> VmConfig {
    let mut config = VmConfig::new(kernel);
    config.devices.disks.push(DiskConfig::new("disk", base).engine(engine).layer(layer));
    config
}
