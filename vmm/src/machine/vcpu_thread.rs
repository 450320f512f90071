//! vCPU threads, and the loop that answers exits.

use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use crate::error::Result;
use crate::kvm::exit::VmExit;
use crate::kvm::vcpu::Vcpu;
use crate::machine::board::{Board, BoardSlot};
use crate::run_control::{Control, Ending, Kick, Until};
use crate::sync::lock;
use crate::threads;

/// A vCPU and the thread that runs it.
#[derive(Debug)]
pub struct VcpuThread {
    /// Held by the thread while the vCPU runs, free while it is parked.
    pub vcpu: Arc<Mutex<Vcpu>>,
    /// None before one is spawned, and where one is lent.
    thread: Option<JoinHandle<()>>,
}

/// The signal that brings a vCPU out of `KVM_RUN`. Blocked everywhere else, so it needs no handler.
fn kick_signal() -> libc::c_int {
    libc::SIGRTMIN()
}

/// Brings one vCPU out of `KVM_RUN`, by a signal to its thread.
#[derive(Debug)]
struct SignalKick {
    /// Its `kvm_run.immediate_exit`.
    immediate_exit: AtomicPtr<AtomicU8>,
    /// Its thread.
    tid: libc::pid_t,
    /// Keeps `immediate_exit` mapped.
    _vcpu: Arc<Mutex<Vcpu>>,
}

#[allow(unsafe_code)]
impl SignalKick {
    fn of_this_thread(vcpu: &Arc<Mutex<Vcpu>>) -> Arc<Self> {
        let immediate_exit = AtomicPtr::new(std::ptr::from_ref(lock(vcpu).immediate_exit()).cast_mut());
        // Not libc's gettid: Rust's standard library knows that one as a weak symbol, and in a static program that is
        // optimised as a whole (fat LTO) the weak one wins and is null.
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        Arc::new(Self { immediate_exit, tid, _vcpu: Arc::clone(vcpu) })
    }

    fn immediate_exit(&self) -> &AtomicU8 {
        // SAFETY: points into the vCPU's mapping, which `_vcpu` keeps.
        unsafe { &*self.immediate_exit.load(Ordering::Relaxed) }
    }
}

#[allow(unsafe_code)]
impl Kick for SignalKick {
    fn send(&self) {
        self.immediate_exit().store(1, Ordering::Relaxed);
        // SAFETY: sends a signal that the thread has blocked; should the thread be gone the call fails and nothing
        // happens (its id cannot have been reused outside this process, which tgkill checks).
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), self.tid, kick_signal()) };
    }

    fn forget(&self) {
        self.immediate_exit().store(0, Ordering::Relaxed);
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the set is initialised by sigemptyset, and a null siginfo is allowed. The signal is blocked, so it
        // is either taken here or not pending.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, kick_signal());
            libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const now);
        }
    }
}

impl VcpuThread {
    /// A vCPU that no thread runs yet.
    ///
    /// # Errors
    /// KVM refuses the signal mask.
    pub fn parked(vcpu: Vcpu) -> Result<Self> {
        vcpu.block_signals_in_guest(&signals_blocked(false))?;
        Ok(Self { vcpu: Arc::new(Mutex::new(vcpu)), thread: None })
    }

    /// The vCPU for whoever lends it a thread, if it has none.
    pub fn without_thread(&self, control: &Arc<Control>, board: &Arc<BoardSlot>) -> Option<LentVcpu> {
        let (control, board) = (Arc::clone(control), Arc::clone(board));
        let lent = || LentVcpu { vcpu: Arc::clone(&self.vcpu), control, board };
        self.thread.is_none().then(lent)
    }

    /// Spawns its thread, which waits for its turn.
    ///
    /// # Errors
    /// The host gives no thread.
    pub fn spawn(&mut self, id: u8, control: &Arc<Control>, board: &Arc<BoardSlot>) -> Result<()> {
        let (vcpu, control, board) = (Arc::clone(&self.vcpu), Arc::clone(control), Arc::clone(board));
        let body = move || {
            block_signals();
            take_turns(id, &vcpu, (&control, &board), Until::Quit);
        };
        self.thread = Some(threads::spawn(format_args!("vcpu{id}"), body)?);
        Ok(())
    }
}

/// The first vCPU of a VM, waiting for the thread that will be lent to it.
#[derive(Debug)]
pub struct LentVcpu {
    vcpu: Arc<Mutex<Vcpu>>,
    control: Arc<Control>,
    board: Arc<BoardSlot>,
}

impl LentVcpu {
    /// Runs it on the calling thread, turn by turn, until its guest has ended. Signals are as they were afterwards.
    pub fn run(self) {
        let before = block_signals();
        take_turns(0, &self.vcpu, (&self.control, &self.board), Until::GuestEnds);
        set_signals(&before);
    }
}

impl Drop for VcpuThread {
    /// The control must have been told to quit.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic has been reported as the guest's end already.
            let _ = thread.join();
        }
    }
}

/// All signals but those that a fault of the thread itself raises: blocked, those would kill the process without a
/// word. In the guest the kick is let through.
#[allow(unsafe_code)]
fn signals_blocked(kick_too: bool) -> libc::sigset_t {
    let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT];
    // SAFETY: the set is initialised by sigfillset before it is changed.
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

