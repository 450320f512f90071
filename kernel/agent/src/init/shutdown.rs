//! The end of the VM: no process and no write is left.

use std::fs;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount_remount, unmount};
use rustix::system::RebootCommand;
use volt_job::Ended;

use super::root::Upper;
use super::{Machine, cgroup, console, report, signals, supervise, system};

/// How long the agent may take to end, and then all killed processes.
const PATIENCE: Duration = Duration::from_secs(1);
/// File systems of the kernel, which no other is under. `/proc` serves until the end.
const OF_KERNEL: [&str; 7] = ["proc", "sysfs", "devtmpfs", "devpts", "mqueue", "cgroup2", "rootfs"];
/// File systems that keep nothing themselves. They may cover or use one that does.
const NOTHING_KEPT: [&str; 2] = ["tmpfs", "overlay"];

/// Ends all processes, reports, and powers off.
pub(super) fn end(machine: Machine, ended: &Ended) -> ! {
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
    let mounts = fs::read("/proc/self/mounts").unwrap_or_default();
    for line in String::from_utf8_lossy(&mounts).lines().rev() {
        let mut fields = line.split(' ').skip(1);
        let (Some(path), Some(kind)) = (fields.next(), fields.next()) else { continue };
        let path = unescaped(path);
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

/// Undoes the kernel's escapes of spaces, tabs, line ends and backslashes: three octal digits.
fn unescaped(path: &str) -> Vec<u8> {
    let mut parts = path.split('\\');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match digits {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend_from_slice(&part.as_bytes()[3..]);
            }
            None => {
                bytes.push(b'\\');
                bytes.extend_from_slice(part.as_bytes());
            }
        }
    }
    bytes
}

fn read_only(path: &[u8]) -> rustix::io::Result<()> {
    mount_remount(path, MountFlags::RDONLY, "")
}

#[cfg(test)]
mod tests {
    use super::unescaped;

    #[test]
    fn escapes_of_mount_points_are_undone() {
        for (text, path) in [
            ("/plain", "/plain"),
            (r"/a\040b\011c", "/a b\tc"),
            (r"/\134040", r"/\040"),
            (r"/end\04", r"/end\04"),
        ] {
            assert_eq!(unescaped(text), path.as_bytes(), "{text}");
        }
    }
}
