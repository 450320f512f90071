//! Starts a VM with a name: in a process of its own, whose client this process becomes.
//!
//! ```text
//!   this process: claims the name ── fork ──> the VM's process: enters the directory, confines itself, runs
//!       │  waits <──────────── one byte once the VM runs ─────────────┘
//!       │── --rm: ── fork ──> the remover: waits for the VM's end, removes the directory
//!       │── --publish: ── fork ──> the forwarder: serves ports until the VM's end
//!       ├── --detach: prints the name and ends
//!       └── otherwise: passes keys and output until the VM or its main process ends, and ends as it does
//! ```
//!
//! A fork without exec costs a tenth of another start of the program, and keeps what was parsed and checked.
//! The VM's process is in a session of its own, so signals of the terminal reach the client alone.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, PipeWriter, Read, Write, stdout};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};

use crate::agent::forwarding::Listening;
use crate::cures;
use crate::failure::Failure;
use crate::messages::say;
use crate::process::exit::Status;
use crate::process::home;
use crate::run_dir::claim::{self, Claim};
use crate::run_dir::files;
use crate::run_dir::listing;
use crate::run_dir::name::VmName;
use crate::run_dir::outcome::{Cause, EndOfVm};
use crate::run_dir::record::{NewRecord, Record};
use crate::run_dir::root::RunRoot;
use crate::run_dir::vm_dir::VmDir;
use crate::session::{forwarder, remover};
use crate::terminal::attached::{self, Event, Left};
use crate::terminal::signal_queue::SignalQueue;

/// The time between two looks at the messages of a VM that starts.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// A VM to start.
pub(crate) struct NamedStart<'a> {
    /// Made up if it is absent.
    pub(crate) name: Option<VmName>,
    pub(crate) new: NewRecord,
    /// Ports of the host that lead to the VM.
    pub(crate) ports: Vec<Listening>,
    pub(crate) client: Client<'a>,
}

/// Follows a VM that runs, in the process that started it.
pub(crate) type Follow<'a> = dyn FnOnce(&Record) -> Result<Left, Failure> + 'a;

/// The work of the starting process once the VM runs.
pub(crate) enum Client<'a> {
    /// It prints the record, and ends.
    Announce(fn(&Record) -> Result<(), Failure>),
    /// It passes keys and output of the console until the VM ends. The function ends the VM at once, through
    /// its API.
    Console(fn(&Path) -> Result<(), Failure>),
    /// Anything else. After [`Left::Detached`] it ends without a word. After an error the VM ends too: the
    /// function asks for that, through its API.
    Other(Box<Follow<'a>>, fn(&Path) -> Result<(), Failure>),
}

