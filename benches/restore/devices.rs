//! Cost of devices for a restore: the same guest without any, and with one of each kind at work.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use volt_benches::scratch::Scratch;
use volt_benches::stats::{Times, more, percentiles};
use volt_benches::table::Table;
use volt_benches::{OrSay, Result, snapshots};

use crate::contender::{self, Contender};
use crate::library;

/// Guest memory in MiB.
const MIB: u64 = 128;
/// Bytes of the disk's base.
const DISK: usize = 64 << 20;

/// Measures the whole process, and the steps of the library, a run of each in turn. Where the host does not
/// let us have a tap, there is none, and that is said.
///
/// # Errors
/// volt-vmm fails.
pub fn measure(volt_vmm: &Path, scratch: &Scratch, runs: usize, pause: Duration) -> Result<(Table, Table)> {
    let tap = Tap::new().inspect_err(|error| eprintln!("restore: no network interface: {error}")).ok();
    let base = scratch.path("base");
    let content: Vec<u8> = (0..DISK).map(|at| (at / 4096) as u8).collect();
    fs::write(&base, content).or_say("write a disk")?;
    File::open(&base).and_then(|file| file.sync_all()).or_say("sync a disk")?;
    let disk = format!("path={},layer={}", base.display(), scratch.path("layer").display());
    let socket = scratch.path("vsock");
    let vsock = format!("cid=3,socket={}", socket.display());
    let kinds: [(&str, Vec<String>); 5] = [
        ("block", vec!["--disk".into(), disk]),
        ("net", tap.iter().flat_map(|tap| ["--net".into(), format!("tap={}", tap.0)]).collect()),
        ("vsock", vec!["--vsock".into(), vsock]),
        ("rng", vec!["--rng".into()]),
        ("balloon", vec!["--balloon".into()]),
    ];
    let all: Vec<_> = kinds.iter().flat_map(|(_, words)| words.clone()).collect();
    let names: Vec<_> = kinds.iter().filter(|(_, words)| !words.is_empty()).map(|(name, _)| *name).collect();
    let (mut contenders, mut dirs) = (Vec::new(), Vec::new());
    for (name, devices) in [("none".to_owned(), Vec::new()), (names.join(", "), all)] {
        let dir = format!("devices-{}", devices.len());
        let dir = snapshots::by_volt_vmm(volt_vmm, scratch, &dir, MIB, &devices)?;
        let mut command = Command::new(volt_vmm);
        command.arg("--restore").arg(&dir);
        dirs.push(dir);
        contenders.push(Contender::new(&name, command, runs).leaving(socket.clone()));
    }
    contender::run_in_turn(&mut contenders, pause)?;
    let steps = library::compare(&dirs[1], (&dirs[0], "none"), runs, pause)?;
    Ok((table(&contenders), steps))
}

fn table(contenders: &[Contender]) -> Table {
    let columns =
        ["exec to first guest byte with, ms", "runs", "min", "p50", "p90", "p99", "min more", "p50 more"];
    let mut table = Table::new(&columns);
    let mut without: Option<&Times> = None;
    for Contender { name, times, .. } in contenders {
        let mut cells = vec![name.clone(), times.len().to_string()];
        cells.extend(percentiles(times));
        if let Some(without) = without {
            cells.extend([0, 50].map(|percent| format!("{:.3}", more(times, without, percent))));
        }
        without = without.or(Some(times));
        table.row(cells);
    }
    table
}

/// A tap device that is there before any VM, and goes with its owner.
struct Tap(String);

impl Tap {
    fn new() -> Result<Self> {
        let name = format!("voltb{}", std::process::id());
        ip(&["tuntap", "add", &name, "mode", "tap"])?;
        let tap = Self(name);
        ip(&["link", "set", &tap.0, "up"])?;
        Ok(tap)
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let _ = ip(&["tuntap", "del", &self.0, "mode", "tap"]);
    }
}

fn ip(words: &[&str]) -> Result<()> {
    let done = Command::new("ip").args(words).output().or_say("run ip")?;
    let problem = || format!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&done.stderr).trim());
    if done.status.success() { Ok(()) } else { Err(problem()) }
}
