//! A machine behind its lock. Its owner, its snapshots and its forks pause it, work on it and resume it.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::config::{Devices, VmConfig};
use crate::counters::exits::ExitCounters;
use crate::devices::platform::Platform;
use crate::devices::serial::Serial;
use crate::devices::virtio::block::Block;
use crate::devices::work::DeviceWork;
use crate::error::{Error, Result, report};
use crate::events::VmEvent;
use crate::machine::Machine;
use crate::memory::lazy::faults::{FaultDeadline, Faults};
use crate::memory::ram::GuestRam;
use crate::run_control::{Control, Ending, RunState};
use crate::sandbox;
use crate::sync::lock;

/// The time that the end of a VM leaves to vCPUs that are blocked on page faults.
const END_LIMIT: Duration = Duration::from_secs(2);
/// The highest count of an eventfd (eventfd(2)).
const MOST: u64 = u64::MAX - 1;

/// The counters of a machine, which need no lock of it.
#[derive(Debug)]
pub(crate) struct Work {
    /// Exits of the vCPUs, in their order.
    pub vcpus: Vec<Arc<ExitCounters>>,
    pub devices: DeviceWork,
    /// Guest memory, whose page tables tell how much there is.
    pub ram: GuestRam,
}

/// A machine behind its lock. Before it is dropped, its guest has ended and [`SharedMachine::wait_ending`]
/// was called.
#[derive(Debug)]
pub(crate) struct SharedMachine {
    /// Locked after all other locks.
    config: Mutex<VmConfig>,
    control: Arc<Control>,
    /// The page faults that fill the memory, if it is filled on touch.
    faults: Option<Arc<Faults>>,
    serial: Arc<Mutex<Serial>>,
    /// The counters of vCPUs and devices.
    work: Work,
    /// Locked during work on the whole machine, such as a pause. Locked before any device.
    machine: Mutex<Machine>,
    /// Whether [`SharedMachine::wait_ending`] writes data to the files of disks.
    is_settling: AtomicBool,
    /// An eventfd that becomes readable when the guest ends, once one was asked for.
    ended: Mutex<Option<Arc<OwnedFd>>>,
    /// Disks, for [`SharedMachine::is_settling`], which must not lock the machine: a pause holds that lock
    /// while a vCPU waits for a disk.
    disks: Vec<Arc<Mutex<Block>>>,
}

impl SharedMachine {
    /// Wraps a halted machine and its configuration.
    pub fn new(machine: Machine, config: VmConfig) -> Self {
        Self {
            config: Mutex::new(config),
            control: Arc::clone(&machine.shell().control),
            faults: machine.shell().ram.faults().cloned(),
            serial: Arc::clone(&machine.platform().serial),
            disks: machine.platform().disks().values().cloned().collect(),
            work: Work {
                vcpus: machine.shell().vcpus.iter().map(|vcpu| Arc::clone(&vcpu.exits)).collect(),
                devices: machine.platform().counters(),
                ram: machine.shell().ram.clone(),
            },
            machine: Mutex::new(machine),
            is_settling: AtomicBool::new(false),
            ended: Mutex::new(None),
        }
    }

    /// Returns the configuration, with the present rate limits.
    pub fn config(&self) -> VmConfig {
        lock(&self.config).clone()
    }

    /// Changes the configuration of devices.
    pub fn change_config(&self, change: impl FnOnce(&mut Devices)) {
        change(&mut lock(&self.config).devices);
    }

    /// Returns the run control of the vCPUs.
    pub fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Returns the counters of vCPUs and devices. A pause does not hold them up.
    pub fn work(&self) -> &Work {
        &self.work
    }

    /// Returns the state of the VM.
    pub fn state(&self) -> RunState {
        self.control.state()
    }

    /// Sends input to the guest's serial console.
    ///
    /// # Errors
    /// [`Error::NotNow`] if the guest has ended.
    pub fn type_in(&self, bytes: &[u8]) -> Result<()> {
        Serial::type_in(&self.serial, bytes)
    }