impl NamedStart<'_> {
    /// Runs `vm` in a process of its own, with the path of its API. Returns in both processes.
    ///
    /// # Errors
    /// The name is taken, or the host refuses; and in the VM's process, the errors of `vm`.
    pub(crate) fn run(
        mut self,
        vm: impl FnOnce(PathBuf) -> Result<Status, Failure>,
    ) -> Result<Status, Failure> {
        let failed = |source| Failure::system("start the VM's process", source);
        let mut new = self.new.clone();
        new.api_socket = new.api_socket.as_deref().map(std::path::absolute).transpose().map_err(failed)?;
        let root = RunRoot::open()?;
        let claim = root.claim(self.name.clone(), new)?;
        if claim.record.removed_at_end {
            remover::start(&root, &claim.record)?;
        }
        forwarder::start(&root, &claim.record, std::mem::take(&mut self.ports))?;
        let (near, far) = UnixStream::pair().map_err(failed)?;
        let (started, tell) = io::pipe().map_err(failed)?;
        // SAFETY: the process has one thread, so no lock of the heap is held in the child.
        match unsafe { libc::fork() } {
            -1 => Err(failed(io::Error::last_os_error())),
            0 => {
                drop((near, started));
                let console = matches!(self.client, Client::Console(_)).then_some(far);
                // Both processes share the locks in it. The starting one frees them once the VM has
                // its files.
                std::mem::forget(self);
                run_vm(claim, console, tell, vm)
            }
            child => {
                drop((far, tell));
                let process = Pid::from_raw(child).expect("a process id is positive");
                self.follow(claim, process, started, &near)
            }
        }
    }

    /// Waits for the VM's start, then for its end unless it is detached.
    fn follow(
        self,
        claim: Claim,
        process: Pid,
        mut started: io::PipeReader,
        console: &UnixStream,
    ) -> Result<Status, Failure> {
        // Blocked throughout: no signal comes between two of the loops that read them.
        let _signals = SignalQueue::block().map_err(|error| Failure::system("block signals", error))?;
        let mut messages = Messages::of(claim.directory())?;
        if !has_started(process, &mut started, &mut messages)? {
            let status = wait(process)?;
            messages.print();
            // Nothing of a VM that never ran stays.
            claim::give_up(vec![claim]);
            return Ok(Status::of_code(code(status)));
        }
        messages.print();
        let record = claim.keep();
        let vm = opened(&record);
        let left = match self.client {
            Client::Announce(announce) => {
                announce(&record)?;
                return Ok(Status::Success);
            }
            Client::Console(end_vm) => pass_console(process, console, &record, end_vm, &mut messages)?,
            Client::Other(client, ask_to_end) => match client(&record) {
                Ok(Left::Detached) => return Ok(Status::Success),
                Ok(left) => left,
                Err(failure) => {
                    // It may have ended already.
                    let _ = ask_to_end(&record.api_socket)
                        .or_else(|_| kill_process(process, Signal::TERM).map_err(|_| ()));
                    wait(process)?;
                    messages.print();
                    return Err(failure);
                }
            },
        };
        if left == Left::Detached {
            let name = &record.name;
            say(format!("\nvolt-vmm: left VM {name}; volt-vmm attach {name} returns to it"));
            return Ok(Status::Success);
        }
        let status = wait(process)?;
        messages.print();
        vm.iter().for_each(|vm| note_kill(vm, status));
        if record.removed_at_end {
            // The remover does so too, but perhaps after this process's end.
            let removed = RunRoot::open().and_then(|root| root.remove_at_end(&record));
            // The status is the VM's.
            removed.unwrap_or_else(|failure| messages.say(&failure));
        }
        Ok(Status::of_code(code(status)))
    }
}

/// Passes keys and output of the console.
fn pass_console(
    process: Pid,
    console: &UnixStream,
    record: &Record,
    end_vm: fn(&Path) -> Result<(), Failure>,
    messages: &mut Messages,
) -> Result<Left, Failure> {
    attached::attach(console, |event| {
        match event {
            // The end of the console decides. It has ended already, perhaps.
            Event::EndVm => {
                if let Err(failure) = end_vm(&record.api_socket) {
                    messages.say(&failure);
                }
            }
            Event::Signal(number) => {
                // The VM ends by the signal, and this process then ends as it does.
                let signal = Signal::from_named_raw(number);
                // It may have ended already.
                let _ = signal.map(|signal| kill_process(process, signal));
            }
            Event::Resized => {}
            Event::Tick => messages.print(),
        }
        Ok(true)
    })
}

