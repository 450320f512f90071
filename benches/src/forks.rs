//! Forks of one VM in processes of their own, as `volt-vmm fork` makes them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use volt_vmm::IrqchipKind;

use crate::process::Running;
use crate::scratch::Scratch;
use crate::{OrSay, Result, built, programs};

/// A VM in a process, and the program to fork it with.
#[derive(Debug)]
pub struct Parent {
    volt_vmm: PathBuf,
    socket: PathBuf,
    /// The process.
    pub running: Running,
}

/// The children that there are. Dropped, they are killed.
#[derive(Debug, Default)]
pub struct Children(Vec<(u32, PathBuf)>);

impl Parent {
    /// Boots a small guest that behaves like `cmdline`, with this memory and these interrupt controllers, and
    /// waits until it is ready.
    ///
    /// # Errors
    /// It does not run.
    pub fn boot(scratch: &Scratch, cmdline: &str, shape: (u64, IrqchipKind)) -> Result<Self> {
        Self::boot_under(built::volt_vmm()?, scratch, cmdline, shape)
    }

    /// As [`Parent::boot`], under this program.
    ///
    /// # Errors
    /// As [`Parent::boot`].
    pub fn boot_under(
        volt_vmm: PathBuf,
        scratch: &Scratch,
        cmdline: &str,
        (memory_mib, irqchip): (u64, IrqchipKind),
    ) -> Result<Self> {
        let kernel = scratch.program("small-guest", programs::SMALL_GUEST)?;
        let socket = scratch.path("parent.sock");
        let mut run = Command::new(&volt_vmm);
        run.arg("run").arg("--kernel").arg(kernel).args(["--cmdline", cmdline]);
        run.args(["--memory", &format!("{memory_mib}M"), "--irqchip", &irqchip.to_string()]);
        let mut running = Running::start(run.arg("--api-socket").arg(&socket))?;
        running.wait_for("ready")?;
        Ok(Self { volt_vmm, socket, running })
    }

    /// Forks it into children with sockets in `directory`.
    ///
    /// # Errors
    /// It cannot be.
    pub fn fork(&self, count: usize, directory: &Path, children: &mut Children) -> Result<()> {
        let mut fork = Command::new(&self.volt_vmm);
        fork.arg("fork").arg("--api-socket").arg(&self.socket).arg("--child-dir").arg(directory);
        let done = fork.args(["--count", &count.to_string()]).output().or_say("run volt-vmm fork")?;
        if !done.status.success() {
            return Err(String::from_utf8_lossy(&done.stderr).trim().to_owned());
        }
        for line in String::from_utf8_lossy(&done.stdout).lines() {
            let mut words = line.split(' ');
            let pid = words.next().and_then(|pid| pid.parse().ok()).ok_or("no process id")?;
            children.0.push((pid, words.next().ok_or("no socket")?.into()));
        }
        Ok(())
    }
}

impl Children {
    /// Process and API socket of each.
    pub fn all(&self) -> impl Iterator<Item = (u32, &Path)> {
        self.0.iter().map(|(pid, socket)| (*pid, socket.as_path()))
    }

    /// Whether all of them are there. A dead one's number may be another's soon; nothing here waits that
    /// long.
    ///
    /// # Errors
    /// One has ended.
    pub fn check(&self) -> Result<()> {
        let gone = self.0.iter().find(|(pid, _)| !Path::new(&format!("/proc/{pid}/smaps_rollup")).exists());
        gone.map_or(Ok(()), |(pid, socket)| Err(format!("child {pid} at {} has ended", socket.display())))
    }

    /// Kills them.
    pub fn end(&mut self) {
        for (pid, _) in self.0.drain(..) {
            kill(pid);
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.end();
    }
}

#[allow(unsafe_code)]
fn kill(pid: u32) {
    // SAFETY: sends a signal to a process that was started for this benchmark.
    unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
    while Path::new(&format!("/proc/{pid}")).exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
}
