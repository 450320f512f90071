//! The starting process of a VM that runs an image: it starts the main process, and passes its streams.

use std::os::unix::net::UnixStream;

use volt_job::StartMain;
use volt_job::ended::NOT_PREPARED;

use crate::agent::{Agent, MainRefusal};
use crate::cli::main_streams::{self, Place};
use crate::cli::vms::naming::{ask_to_end, end_vm};
use crate::failure::Failure;
use crate::messages::say;
use crate::run_dir::files;
use crate::run_dir::listing;
use crate::run_dir::outcome::Cause;
use crate::run_dir::record::{MainOfImage, Record};
use crate::run_dir::root::RunRoot;
use crate::run_dir::vm_dir::VmDir;
use crate::terminal::attached::{self, Event, Left};
use crate::terminal::signal_queue::SignalQueue;

/// Starts the main process, and follows it unless the VM is detached.
///
/// # Errors
/// The VM ends before its agent answers, or the agent refuses.
pub(super) fn follow(record: &Record, main: &StartMain, is_detached: bool) -> Result<Left, Failure> {
    let root = RunRoot::open()?;
    let vm = listing::find(&root, record.name.as_str())?;
    let agent = Agent::new(&vm.file(files::VSOCK), record.name.as_str());
    let signals = SignalQueue::block_ending().map_err(|source| Failure::system("block signals", source))?;
    if let Err(failure) = agent.wait_ready(Some(&signals), || vm.is_alive()) {
        // Process 1 may have reported why it could not start the agent.
        let report = vm.end().filter(|end| end.cause == Cause::Exited && end.status == NOT_PREPARED);
        return report.map_or(Err(failure), |end| Ok(ended(record, &end.message)));
    }
    // Before its first output.
    let console = (main.process.is_init && !is_detached).then(|| console_of(&vm)).transpose()?;
    match agent.start_main(main)? {
        Ok(_) => {}
        Err(MainRefusal::Exists) => {
            return Err(Failure::vm(record.name.as_str(), "another client has started its main process"));
        }
        Err(MainRefusal::Ended(end)) => return Ok(ended(record, end.error.as_deref().unwrap_or("it ended"))),
    }
    if is_detached {
        return Ok(Left::Detached);
    }
    if let Some(console) = console {
        return pass_console(&console, &vm);
    }
    main_streams::pass(&agent, &vm, &MainOfImage::of(&main.process), Place::Starter)
}

fn console_of(vm: &VmDir) -> Result<UnixStream, Failure> {
    let connected = UnixStream::connect(vm.file(files::SERIAL));
    connected.map_err(|source| Failure::system(format!("connect to the console of VM {}", vm.name()), source))
}

/// Passes the streams of an init until its VM ends or the user leaves. A signal asks the VM to end.
fn pass_console(console: &UnixStream, vm: &VmDir) -> Result<Left, Failure> {
    let api = &vm.record.api_socket;
    attached::attach(console, |event| {
        let asked = match event {
            Event::EndVm => end_vm(api),
            Event::Signal(_) => ask_to_end(api),
            Event::Resized | Event::Tick => Ok(()),
        };
        // It may have ended already.
        asked.unwrap_or_else(|failure| say(format!("volt-vmm: {failure}")));
        Ok(true)
    })
}

/// Prints why there is no main process. The VM ends with the status.
fn ended(record: &Record, why: &str) -> Left {
    say(format!("volt-vmm: VM {}: {why}", record.name));
    Left::Ended
}
