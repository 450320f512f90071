//! vCPU threads, and the loop that handles exits.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::counters::exits::{ExitCounters, ExitReason};
use crate::error;
use crate::kvm::exit::VmExit;
use crate::kvm::vcpu::Vcpu;
use crate::machine::board::{Board, BoardSlot};
use crate::machine::vcpu_stop::Stop;
use crate::memory::ram::GuestRam;
use crate::run_control::{Control, Ending, Kick, Until};
use crate::sandbox;
use crate::sandbox::ThreadKind;
use crate::sandbox::this_thread::ThisThread;
use crate::sync::lock;
use crate::threads;

/// A vCPU and the thread that runs it.
#[derive(Debug)]
pub struct VcpuThread {
    /// Locked by the thread while the vCPU runs.
    pub vcpu: Arc<Mutex<Vcpu>>,
    /// Counted by the thread while the vCPU runs.
    pub exits: Arc<ExitCounters>,
    /// The thread; absent before it is spawned, and for a vCPU that runs on a lent thread.
    thread: Option<JoinHandle<()>>,
}

/// Returns the signal that interrupts `KVM_RUN`. It is blocked everywhere else, so it needs no handler.
fn kick_signal() -> libc::c_int {
    libc::SIGRTMIN()
}

/// Interrupts `KVM_RUN` of one vCPU by a signal to its thread.
#[derive(Debug)]
struct SignalKick {
    /// The vCPU's `kvm_run.immediate_exit`.
    immediate_exit: AtomicPtr<AtomicU8>,
    thread: ThisThread,
    /// Keeps `immediate_exit` mapped.
    _vcpu: Arc<Mutex<Vcpu>>,
}

#[allow(unsafe_code)]
impl SignalKick {
    fn of_this_thread(vcpu: &Arc<Mutex<Vcpu>>) -> Arc<Self> {
        let immediate_exit = AtomicPtr::new(std::ptr::from_ref(lock(vcpu).immediate_exit()).cast_mut());
        Arc::new(Self { immediate_exit, thread: ThisThread::get(), _vcpu: Arc::clone(vcpu) })
    }

    fn immediate_exit(&self) -> &AtomicU8 {
        // SAFETY: the pointer leads into the vCPU's mapping, which `_vcpu` keeps.
        unsafe { &*self.immediate_exit.load(Ordering::Relaxed) }
    }
}

#[allow(unsafe_code)]
impl Kick for SignalKick {
    fn send(&self) {
        self.immediate_exit().store(1, Ordering::Relaxed);
        // The thread blocks the signal, or is gone.
        self.thread.signal(kick_signal());
    }

    fn forget(&self) {
        self.immediate_exit().store(0, Ordering::Relaxed);
        take_pending_kick();
    }
}

/// Takes this thread's kick signal, which it blocks, if the signal is pending.
#[allow(unsafe_code)]
fn take_pending_kick() {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: sigemptyset initialises the set, and siginfo may be null.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, kick_signal());
        libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const now);
    }
}

impl VcpuThread {
    /// Wraps a vCPU that has no thread yet.
    ///
    /// # Errors
    /// Returns an error if KVM refuses the signal mask.
    pub fn parked(vcpu: Vcpu) -> error::Result<Self> {
        vcpu.block_signals_in_guest(&signals_blocked(false))?;
        Ok(Self { vcpu: Arc::new(Mutex::new(vcpu)), exits: Arc::default(), thread: None })
    }

    /// Returns the vCPU to run on a lent thread, if it has no thread of its own.
    pub fn without_thread(&self, control: &Arc<Control>, board: &Arc<BoardSlot>) -> Option<LentVcpu> {
        let (control, board) = (Arc::clone(control), Arc::clone(board));
        let (vcpu, exits) = (Arc::clone(&self.vcpu), Arc::clone(&self.exits));
        let lent = || LentVcpu { vcpu, exits, control, board };
        self.thread.is_none().then(lent)
    }

    /// Spawns the vCPU's thread, which waits until the VM starts.
    ///
    /// # Errors
    /// Returns an error if the host refuses a thread.
    pub fn spawn(&mut self, id: u8, control: &Arc<Control>, board: &Arc<BoardSlot>) -> error::Result<()> {
        let (vcpu, exits) = (Arc::clone(&self.vcpu), Arc::clone(&self.exits));
        let (control, board) = (Arc::clone(control), Arc::clone(board));
        let body = move || {
            block_signals();
            take_turns(id, (&vcpu, &exits), (&control, &board), Until::Quit);
        };
        self.thread = Some(threads::spawn(ThreadKind::Vcpu, format_args!("vcpu{id}"), body)?);
        Ok(())
    }
}

