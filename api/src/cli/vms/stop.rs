//! `volt-vmm stop` and `kill`.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;

use super::exec::agent_of;
use super::naming::{TO_STOP, TO_UNMOUNT};
use super::pause::for_each;
use super::ps::{VmState, states};
use super::target::Target;
use crate::agent::{Agent, Selected};
use crate::cli::{Outcome, complete, security};
use crate::client;
use crate::failure::Failure;
use crate::run_dir::outcome::{Cause, EndOfVm};
use crate::run_dir::vm_dir::VmDir;

/// Longest limit, in seconds: a year.
const MOST_SECONDS: u64 = 365 * 86_400;
/// Time between two looks whether a VM has ended.
const AGAIN: Duration = Duration::from_millis(10);
/// Longest wait for the end of a process that was asked to end, with its disks.
const TO_END: Duration = Duration::from_secs(60);

/// Stop VMs: ask the guest to power off, and end a VM whose guest has not done so in time
///
/// Example: volt-vmm stop --timeout 30 web
#[derive(Debug, Args)]
pub(crate) struct Stop {
    /// Names of the VMs, beginnings of their ids, or paths of their API sockets
    #[arg(value_name = "VM", required = true, add = complete::living_vms())]
    vms: Vec<String>,

    /// Time for a guest to power off; with 0 the VM ends at once
    #[arg(
        short,
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(..=MOST_SECONDS),
    )]
    timeout: u64,
}

/// Kill the processes of VMs. Their guests get no time
///
/// Example: volt-vmm kill web
#[derive(Debug, Args)]
pub(crate) struct Kill {
    /// Names of the VMs, beginnings of their ids, or paths of their API sockets
    #[arg(value_name = "VM", required = true, add = complete::living_vms())]
    vms: Vec<String>,

    /// Signal to send: KILL, TERM, INT, HUP or QUIT. All but KILL let disks be written
    #[arg(short, long, value_name = "SIGNAL", default_value = "KILL", value_parser = parse_signal)]
    signal: Signal,
}

fn parse_signal(text: &str) -> Result<Signal, String> {
    let name = text.to_ascii_uppercase();
    let known = [
        ("KILL", Signal::KILL),
        ("TERM", Signal::TERM),
        ("INT", Signal::INT),
        ("HUP", Signal::HUP),
        ("QUIT", Signal::QUIT),
    ];
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let is_it = |(known, signal): &(&str, Signal)| *known == name || signal.as_raw().to_string() == name;
    known
        .into_iter()
        .find(is_it)
        .map(|(_, signal)| signal)
        .ok_or_else(|| "it is one of KILL, TERM, INT, HUP, QUIT".to_owned())
}

impl Stop {
    pub(crate) fn execute(self) -> Outcome {
        for_each(&self.vms, |word| {
            let vm = Living::of(Target::find(word)?)?;
            let limit = Duration::from_secs(self.timeout);
            // One that ends just now does not answer: it finishes a snapshot, perhaps.
            let asked = self.ask(&vm, limit);
            asked.or_else(|failure| if vm.has_ended(TO_STOP) { Ok(()) } else { Err(failure) })?;
            if let Some(agent) = vm.agent()
                && !vm.has_ended(limit)
            {
                // The guest then unmounts its disks. One whose agent fails is ended by the request.
                let _ = agent.signal(&Selected::MAIN, Signal::KILL.as_raw());
            }
            match vm.has_ended(limit + TO_END) {
                true => Ok(()),
                false => Err(Failure::vm(&vm.target.label(), "it does not end; use kill")),
            }
        })
    }

    fn ask(&self, vm: &Living, limit: Duration) -> Result<(), Failure> {
        let api = vm.target.api()?;
        if vm.is_starting() {
            // Its API answers once its guest runs. The signal cancels the start.
            return kill(&vm.target, Signal::TERM);
        }
        let limit = match vm.agent() {
            Some(_) => limit + TO_UNMOUNT,
            None if limit.is_zero() => return client::put_within(api, "/v1/stop", &(), TO_STOP),
            None => limit,
        };
        let body = json!({ "timeout_ms": limit.as_millis() as u64 });
        client::put_within(api, "/v1/vm/shutdown", &body, TO_STOP)
    }
}

impl Kill {
    pub(crate) fn execute(self) -> Outcome {
        for_each(&self.vms, |word| kill(&Target::find(word)?, self.signal))
    }
}

/// A VM that lived when it was found.
struct Living {
    target: Target,
    /// The process of a VM without a name, if it is in this pid namespace.
    process: Option<OwnedFd>,
}