    /// Halts all vCPUs and devices.
    ///
    /// # Errors
    /// [`Error::NotNow`] if the guest has ended.
    pub fn pause(&self) -> Result<()> {
        let machine = lock(&self.machine);
        let before = self.state();
        self.pause_machine(&machine, "pause")?;
        self.tell_change(before);
        Ok(())
    }

    /// Resumes devices and vCPUs.
    ///
    /// # Errors
    /// [`Error::NotNow`] if the guest has ended.
    pub fn resume(&self) -> Result<()> {
        let mut machine = lock(&self.machine);
        let before = self.state();
        if before == RunState::Paused {
            machine.notify_paused()?;
        }
        self.resume_machine(&mut machine)?;
        self.tell_change(before);
        Ok(())
    }

    /// Tells those who follow the VM that its owner changed its state. The machine is locked, so they hear of
    /// changes in their order.
    fn tell_change(&self, before: RunState) {
        let now = self.state();
        if now != before && now != RunState::Ended {
            self.control.events().emit(|| VmEvent::State(now));
        }
    }

    /// Runs `act`, called `name`, while the vCPUs and devices are halted. Returns its result and the time
    /// that the vCPUs were halted for it.
    pub fn paused_for<T>(
        &self,
        name: &'static str,
        act: impl FnOnce(&mut Machine) -> Result<T>,
    ) -> Result<(T, Duration)> {
        let (done, times) = self.paused_within(name, None, |machine, _| act(machine))?;
        Ok((done.expect("an act without a limit runs"), times.vcpus))
    }