/// The first vCPU of a VM, which waits for a lent thread. Cloning shares it.
#[derive(Clone, Debug)]
pub struct LentVcpu {
    vcpu: Arc<Mutex<Vcpu>>,
    exits: Arc<ExitCounters>,
    control: Arc<Control>,
    board: Arc<BoardSlot>,
}

impl LentVcpu {
    /// Maps guest physical addresses, in whole pages, before the guest runs.
    ///
    /// # Errors
    /// The host's KVM cannot do that, or a page cannot be read.
    pub fn pre_fault(&self, of: Range<u64>) -> io::Result<()> {
        lock(&self.vcpu).pre_fault(of)
    }

    /// Runs the vCPU on the calling thread until the guest has ended. Restores the thread's signal mask, even
    /// if a turn panics. The thread's confinement stays.
    pub fn run(self) {
        sandbox::confine_this_thread(ThreadKind::Vcpu);
        let _blocked = BlockedSignals::new();
        take_turns(0, (&self.vcpu, &self.exits), (&self.control, &self.board), Until::GuestEnds);
    }
}

/// The signals of a lent thread, blocked until this is dropped.
struct BlockedSignals {
    /// The thread's mask before.
    before: libc::sigset_t,
}

impl BlockedSignals {
    fn new() -> Self {
        Self { before: block_signals() }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // The last kick may still be pending: a panic ends the guest, which kicks the panicking thread too.
        // The kick has no handler, so it would end the process.
        take_pending_kick();
        set_signals(&self.before);
    }
}

impl Drop for VcpuThread {
    /// Joins the thread, which has the command to quit.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic was reported as the guest's ending.
            let _ = thread.join();
        }
    }
}

/// Returns the signals that a vCPU thread blocks: all but the thread's own faults, which would kill the
/// process without a message if they were blocked. The guest's mask leaves out the kick.
#[allow(unsafe_code)]
fn signals_blocked(kick_too: bool) -> libc::sigset_t {
    let faults =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT, libc::SIGSYS];
    // SAFETY: sigfillset initialises the set before it is changed.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        faults.iter().for_each(|&signal| {
            libc::sigdelset(&raw mut set, signal);
        });
        if !kick_too {
            libc::sigdelset(&raw mut set, kick_signal());
        }
        set
    }
}

/// Blocks [`signals_blocked`] on this thread. Returns the previous mask.
fn block_signals() -> libc::sigset_t {
    set_signals(&signals_blocked(true))
}

#[allow(unsafe_code)]
fn set_signals(blocked: &libc::sigset_t) -> libc::sigset_t {
    // SAFETY: both sets are initialised, and only this thread's mask changes.
    unsafe {
        let mut before = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, blocked, &raw mut before);
        before
    }
}

fn take_turns(
    id: u8,
    (vcpu, exits): (&Arc<Mutex<Vcpu>>, &ExitCounters),
    (control, board): (&Control, &BoardSlot),
    until: Until,
) {
    let kick: Arc<dyn Kick> = SignalKick::of_this_thread(vcpu);
    while control.wait_for_turn(&kick, until) {
        // Counts the vCPU as parked after the turn, even if the turn panics.
        let turn = Turn { control, kick: &kick };
        // The slot is empty only while the shell is dropped. No further turn comes then.
        if let Some(board) = board.get() {
            let stop = run_until_parked(&mut lock(vcpu), exits, &board).err();
            stop.into_iter().for_each(|stop| stop.end_guest(id, vcpu, &board));
        }
        drop(turn);
    }
}

/// One turn of a vCPU, from its start to its parking. Ends when dropped.
struct Turn<'a> {
    control: &'a Control,
    kick: &'a Arc<dyn Kick>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.control.end(Err("a vCPU's thread panicked".to_owned()));
        }
        self.control.parked(self.kick);
    }
}

/// Runs the vCPU until the control parks it, then completes its last exit. KVM moves the data of a port or
/// MMIO read into the guest's registers at the next entry (KVM API, section 5, `KVM_EXIT_IO`).
///
/// # Errors
/// The vCPU cannot go on.
fn run_until_parked(vcpu: &mut Vcpu, exits: &ExitCounters, board: &Board) -> Result<(), Stop> {
    while !board.control.must_exit() {
        run_once(vcpu, exits, board)?;
    }
    vcpu.set_immediate_exit(1);
    while run_once(vcpu, exits, board)? {}
    Ok(())
}