/// Waits until the VM runs, or its process ends without that. Signals that ask this process to end go to the
/// VM's, which ends then.
///
/// Prints messages meanwhile: a start that packs directories is long.
fn has_started(process: Pid, started: &mut io::PipeReader, messages: &mut Messages) -> Result<bool, Failure> {
    let failed = |source: io::Error| Failure::system("wait for the VM's start", source);
    let signals = SignalQueue::block().map_err(failed)?;
    loop {
        let mut ready = [PollFd::new(&*started, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        match poll(&mut ready, Some(&LOOK)) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(0) => {
                messages.print();
                continue;
            }
            polled => polled.map_err(|errno| failed(errno.into()))?,
        };
        let has_news = !ready[0].revents().is_empty();
        pass_on(&signals, process);
        if has_news {
            return Ok(started.read(&mut [0]).is_ok_and(|count| count == 1));
        }
    }
}

/// Passes the signals that ask this process to end on to the VM's.
fn pass_on(signals: &SignalQueue, process: Pid) {
    let ending = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
    for signal in signals.take().into_iter().filter_map(Signal::from_named_raw) {
        if ending.contains(&signal) {
            // It may have ended already.
            let _ = kill_process(process, signal);
        }
    }
}

/// The VM's process: enters the directory, then runs. A failed start leaves the directory to the starting
/// process, which prints the messages in it.
fn run_vm(
    mut claim: Claim,
    console: Option<UnixStream>,
    tell: PipeWriter,
    vm: impl FnOnce(PathBuf) -> Result<Status, Failure>,
) -> Result<Status, Failure> {
    claim.leave_removal();
    // Signals of the terminal must not end the VM, and its input is the client's.
    let _ = rustix::process::setsid();
    let failed = |source: io::Error| Failure::system("open /dev/null for the VM's process", source);
    let null = File::options().read(true).write(true).open("/dev/null").map_err(failed)?;
    let streams = rustix::stdio::dup2_stdin(&null).and_then(|()| rustix::stdio::dup2_stdout(&null));
    streams.map_err(|errno| failed(errno.into()))?;
    let home = home::enter(claim.directory(), console, Some(tell))?;
    // This thread may close no file once it has run a vCPU.
    drop((claim, null));
    vm(home.record.api_socket.clone()).inspect_err(|failure| home.failed(failure))
}

/// Waits for the end of the VM's process, which may take long after the end of its console: a snapshot ends
/// first. Signals go to it, and a second one ends it at once.
fn wait(process: Pid) -> Result<ExitStatus, Failure> {
    let failed = |source: io::Error| Failure::system("wait for the VM's process", source);
    let signals = SignalQueue::block().map_err(failed)?;
    let ended = pidfd_open(process, PidfdFlags::empty()).map_err(|errno| failed(errno.into()))?;
    loop {
        let mut ready = [PollFd::new(&ended, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        let polled = poll(&mut ready, None);
        let has_ended = polled.is_ok() && !ready[0].revents().is_empty();
        pass_on(&signals, process);
        if has_ended || polled.is_err_and(|errno| errno != rustix::io::Errno::INTR) {
            break;
        }
    }
    loop {
        match waitpid(Some(process), WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(Some((_, status))) => return Ok(ExitStatus::from_raw(status.as_raw())),
            Ok(None) => {}
            Err(errno) => return Err(Failure::system("wait for the VM's process", errno)),
        }
    }
}

/// The exit status as a shell shows it.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| code.try_into().ok()).unwrap_or(1)
}

/// Opens the directory of a VM. It may be another VM's at the end of this one.
fn opened(record: &Record) -> Option<VmDir> {
    let found = listing::find(&RunRoot::existing().ok()??, record.name.as_str()).ok()?;
    (found.record.id == record.id).then_some(found)
}

/// Records the end of a VM whose process was killed.
fn note_kill(vm: &VmDir, status: ExitStatus) {
    if let Some(signal) = status.signal() {
        let message = format!("signal {signal} killed the VM's process");
        vm.record_end(&EndOfVm::now(code(status), Cause::Killed, message));
    }
}

/// The messages of the VM's process, which this one passes on.
struct Messages {
    /// Open from the start: the remover of a VM may take the directory before the last of them are read.
    log: File,
}

impl Messages {
    fn of(directory: &Path) -> Result<Self, Failure> {
        let log = File::open(directory.join(files::LOG));
        let log =
            log.map_err(|error| Failure::run_dir(directory, format!("cannot open its log: {error}")))?;
        Ok(Self { log })
    }

    /// Prints a failure of this process.
    fn say(&mut self, failure: &Failure) {
        self.print();
        say(format!("\nvolt-vmm: {}", failure.report(cures::as_option)));
    }

    /// Prints what is new.
    fn print(&mut self) {
        let mut new = Vec::new();
        if self.log.read_to_end(&mut new).is_ok_and(|count| count > 0) {
            let _ = stdout().flush();
            let _ = io::stderr().write_all(&new);
        }
    }
}
