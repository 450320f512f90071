//! Whole processes of both builds: from exec to the guest's first byte, and what they keep in memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use volt_benches::process::Running;
use volt_benches::scratch::Scratch;
use volt_benches::table::Table;
use volt_benches::wire::Tap;
use volt_benches::{OrSay, Result, programs, snapshots};

use crate::build::Build;
use crate::rows::Rows;

/// Guest memory in MiB.
const MIB: u64 = 128;
/// Bytes of the disk.
const DISK: usize = 64 << 20;
/// Copies of each program, which take turns. The same program is up to a sixth slower or faster from another
/// copy, by where the copy's pages lie in the page cache.
const COPIES: usize = 6;
/// Between two runs: what the kernel still does for the end of a VM is not the next one's to pay for.
const REST: Duration = Duration::from_millis(10);
/// When a process has settled.
const SETTLED: Duration = Duration::from_millis(200);

/// A command that either build runs.
struct Start {
    name: &'static str,
    words: [Vec<String>; 2],
}

/// Times boots and restores. Each build restores snapshots that it took itself.
///
/// # Errors
/// One fails.
pub fn measure(builds: &[Build; 2], runs: usize, rows: &mut Rows) -> Result<()> {
    let scratch = Scratch::new()?;
    let tap = Tap::new(format!("vb{}", std::process::id()))?;
    let starts = starts(builds, &scratch, tap.name())?;
    let programs = [copies(&builds[0], &scratch, "old")?, copies(&builds[1], &scratch, "new")?];
    for run in 0..COPIES + runs {
        for Start { name, words } in &starts {
            for turn in [run % 2, (run + 1) % 2] {
                let mut command = Command::new(&programs[turn][run % COPIES]);
                command.args(&words[turn]);
                let (running, took) = Running::timed(&mut command)?;
                drop(running);
                // A killed process leaves its socket behind.
                let _ = fs::remove_file(scratch.path("vsock"));
                thread::sleep(REST);
                // Every copy's first run fills the page cache.
                if run >= COPIES {
                    rows.add(name, turn, took);
                }
            }
        }
    }
    Ok(())
}

/// Copies a build's program.
fn copies(build: &Build, scratch: &Scratch, name: &str) -> Result<Vec<PathBuf>> {
    let copy = |number| {
        let to = scratch.path(&format!("{name}-{number}"));
        fs::copy(&build.volt_vmm, &to).or_say("copy a program")?;
        Ok(to)
    };
    (0..COPIES).map(copy).collect()
}

fn starts(builds: &[Build; 2], scratch: &Scratch, tap: &str) -> Result<Vec<Start>> {
    let kernel = scratch.program("chatter", programs::CHATTER)?.display().to_string();
    let base = scratch.path("base");
    let content: Vec<u8> = (0..DISK).map(|at| (at / 4096) as u8).collect();
    fs::write(&base, content).or_say("write a disk")?;
    let boot = ["run", "--kernel", &kernel, "--memory", &format!("{MIB}M")].map(str::to_owned).to_vec();
    let mut starts = vec![Start { name: "boot", words: [boot.clone(), boot] }];
    let devices: &[(&'static str, &[&str])] = &[
        ("restore", &[]),
        ("restore, lz4", &[]),
        ("restore, zstd", &[]),
        ("restore of a diff", &[]),
        ("restore, net", &["net"]),
        ("restore, disk, vsock, rng, balloon", &["disk", "vsock", "rng", "balloon"]),
    ];
    for (name, kinds) in devices {
        let mut words = [Vec::new(), Vec::new()];
        for (number, build) in builds.iter().enumerate() {
            let layer = scratch.path(&format!("layer-{number}"));
            let word = |kind: &&str| match *kind {
                "disk" => {
                    vec!["--disk".into(), format!("path={},layer={}", base.display(), layer.display())]
                }
                "vsock" => {
                    vec!["--vsock".into(), format!("cid=3,socket={}", scratch.path("vsock").display())]
                }
                "net" => vec!["--net".into(), format!("tap={tap}")],
                other => vec![format!("--{other}")],
            };
            let devices: Vec<String> = kinds.iter().flat_map(word).collect();
            let dir = format!("{number}-{}", starts.len());
            let taken = if *name == "restore of a diff" {
                snapshots::diff_by_volt_vmm(&build.volt_vmm, scratch, &dir, MIB)?
            } else {
                snapshots::by_volt_vmm(&build.volt_vmm, scratch, &dir, MIB, &devices)?
            };
            let _ = fs::remove_file(scratch.path("vsock"));
            let restored = match name.split_once(", ") {
                Some((_, codec @ ("lz4" | "zstd"))) => packed(&build.volt_vmm, &taken, codec)?,
                _ => taken.display().to_string(),
            };
            words[number] = vec!["--restore".to_owned(), restored];
        }
        starts.push(Start { name, words });
    }
    Ok(starts)
}

/// The same snapshot, its memory packed.
fn packed(volt_vmm: &Path, snapshot: &Path, codec: &str) -> Result<String> {
    let to = format!("{}-{codec}", snapshot.display());
    let mut convert = Command::new(volt_vmm);
    convert.args(["snapshot", "convert"]).arg(snapshot).arg(&to).args(["--compress", codec]);
    Running::start(&mut convert)?.wait()?;
    Ok(to)
}

/// The size of the program, and what a restored VM's process keeps in memory.
///
/// # Errors
/// One does not run.
pub fn sizes(builds: &[Build; 2]) -> Result<Table> {
    let scratch = Scratch::new()?;
    let mut table = Table::new(&["KiB", "old", "new", "new / old"]);
    let mut rows = [("program", Vec::new()), ("resident", Vec::new()), ("of it anonymous", Vec::new())];
    for (number, build) in builds.iter().enumerate() {
        let size = fs::metadata(&build.volt_vmm).or_say("look at a program")?.len();
        let dir = snapshots::by_volt_vmm(&build.volt_vmm, &scratch, &format!("{number}"), MIB, &[])?;
        let (running, _) = Running::timed(Command::new(&build.volt_vmm).arg("--restore").arg(dir))?;
        thread::sleep(SETTLED);
        let status = fs::read_to_string(format!("/proc/{}/smaps_rollup", running.id()));
        let status = status.or_say("look at a process")?;
        let field = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0_u64)
        };
        let found = [size >> 10, field("Rss:"), field("Anonymous:")];
        rows.iter_mut().zip(found).for_each(|((_, of_builds), kib)| of_builds.push(kib));
    }
    for (name, of_builds) in rows {
        let share = of_builds[1] as f64 / of_builds[0] as f64;
        let cells = of_builds.iter().map(u64::to_string).chain([format!("{share:.2}")]);
        table.row([name.to_owned()].into_iter().chain(cells));
    }
    Ok(table)
}