/// Returns the reason for which an exit counts.
fn reason_of(exit: &VmExit<'_>, ram: &GuestRam) -> ExitReason {
    match exit {
        VmExit::PioRead { .. } => ExitReason::PioRead,
        VmExit::PioWrite { .. } => ExitReason::PioWrite,
        VmExit::MmioRead { address, .. } if !ram.contains(*address) => ExitReason::MmioRead,
        VmExit::MmioWrite { address, .. } if !ram.contains(*address) => ExitReason::MmioWrite,
        VmExit::EndOfInterrupt(_) => ExitReason::EndOfInterrupt,
        VmExit::Interrupted => ExitReason::Interrupted,
        VmExit::Shutdown | VmExit::SystemEvent(_) => ExitReason::Ended,
        VmExit::MmioRead { .. } | VmExit::MmioWrite { .. } | VmExit::Unreadable(_) | VmExit::Failed(_) => {
            ExitReason::Failed
        }
    }
}

/// Enters the guest, handles its exit and counts it. Returns false if the exit was an interruption.
///
/// # Errors
/// The vCPU cannot go on.
fn run_once(vcpu: &mut Vcpu, exits: &ExitCounters, board: &Board) -> Result<bool, Stop> {
    let exit = vcpu.run();
    let (reason, began) = (reason_of(&exit, &board.ram), Instant::now());
    let handled = handle(exit, board);
    exits.add(reason, began.elapsed());
    handled
}

/// Handles an exit. Returns false if it was an interruption.
///
/// # Errors
/// The vCPU cannot go on.
fn handle(exit: VmExit<'_>, board: &Board) -> Result<bool, Stop> {
    match exit {
        VmExit::PioRead { port, size, data } => {
            data.chunks_mut(size).for_each(|data| board.ports.read(port.into(), data));
        }
        VmExit::PioWrite { port, size, data } => {
            data.chunks(size).for_each(|data| board.ports.write(port.into(), data));
        }
        VmExit::MmioRead { address, data } if !board.ram.contains(address) => board.mmio.read(address, data),
        VmExit::MmioWrite { address, data } if !board.ram.contains(address) => {
            board.mmio.write(address, data);
        }
        VmExit::EndOfInterrupt(vector) => board.lines.end_of_interrupt(vector),
        VmExit::Interrupted => return Ok(false),
        VmExit::Shutdown => return Err(Stop::Guest(Ending::TripleFault)),
        VmExit::SystemEvent(kvm_bindings::KVM_SYSTEM_EVENT_SHUTDOWN) => {
            return Err(Stop::Guest(Ending::Poweroff));
        }
        VmExit::SystemEvent(kvm_bindings::KVM_SYSTEM_EVENT_RESET) => return Err(Stop::Guest(Ending::Reboot)),
        VmExit::SystemEvent(event) => return Err(Stop::Failed(format!("system event {event}"))),
        VmExit::MmioRead { address, .. } | VmExit::MmioWrite { address, .. } => {
            return Err(Stop::Unreadable(Some(address)));
        }
        VmExit::Unreadable(address) => return Err(Stop::Unreadable(address)),
        VmExit::Failed(why) => return Err(Stop::Failed(why)),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// Kicks the thread that sends it.
    #[derive(Debug)]
    struct KickOfThisThread;

    #[allow(unsafe_code)]
    impl Kick for KickOfThisThread {
        fn send(&self) {
            // SAFETY: the thread blocks the signal, or the test fails by its death.
            unsafe { libc::raise(kick_signal()) };
        }

        fn forget(&self) {
            take_pending_kick();
        }
    }

    #[allow(unsafe_code)]
    fn blocked_signals() -> Vec<libc::c_int> {
        // SAFETY: a null set changes no mask, and the call initialises the other set.
        let blocked = unsafe {
            let mut mask = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &raw mut mask);
            mask
        };
        // SAFETY: the set is initialised, and the number is a signal's.
        (1..=64).filter(|signal| unsafe { libc::sigismember(&raw const blocked, *signal) } == 1).collect()
    }

    #[test]
    fn panic_of_a_turn_leaves_a_lent_thread_its_signal_mask() {
        let before = blocked_signals();
        let control = Control::new();
        control.start();
        let kick: Arc<dyn Kick> = Arc::new(KickOfThisThread);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _blocked = BlockedSignals::new();
            assert!(control.wait_for_turn(&kick, Until::GuestEnds));
            let _turn = Turn { control: &control, kick: &kick };
            panic!("a turn panics");
        }));
        assert!(panicked.is_err());
        assert_eq!(blocked_signals(), before);
        assert!(control.wait_end().is_err(), "the guest has crashed");
    }
}
