//! Snapshots of the bench guest, taken once and restored often.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::process::Running;
use crate::scratch::Scratch;
use crate::{OrSay, Result, programs};

/// How long anything here may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Boots the bench guest with `mib` of memory and these devices under `volt_vmm` and snapshots it as
/// `name`. Returns the snapshot's directory.
///
/// # Errors
/// volt-vmm fails.
pub fn by_volt_vmm(
    volt_vmm: &Path,
    scratch: &Scratch,
    name: &str,
    mib: u64,
    devices: &[String],
) -> Result<PathBuf> {
    let (vm, socket) = boot(volt_vmm, scratch, mib, devices)?;
    let dir = scratch.path(name);
    create(volt_vmm, &dir, &socket, &[])?;
    drop(vm);
    let _ = fs::remove_file(socket);
    Ok(dir)
}

/// The same without devices, and then a diff on that snapshot, whose directory is returned.
///
/// # Errors
/// volt-vmm fails.
pub fn diff_by_volt_vmm(volt_vmm: &Path, scratch: &Scratch, name: &str, mib: u64) -> Result<PathBuf> {
    let (vm, socket) = boot(volt_vmm, scratch, mib, &[])?;
    let dir = scratch.path(name);
    create(volt_vmm, &scratch.path(&format!("{name}-base")), &socket, &[])?;
    create(volt_vmm, &dir, &socket, &["--diff"])?;
    drop(vm);
    let _ = fs::remove_file(socket);
    Ok(dir)
}

/// One guest, as the command line and as Firecracker's clients snapshot it.
#[derive(Debug)]
pub struct BothForms {
    /// The directory.
    pub dir: PathBuf,
    /// The state file of the two files.
    pub state: PathBuf,
    /// The memory file of the two files.
    pub memory: PathBuf,
}

/// Boots the bench guest with `mib` of memory under `volt_vmm`, and snapshots it into a directory and into
/// two files.
///
/// # Errors
/// volt-vmm fails.
pub fn in_both_forms(volt_vmm: &Path, scratch: &Scratch, mib: u64) -> Result<BothForms> {
    let (vm, socket) = boot(volt_vmm, scratch, mib, &[])?;
    let [dir, state, memory] = ["directory", "state", "memory"].map(|name| scratch.path(name));
    create(volt_vmm, &dir, &socket, &[])?;
    let memory_file = memory.to_str().ok_or("the path of the memory file is no text")?;
    create(volt_vmm, &state, &socket, &["--memory-file", memory_file])?;
    drop(vm);
    let _ = fs::remove_file(socket);
    Ok(BothForms { dir, state, memory })
}

/// Boots the bench guest and waits for its API. Returns the API's socket too.
fn boot(volt_vmm: &Path, scratch: &Scratch, mib: u64, devices: &[String]) -> Result<(Running, PathBuf)> {
    let (kernel, socket) = (scratch.program("chatter", programs::CHATTER)?, scratch.path("volt.sock"));
    let mut run = Command::new(volt_vmm);
    run.arg("run").arg("--kernel").arg(kernel).args(["--memory", &format!("{mib}M")]).args(devices);
    let mut vm = Running::start(run.arg("--api-socket").arg(&socket))?;
    vm.wait_for("ready")?;
    wait_for_file(&socket)?;
    Ok((vm, socket))
}

fn create(volt_vmm: &Path, dir: &Path, socket: &Path, options: &[&str]) -> Result<()> {
    let mut snapshot = Command::new(volt_vmm);
    snapshot.args(["snapshot", "create"]).arg(dir).arg("--api-socket").arg(socket).args(options);
    Running::start(&mut snapshot)?.wait()
}

/// The peer: QEMU's smallest machine, with what volt-vmm's has (irqchip, PIT, one serial port).
#[must_use]
pub fn qemu(kernel: &Path, mib: u64) -> Command {
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-M", "microvm,pic=on,pit=on,rtc=off,isa-serial=on,auto-kernel-cmdline=off"])
        .args(["-accel", "kvm", "-cpu", "host,arch-capabilities=off", "-smp", "1", "-m", &mib.to_string()])
        .args(["-nodefaults", "-no-user-config", "-nographic", "-serial", "stdio", "-kernel"])
        .arg(kernel);
    qemu
}

/// The command that restores what [`by_qemu`] saved.
#[must_use]
pub fn qemu_incoming(kernel: &Path, mib: u64, saved: &Path) -> Command {
    let mut restore = qemu(kernel, mib);
    restore.args(["-incoming", &format!("exec:cat {}", saved.display())]);
    restore
}

/// Boots the bench guest with `mib` of memory under QEMU and saves it in a file. Returns the kernel and the
/// file.
///
/// # Errors
/// There is no QEMU, or it fails.
pub fn by_qemu(scratch: &Scratch, mib: u64) -> Result<(PathBuf, PathBuf)> {
    let (kernel, socket) = (scratch.program("chatter", programs::CHATTER)?, scratch.path("qemu.sock"));
    let saved = scratch.path(&format!("qemu-{mib}"));
    let mut run = qemu(&kernel, mib);
    run.args(["-monitor", &format!("unix:{},server=on,wait=off", socket.display())]);
    let mut vm = Running::start(&mut run)?;
    vm.wait_for("ready")?;
    let mut monitor = UnixStream::connect(&socket).or_say("reach QEMU's monitor")?;
    monitor.set_read_timeout(Some(LIMIT)).or_say("set a time limit")?;
    writeln!(monitor, "migrate \"exec:cat > {}\"", saved.display()).or_say("talk to QEMU")?;
    let start = Instant::now();
    let mut answers = String::new();
    while !answers.contains("completed") {
        if start.elapsed() > LIMIT || answers.contains("failed") {
            return Err(format!("QEMU did not save its guest: {answers}"));
        }
        std::thread::sleep(Duration::from_millis(100));
        writeln!(monitor, "info migrate").or_say("talk to QEMU")?;
        let mut buffer = [0; 4096];
        let read = monitor.read(&mut buffer).or_say("listen to QEMU")?;
        answers.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    Ok((kernel, saved))
}

fn wait_for_file(path: &Path) -> Result<()> {
    let start = Instant::now();
    while !path.exists() {
        if start.elapsed() > LIMIT {
            return Err(format!("{} does not appear", path.display()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
