//! A machine behind its lock: its owner, its snapshots and its forks pause it, work on it and let it go on.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::config::{Devices, VmConfig};
use crate::devices::platform::Platform;
use crate::devices::serial::Serial;
use crate::devices::virtio::block::Block;
use crate::error::{Error, Result};
use crate::machine::{LentVcpu, Machine};
use crate::run_control::{Control, Ending, RunState};
use crate::sync::lock;

/// See the module. Before it is dropped the guest has ended and [`Running::wait_ending`] was called.
#[derive(Debug)]
pub(crate) struct Running {
    /// Taken last.
    config: Mutex<VmConfig>,
    control: Arc<Control>,
    serial: Arc<Mutex<Serial>>,
    /// Held while the machine as a whole is worked on: pause, resume. Taken before any device's lock.
    machine: Mutex<Machine>,
    /// See [`Running::is_settling`].
    is_settling: AtomicBool,
    /// For that: whoever pauses the VM has the machine locked while a vCPU waits for a disk.
    disks: Vec<Arc<Mutex<Block>>>,
}

impl Running {
    /// Takes over a machine, halted, and the configuration that it was made from.
    pub fn new(machine: Machine, config: VmConfig) -> Self {
        Self {
            config: Mutex::new(config),
            control: Arc::clone(&machine.shell().control),
            serial: Arc::clone(&machine.platform().serial),
            disks: machine.platform().disks().values().cloned().collect(),
            machine: Mutex::new(machine),
            is_settling: AtomicBool::new(false),
        }
    }

    /// The configuration, with the rate limits as they are now.
    pub fn config(&self) -> VmConfig {
        lock(&self.config).clone()
    }

    /// Changes the configuration of devices that change while the VM runs.
    pub fn change_config(&self, change: impl FnOnce(&mut Devices)) {
        change(&mut lock(&self.config).devices);
    }

    /// How the vCPUs are started, halted and ended.
    pub fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// What the guest is doing.
    pub fn state(&self) -> RunState {
        self.control.state()
    }

    /// The first vCPU, if it waits for a lent thread.
    pub fn lent_vcpu(&self) -> Option<LentVcpu> {
        self.on_machine(Machine::lent_vcpu)
    }

    /// Types into the guest's serial console.
    ///
    /// # Errors
    /// [`Error::NotNow`] when the guest has ended.
    pub fn type_in(&self, bytes: &[u8]) -> Result<()> {
        Serial::type_in(&self.serial, bytes)
    }

    /// Halts all vCPUs and devices.
    ///
    /// # Errors
    /// [`Error::NotNow`] when the guest has ended.
    pub fn pause(&self) -> Result<()> {
        self.pause_machine(&lock(&self.machine), "pause")
    }

    /// Lets devices and vCPUs go on.
    ///
    /// # Errors
    /// [`Error::NotNow`] when the guest has ended.
    pub fn resume(&self) -> Result<()> {
        self.resume_machine(&lock(&self.machine))
    }

    /// Does `act`, called `name`, while the vCPUs and devices stand still, and says how long the vCPUs did so
    /// for it.
    pub fn paused_for<T>(
        &self,
        name: &'static str,
        act: impl FnOnce(&mut Machine) -> Result<T>,
    ) -> Result<(T, Duration)> {
        let (done, stood) = self.paused_within(name, None, |machine, _| act(machine))?;
        Ok((done.expect("without a limit it is done"), stood.vcpus))
    }

    /// Does `act`, called `name`, while the vCPUs and devices stand still, and says how long they did so for
    /// it. `act` is told since when. Disks are brought to rest before: a flush that is under way is not
    /// waited for while the vCPUs stand still. Disks that do not come to rest within `for_disks` keep `act`
    /// from being done, and the guest goes on.
    pub fn paused_within<T>(
        &self,
        name: &'static str,
        for_disks: Option<Duration>,
        act: impl FnOnce(&mut Machine, Instant) -> Result<T>,
    ) -> Result<(Option<T>, PauseTimes)> {
        let mut machine = lock(&self.machine);
        let before = self.state();
        let began = Instant::now();
        let closed = match before {
            RunState::Running => {
                let _in_time = machine.halt_in_time(for_disks.unwrap_or_default())?;
                match machine.platform().close_gates(for_disks) {
                    None => return Ok((None, PauseTimes { disks: began.elapsed(), vcpus: Duration::ZERO })),
                    closed => closed,
                }
            }
            RunState::Paused | RunState::Ended => None,
        };
        let start = Instant::now();
        if let Err(error) = self.pause_machine(&machine, name) {
            closed.into_iter().for_each(|closed| machine.platform().open_gates(closed));
            return Err(error);
        }
        drop(closed);
        let done = act(&mut machine, began);
        if before == RunState::Running && self.state() != RunState::Ended {
            self.resume_machine(&machine)?;
        }
        let stood = match before {
            RunState::Running => PauseTimes { disks: start - began, vcpus: start.elapsed() },
            RunState::Paused | RunState::Ended => PauseTimes::default(),
        };
        Ok((Some(done?), stood))
    }