impl Living {
    /// # Errors
    /// The VM has ended, or no process serves its socket.
    fn of(target: Target) -> Result<Self, Failure> {
        let process = match &target {
            Target::Named(_) => target.api().map(|_| None)?,
            Target::Socket(socket) => serving(socket)?,
        };
        Ok(Self { target, process })
    }

    /// Its agent, if it runs an image.
    fn agent(&self) -> Option<Agent> {
        match &self.target {
            Target::Named(vm) if vm.record.main_with_streams().is_some() => Some(agent_of(vm)),
            _ => None,
        }
    }

    /// Whether its guest has not run yet.
    fn is_starting(&self) -> bool {
        let Target::Named(vm) = &self.target else { return false };
        vm.config().is_none() && matches!(states(&[vm])[..], [(VmState::Starting, _)])
    }

    /// Waits up to `limit` for the end of the VM.
    fn has_ended(&self, limit: Duration) -> bool {
        within(limit, || match (&self.target, &self.process) {
            (Target::Named(vm), _) => !vm.is_alive(),
            (Target::Socket(_), Some(process)) => {
                poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&Timespec::default())) == Ok(1)
            }
            // Another pid namespace has it, so the end of its socket must do. Its process may still write.
            (Target::Socket(socket), None) => client::visible_process_of(socket).is_err(),
        })
    }
}

/// Opens the process that serves a socket (pidfd_open(2)), if it is in this pid namespace.
///
/// # Errors
/// No process serves it, or the host refuses.
fn serving(socket: &Path) -> Result<Option<OwnedFd>, Failure> {
    let refused = |errno| Failure::system(format!("open the process at {}", socket.display()), errno);
    let Some(pid) = client::visible_process_of(socket)? else { return Ok(None) };
    let process = Pid::from_raw(pid).ok_or(Errno::SRCH);
    let process = process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty())).map_err(refused)?;
    // It still serves, so the number was its own when the descriptor was opened.
    match client::visible_process_of(socket)? == Some(pid) {
        true => Ok(Some(process)),
        false => Err(Failure::socket(socket, "another process serves it by now; try again")),
    }
}

/// Sends a signal to a VM's process. After SIGKILL, waits for its end and records it.
///
/// # Errors
/// The VM has ended, or the host refuses.
pub(super) fn kill(target: &Target, signal: Signal) -> Result<(), Failure> {
    let failed = |error| Failure::system(format!("signal the process of VM {}", target.label()), error);
    let process = match target {
        Target::Named(vm) => process_of(target, vm, signal)?,
        Target::Socket(socket) => {
            let unknown = || Failure::socket(socket, "its process is outside this pid namespace");
            serving(socket)?.ok_or_else(unknown)?
        }
    };
    pidfd_send_signal(&process, signal).map_err(failed)?;
    match target {
        Target::Named(vm) if signal == Signal::KILL => {
            vm.wait()?;
            vm.record_end(&EndOfVm::now(137, Cause::Killed, "volt-vmm kill killed the VM's process"));
        }
        Target::Socket(_) if signal == Signal::KILL => {
            let mut end = [PollFd::new(&process, PollFlags::IN)];
            retry_on_intr(|| poll(&mut end, None)).map_err(failed)?;
        }
        _ => {}
    }
    Ok(())
}

/// Opens the process of a VM with a name, to send it this signal.
fn process_of(target: &Target, vm: &VmDir, signal: Signal) -> Result<OwnedFd, Failure> {
    target.api()?;
    let pid = vm.record.pid.and_then(|pid| i32::try_from(pid).ok());
    // A keeper removes what it has made on the host, if the VM's own process is the one that is killed.
    let pid = pid.map(|pid| if signal == Signal::KILL { security::process_of_vm(pid) } else { pid });
    let starts = || Failure::vm(&target.label(), "it starts just now; try again");
    let process = pidfd_open(pid.and_then(Pid::from_raw).ok_or_else(starts)?, PidfdFlags::empty());
    let failed = |error| Failure::system(format!("signal the process of VM {}", target.label()), error);
    let process = process.map_err(failed)?;
    // The VM still lives, so the number was that of its process when the descriptor was opened.
    target.api()?;
    Ok(process)
}

/// Waits up to `limit` until `is_so`.
pub(super) fn within(limit: Duration, is_so: impl Fn() -> bool) -> bool {
    let until = Instant::now() + limit;
    loop {
        let is_so = is_so();
        if is_so || Instant::now() >= until {
            return is_so;
        }
        sleep(AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_has_a_name_or_a_number() {
        for (text, signal) in [("KILL", Signal::KILL), ("sigterm", Signal::TERM), ("2", Signal::INT)] {
            assert_eq!(parse_signal(text), Ok(signal));
        }
        for text in ["", "STOP", "99"] {
            assert!(parse_signal(text).is_err(), "{text}");
        }
    }
}