    /// Runs `act`, called `name`, while the vCPUs and devices are halted. Returns its result and the pause
    /// times. `act` receives the beginning of the pause. Disks become idle before the vCPUs halt, so that no
    /// vCPU stays halted for a flush. If the disks are not idle within `for_disks`, `act` does not run and
    /// the guest resumes.
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
            // A guest whose watchdogs are not told may log a lockup. It must not stay paused.
            if let Err(error) = machine.notify_paused() {
                log::warn!("cannot tell the guest of its pause: {}", report(&error));
            }
            self.resume_machine(&mut machine)?;
        }
        let times = match before {
            RunState::Running => PauseTimes { disks: start - began, vcpus: start.elapsed() },
            RunState::Paused | RunState::Ended => PauseTimes::default(),
        };
        Ok((Some(done?), times))
    }

    /// Runs `act` on the locked machine.
    pub fn on_machine<T>(&self, act: impl FnOnce(&Machine) -> T) -> T {
        act(&lock(&self.machine))
    }

    /// Waits until the guest has ended and its data is in the files of its disks. Returns how it ended.
    /// Failures of disks are logged.
    ///
    /// # Errors
    /// [`Error::Crashed`] if the guest crashed.
    pub fn wait_ending(&self) -> Result<Ending> {
        self.wait_parked();
        let ending = self.control.wait_end();
        self.is_settling.store(true, Ordering::SeqCst);
        // A device may wait for a page of memory, and a pause that waits for it holds the machine's lock.
        let _let_go = self.release_blocked(END_LIMIT);
        lock(&self.machine).settle();
        self.is_settling.store(false, Ordering::SeqCst);
        self.control.events().end(&ending);
        ending
    }

    /// Waits at most `timeout` for the guest's end, otherwise like [`SharedMachine::wait_ending`]. Returns
    /// none if the guest has not ended.
    ///
    /// # Errors
    /// As [`SharedMachine::wait_ending`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<Ending>> {
        let has_ended = self.control.wait_end_for(timeout) || self.state() == RunState::Ended;
        has_ended.then(|| self.wait_ending()).transpose()
    }

    /// Waits for the guest's end. Releases vCPUs that stay blocked on page faults for [`END_LIMIT`] after it.
    fn wait_parked(&self) {
        if self.faults.is_none() {
            return;
        }
        self.control.wait_ended();
        if !self.control.wait_parked(END_LIMIT) {
            let _let_go = self.release_blocked(Duration::ZERO);
            while !self.control.wait_parked(END_LIMIT) {}
        }
    }

    /// Releases threads that are blocked on page faults after this time, until the result is dropped.
    fn release_blocked(&self, after: Duration) -> Option<FaultDeadline> {
        let why = "the VM ended while a thread waited for guest memory";
        let let_go = self.faults.as_ref()?.let_go_after(after, why);
        let warn = |error: &Error| {
            log::warn!("threads blocked on page faults may delay the end of the VM: {}", report(error));
        };
        let_go.inspect_err(warn).ok()
    }

    /// Returns a descriptor that becomes readable when the guest ends. It stays readable, although another
    /// owner reads from it: a semaphore's count falls by one with each read.
    ///
    /// # Errors
    /// Returns an error if the host has no descriptor left.
    pub fn ended_fd(&self) -> Result<OwnedFd> {
        let failed = |source| Error::host("make an eventfd", source);
        let mut own = lock(&self.ended);
        if let Some(ended) = &*own {
            return ended.try_clone().map_err(failed);
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let ended = Arc::new(eventfd(0, flags).map_err(|errno| failed(errno.into()))?);
        // The thread of a vCPU, which ends the guest, may not close the last one.
        let written = Arc::clone(&ended);
        self.control.at_end(move || {
            // The first write to an eventfd does not fail.
            let _ = rustix::io::write(&*written, &MOST.to_ne_bytes());
        });
        let ended = own.insert(ended);
        ended.try_clone().map_err(failed)
    }

    /// Whether the guest has ended and its data is still on the way to the files of its disks. Then
    /// [`SharedMachine::wait_ending`] writes it, or a disk handles a request. The data survives the end of
    /// this process, but unflushed data may not survive a crash of the host.
    pub fn is_settling(&self) -> bool {
        // A disk that handles a request on the vCPU's thread is locked meanwhile.
        let is_busy = |disk: &Arc<Mutex<Block>>| match disk.try_lock() {
            Ok(disk) => !disk.is_idle(),
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Poisoned(_)) => false,
        };
        self.is_settling.load(Ordering::SeqCst)
            || self.state() == RunState::Ended && self.disks.iter().any(is_busy)
    }

    /// Runs `act` on the devices of the locked machine.
    pub fn on_platform<T>(&self, act: impl FnOnce(&Platform) -> T) -> T {
        self.on_machine(|machine| act(machine.platform()))
    }

    /// Halts the vCPUs before the devices, because a vCPU in its last exit may start a device.
    fn pause_machine(&self, machine: &Machine, act: &'static str) -> Result<()> {
        let _in_time = machine.halt_in_time(Duration::ZERO)?;
        self.control.park();
        machine.platform().halt();
        // The guest may have ended in its last exit.
        match self.state() {
            RunState::Ended => Err(Error::NotNow { act, state: "has ended" }),
            _ => Ok(()),
        }
    }

    fn resume_machine(&self, machine: &mut Machine) -> Result<()> {
        match self.state() {
            // Devices of an ended guest must not resume.
            RunState::Ended => return Err(Error::NotNow { act: "run the guest", state: "has ended" }),
            RunState::Paused => {
                lock(&self.serial).flush();
            }
            RunState::Running => {}
        }
        sandbox::vm_starts();
        // A resumed device may touch unavailable memory and end the guest before a vCPU runs. The ending
        // tells the cause, because the act during the pause has not failed.
        machine.platform().resume(&self.control)?;
        self.control.start();
        machine.follow_jump();
        Ok(())
    }
}

/// Durations of the parts of a pause.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PauseTimes {
    /// The disks took no requests while the vCPUs still ran.
    pub disks: Duration,
    /// The vCPUs were halted.
    pub vcpus: Duration,
}

impl PauseTimes {
    /// Returns the duration of the whole pause.
    pub fn whole(self) -> Duration {
        self.disks + self.vcpus
    }
}