    /// Works on the machine while nobody else does.
    pub fn on_machine<T>(&self, act: impl FnOnce(&Machine) -> T) -> T {
        act(&lock(&self.machine))
    }

    /// Waits until the guest has ended and its disks have all that it wrote, and says how it ended. A disk that the host does not
    /// let have it is told in the log.
    ///
    /// # Errors
    /// [`Error::Crashed`] when KVM could not go on with it.
    pub fn wait_ending(&self) -> Result<Ending> {
        let ending = self.control.wait_end();
        self.is_settling.store(true, Ordering::SeqCst);
        lock(&self.machine).settle();
        self.is_settling.store(false, Ordering::SeqCst);
        ending
    }

    /// As [`Running::wait_ending`], if the guest ends within `timeout`; none if it does not.
    ///
    /// # Errors
    /// As [`Running::wait_ending`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<Ending>> {
        self.control.wait_end_for(timeout).then(|| self.wait_ending()).transpose()
    }

    /// A descriptor that becomes readable when the guest ends, and stays so.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub fn ended_fd(&self) -> Result<OwnedFd> {
        let failed = |source| Error::host("make an eventfd", source);
        let ended = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| failed(errno.into()))?;
        let theirs = ended.try_clone().map_err(failed)?;
        self.control.at_end(move || {
            // The first write to an eventfd has room.
            let _ = rustix::io::write(&ended, &1_u64.to_ne_bytes());
        });
        Ok(theirs)
    }

    /// Whether the guest has ended and [`Running::wait_ending`] is bringing what it wrote into the files of its disks, or a
    /// disk has a request under way, which a vCPU may wait for in its last exit. A process that exits meanwhile keeps what
    /// the guest wrote for as long as the host runs; a crash of the host may then take what was not flushed.
    pub fn is_settling(&self) -> bool {
        // One that does a request at once holds its lock meanwhile.
        let is_busy = |disk: &Arc<Mutex<Block>>| match disk.try_lock() {
            Ok(disk) => !disk.is_idle(),
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Poisoned(_)) => false,
        };
        self.is_settling.load(Ordering::SeqCst)
            || self.state() == RunState::Ended && self.disks.iter().any(is_busy)
    }

    /// Works on the devices while nobody works on the machine as a whole.
    pub fn on_platform<T>(&self, act: impl FnOnce(&Platform) -> T) -> T {
        self.on_machine(|machine| act(machine.platform()))
    }

    /// vCPUs first: a device that they touch may have to begin or end its work.
    fn pause_machine(&self, machine: &Machine, act: &'static str) -> Result<()> {
        let _in_time = machine.halt_in_time(Duration::ZERO)?;
        self.control.park();
        machine.platform().halt();
        // The guest may have ended in the very exit it was finishing.
        match self.state() {
            RunState::Ended => Err(Error::NotNow { act, state: "has ended" }),
            _ => Ok(()),
        }
    }

    fn resume_machine(&self, machine: &Machine) -> Result<()> {
        match self.state() {
            // Its devices are not to work again.
            RunState::Ended => return Err(Error::NotNow { act: "run the guest", state: "has ended" }),
            RunState::Paused => {
                machine.notify_paused()?;
                lock(&self.serial).flush();
            }
            RunState::Running => {}
        }
        // A device that goes on may touch memory that cannot be had, and end the guest before a vCPU runs.
        // Its end says why: the act that the guest was paused for has not failed.
        machine.platform().go_on(&self.control)?;
        self.control.start();
        Ok(())
    }
}

/// How long a guest stood still.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PauseTimes {
    /// Its disks took no requests, before the vCPUs stood still.
    pub disks: Duration,
    /// The vCPUs stood still.
    pub vcpus: Duration,
}

impl PauseTimes {
    /// Both.
    pub fn whole(self) -> Duration {
        self.disks + self.vcpus
    }
}
