//! How long a restored VM takes to answer, by what its memory is in, and whether what it touches is read
//! ahead.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use volt_benches::guest_memory::{Memory, codecs};
use volt_benches::scratch::Scratch;
use volt_benches::stats::{Times, percentiles, ratio};
use volt_benches::table::Table;
use volt_benches::{OrSay, Result, built, programs};
use volt_vmm::{RecordUntil, RestoreOptions, Snapshot, SnapshotOptions, Store, Vm};

use crate::guest::{Said, boot_with};

pub const ABOUT: &str = "Times from the call that restores a VM of an opened snapshot to the end of its \
answer. Guest memory is 256 MiB, of which 128 are memory of a Linux that ran Python and a build. To \
answer, the guest goes through 16 MiB of it, in 64 places, and writes to every fourth page. Raw memory \
is in the page cache. *First* is the first VM of a packed snapshot on the host: nothing is unpacked \
yet. *Later* is a VM for which another one has touched the same memory. *Ahead* uses a working set that \
one restore recorded. All kinds take turns, and all answers are the same.";

const MIB: u64 = 256;
const PAGE: usize = 4096;
/// Pages of the guest's initrd.
const PAGES: usize = 128 << 20 >> 12;
/// Pause in which the kernel finishes the end of a VM, so that the next one does not pay for it.
const REST: Duration = Duration::from_millis(20);

/// A way to restore.
struct Way {
    name: String,
    /// Name of the snapshot.
    snapshot: &'static str,
    /// Whether another VM has answered before, over the same base.
    later: bool,
    ahead: bool,
}

/// Measures answers.
///
/// # Errors
/// A guest does not answer, or says something else than the others.
pub fn measure(scratch: &Scratch, runs: usize, memory: Option<&Path>, unpaused: bool) -> Result<Table> {
    let store = Store::open(&scratch.path("").display().to_string()).or_say("open a store")?;
    let snapshots = snapshots(scratch, &store, memory)?;
    let ways: Vec<_> = snapshots.into_iter().flat_map(ways).collect();
    let open = |way: &Way| Snapshot::open(&store, way.snapshot).or_say("open a snapshot");
    // Later VMs come after these, which stay: paused unless asked otherwise, because their guests ask for
    // input without a pause and would take the processors from what is measured.
    let mut warm = Vec::new();
    for way in &ways {
        let snapshot = open(way)?;
        let before = if way.later { Some(answer(&snapshot, way.ahead)?.1) } else { None };
        before.iter().filter(|_| !unpaused).try_for_each(|vm| vm.pause().or_say("pause"))?;
        warm.push((snapshot, before));
    }
    let (right, _) = answered(&warm[0].0, RestoreOptions::default())?;
    let mut times: Vec<_> = ways.iter().map(|_| Times::default()).collect();
    for _ in 0..runs {
        for ((way, (snapshot, _)), times) in ways.iter().zip(&warm).zip(&mut times) {
            // One that is opened anew has nothing unpacked.
            let anew = if way.later { None } else { Some(open(way)?) };
            thread::sleep(REST);
            let start = Instant::now();
            let (said, _vm) = answer(anew.as_ref().unwrap_or(snapshot), way.ahead)?;
            times.add(start.elapsed());
            if said != right {
                return Err(format!("{}: the guest says {said}, and not {right}", way.name));
            }
        }
    }
    let mut table =
        Table::new(&["call to answer, ms", "runs", "min", "p50", "p90", "p99", "p50 / raw", "min / raw"]);
    for (way, of_it) in ways.iter().zip(&times) {
        let mut cells = vec![way.name.clone(), of_it.len().to_string()];
        cells.extend(percentiles(of_it));
        cells.extend(
            [50, 0].map(|percent| {
                format!("{:.2}", ratio(of_it.percentile(percent), times[0].percentile(percent)))
            }),
        );
        table.row(cells);
    }
    Ok(table)
}

/// The ways for one snapshot: of raw memory, which is in the page cache, there is no first VM.
fn ways(snapshot: &'static str) -> Vec<Way> {
    let is_raw = snapshot == RAW;
    let all = [(false, false), (false, true), (true, false), (true, true)];
    let of_it = all.into_iter().filter(|(later, _)| !is_raw || *later);
    of_it
        .map(|(later, ahead)| {
            let which = match (is_raw, later) {
                (true, _) => "",
                (false, false) => ", first",
                (false, true) => ", later",
            };
            let ahead_too = if ahead { ", ahead" } else { "" };
            Way { name: format!("{snapshot}{which}{ahead_too}"), snapshot, later, ahead }
        })
        .collect()
}

const RAW: &str = "raw";

/// One of each kind, with a working set each.
fn snapshots(scratch: &Scratch, store: &Store, memory: Option<&Path>) -> Result<[&'static str; 3]> {
    let kernel = scratch.program("responder", programs::RESPONDER)?;
    let usual = || built::memory_image().map(|snapshot| snapshot.join("memory.snap"));
    let memory = Memory::read(memory.map(Path::to_path_buf).map_or_else(usual, Ok)?)?;
    let pages: Vec<u8> = memory.chunks(PAGE).take(PAGES).flat_map(|(_, page)| page).copied().collect();
    let initrd = scratch.path("initrd");
    std::fs::write(&initrd, pages).or_say("write what the guest is given")?;
    let (vm, _) = boot_with(&kernel, "", MIB, |builder| builder.initrd(initrd))?;
    let [_, lz4, zstd] = codecs();
    let kinds = [(RAW, None), (lz4.0, Some(lz4.1)), (zstd.0, Some(zstd.1))];
    for (name, packing) in kinds {
        let options = SnapshotOptions::default().packing(packing);
        vm.snapshot_with(store, name, &options).or_say("take a snapshot")?;
        let snapshot = Snapshot::open(store, name).or_say("open a snapshot")?;
        let options = RestoreOptions::default().record(RecordUntil::Api);
        let (_, recorded) = answered(&snapshot, options)?;
        recorded.end_recording().or_say("record what a guest touches")?;
    }
    Ok(kinds.map(|(name, _)| name))
}

fn answer(snapshot: &Snapshot, ahead: bool) -> Result<(u64, Vm)> {
    answered(snapshot, RestoreOptions::default().prefetch(ahead))
}

/// A VM that has answered, and what.
fn answered(snapshot: &Snapshot, options: RestoreOptions) -> Result<(u64, Vm)> {
    let said = Said::default();
    let options = options.console(said.console());
    let vm = snapshot.restore_with(options).or_say("restore")?;
    vm.type_in(b"?").or_say("ask the guest")?;
    let number = said.wait(|said, _| said.strip_prefix("answer ")?.strip_suffix('\n')?.parse().ok())?;
    Ok((number, vm))
}
