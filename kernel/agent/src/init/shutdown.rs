//! The end of the VM: no process and no write is left.

use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount_remount, unmount};
use rustix::system::RebootCommand;
use volt_job::Ended;

use super::root::Upper;
use super::{Machine, cgroup, console, report, signals, supervise, system};
use crate::quiet::file_systems;
use crate::volumes::mounted;

/// How long the agent may take to end, and then all killed processes.
const PATIENCE: Duration = Duration::from_secs(1);
/// File systems of the kernel, which no other is under. `/proc` serves until the end.
const OF_KERNEL: [&str; 7] = ["proc", "sysfs", "devtmpfs", "devpts", "mqueue", "cgroup2", "rootfs"];
/// File systems that keep nothing themselves. They may cover or use one that does.
const NOTHING_KEPT: [&str; 2] = ["tmpfs", "overlay"];

/// Ends all processes, reports, and powers off.
pub(super) fn end(machine: Machine, ended: &Ended) -> ! {
    // A process that waits for a frozen file system cannot be killed.
    let upper = machine.upper.as_ref().map(|Upper(upper)| upper.as_fd());
    if let Err(problem) = file_systems::thaw(upper) {
        console::say(&problem);
    }
    cgroup::kill_main();
    console::release();
    report::report(ended, machine.shares_console);
    end_processes(&machine);
    rustix::fs::sync();
    end_file_systems(machine.upper);
    console::drain();
    let refused = rustix::system::reboot(RebootCommand::PowerOff);
    console::say(&format!("cannot power off: {refused:?}"));
    // The end of process 1 is a panic of the kernel, which ends the VM too.
    std::process::exit(ended.status.into())
}

fn end_processes(machine: &Machine) {
    if let Some(agent) = machine.agent.running() {
        system::kill(agent, libc::SIGTERM);
        await_children(|ended| ended == agent);
    }
    system::kill_all();
    await_children(|_| false);
}

/// Waits until a child is the awaited one, until there are none, or for the time that children may take.
fn await_children(is_last: impl Fn(rustix::process::Pid) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        while let Some((child, _)) = supervise::next_ended() {
            if is_last(child) {
                return;
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || !system::has_children() {
            return;
        }
        signals::wait(Some(left));
    }
}

/// Unmounts file systems, the last first. Those in use become read-only, as the root and its upper do.
fn end_file_systems(upper: Option<Upper>) {
    for mount in mounted::all().into_iter().rev() {
        let (path, kind) = (mount.path, mount.kind.as_str());
        if OF_KERNEL.contains(&kind) || path == b"/" {
            continue;
        }
        if unmount(path.as_slice(), UnmountFlags::empty()).is_err() && !NOTHING_KEPT.contains(&kind) {
            let _ = read_only(&path);
        }
    }
    if let Some(Upper(upper)) = upper {
        let upper = format!("/proc/self/fd/{}", upper.as_raw_fd());
        let ended = read_only(b"/").and_then(|()| read_only(upper.as_bytes()));
        if let Err(error) = ended {
            console::say(&format!("changes stay in the journal of their disk: {error}"));
        }
    }
}

fn read_only(path: &[u8]) -> rustix::io::Result<()> {
    mount_remount(path, MountFlags::RDONLY, "")
}