/// Blocks on this thread what [`signals_blocked`] says, and returns what was blocked before.
fn block_signals() -> libc::sigset_t {
    set_signals(&signals_blocked(true))
}

#[allow(unsafe_code)]
fn set_signals(blocked: &libc::sigset_t) -> libc::sigset_t {
    // SAFETY: both sets are initialised, by the caller and with zeroes; only this thread's mask changes.
    unsafe {
        let mut before = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, blocked, &raw mut before);
        before
    }
}

fn take_turns(id: u8, vcpu: &Arc<Mutex<Vcpu>>, (control, board): (&Control, &BoardSlot), until: Until) {
    let kick: Arc<dyn Kick> = SignalKick::of_this_thread(vcpu);
    while control.wait_for_turn(&kick, until) {
        // However this turn ends, a panic included, the vCPU counts as parked afterwards.
        let turn = Turn { control, kick: &kick };
        // Empty only while the shell is dropped: the next turn does not come then.
        if let Some(board) = board.get() {
            run_until_asked(id, &mut lock(vcpu), &board);
        }
        drop(turn);
    }
    // The kick that ended the last turn may still be pending, and a lent thread is about to let signals through again.
    kick.forget();
}

/// One turn of running; over when dropped.
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

/// Runs the vCPU until the control asks it to come out, then lets it finish the exit it was in: the data of a port or
/// MMIO read reach the guest's registers only when the vCPU is entered again (KVM API, section 5, `KVM_EXIT_IO`).
fn run_until_asked(id: u8, vcpu: &mut Vcpu, board: &Board) {
    while !board.control.come_out() {
        answer(id, vcpu, board);
    }
    vcpu.set_immediate_exit(1);
    while answer(id, vcpu, board) {}
}

/// Enters the guest and answers the exit. False when there was nothing to answer, or nothing can follow.
fn answer(id: u8, vcpu: &mut Vcpu, board: &Board) -> bool {
    let end = match vcpu.run() {
        VmExit::PioRead { port, size, data } => {
            data.chunks_mut(size).for_each(|data| board.ports.read(port.into(), data));
            return true;
        }
        VmExit::PioWrite { port, size, data } => {
            data.chunks(size).for_each(|data| board.ports.write(port.into(), data));
            return true;
        }
        VmExit::MmioRead { address, data } if !board.ram.contains(address) => {
            board.mmio.read(address, data);
            return true;
        }
        VmExit::MmioWrite { address, data } if !board.ram.contains(address) => {
            board.mmio.write(address, data);
            return true;
        }
        VmExit::EndOfInterrupt(vector) => {
            board.lines.end_of_interrupt(vector);
            return true;
        }
        VmExit::Interrupted => return false,
        VmExit::Shutdown => Ok(Ending::TripleFault),
        VmExit::SystemEvent(kvm_bindings::KVM_SYSTEM_EVENT_SHUTDOWN) => Ok(Ending::Poweroff),
        VmExit::SystemEvent(kvm_bindings::KVM_SYSTEM_EVENT_RESET) => Ok(Ending::Reboot),
        VmExit::SystemEvent(event) => Err(format!("system event {event}")),
        VmExit::MmioRead { address, .. } | VmExit::MmioWrite { address, .. } => {
            Err(unreadable(&format!("guest memory at {address:#x}"), board))
        }
        VmExit::Unreadable(None) => Err(unreadable("guest memory", board)),
        VmExit::Unreadable(Some(address)) => Err(unreadable(&format!("guest memory at {address:#x}"), board)),
        VmExit::Failed(why) => Err(why),
    };
    let end = match end {
        Ok(Ending::TripleFault) => after_triple_fault(vcpu, board),
        end => end,
    };
    board.control.end(end.map_err(|why| format!("vCPU {id}{}: {why}", vcpu.whereabouts())));
    false
}

/// Tells a guest's own triple fault from one for want of its page tables, descriptor tables or stack: kvm_pvm
/// injects a page fault where another KVM leaves `KVM_RUN` with EFAULT.
fn after_triple_fault(vcpu: &Vcpu, board: &Board) -> std::result::Result<Ending, String> {
    if board.ram.is_truncated() {
        return Err(unreadable("guest memory", board));
    }
    // Memory that is filled as it is needed says itself what could not be had.
    if board.ram.faults().is_some() {
        return Ok(Ending::TripleFault);
    }
    let is_lost = |address: &u64| board.ram.contains(*address) && !board.ram.is_readable(*address);
    match vcpu.needed_by_exceptions().into_iter().find(is_lost) {
        Some(address) => Err(unreadable(&format!("guest memory at {address:#x}"), board)),
        None => Ok(Ending::TripleFault),
    }
}

/// Why KVM cannot have memory: what happened to it, as far as this process knows.
fn unreadable(what: &str, board: &Board) -> String {
    let file = board.ram.file_name();
    let file = file.display();
    if let Some(why) = board.ram.faults().and_then(|faults| faults.failure()) {
        format!("{what} cannot be accessed: {why}")
    } else if board.ram.is_truncated() {
        format!("{what} cannot be accessed: {file} is gone or too short")
    } else {
        format!(
            "{what} cannot be accessed: {file} is as long as it should be, so it or a file over it cannot be \
             read, or the host has no memory left (its kernel's log says which)"
        )
    }
}
