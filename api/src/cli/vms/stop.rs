//! `volt-vmm stop` and `kill`.

use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;

use super::naming::TO_STOP;
use super::pause::for_each;
use super::target::Target;
use crate::cli::{Outcome, complete, security};
use crate::client;
use crate::failure::Failure;
use crate::run_dir::outcome::{Cause, EndOfVm};

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
            let target = Target::find(word)?;
            let api = target.api()?;
            let limit = Duration::from_secs(self.timeout);
            let asked = match self.timeout {
                0 => client::put_within(api, "/v1/stop", &(), TO_STOP),
                _ => {
                    let body = json!({ "timeout_ms": limit.as_millis() as u64 });
                    client::put_within(api, "/v1/vm/shutdown", &body, TO_STOP)
                }
            };
            // One that ends just now does not answer: it finishes a snapshot, perhaps.
            asked.or_else(|failure| if has_ended(&target, TO_STOP) { Ok(()) } else { Err(failure) })?;
            match has_ended(&target, limit + TO_END) {
                true => Ok(()),
                false => Err(Failure::vm(&target.label(), "it does not end; use kill")),
            }
        })
    }
}

impl Kill {
    pub(crate) fn execute(self) -> Outcome {
        for_each(&self.vms, |word| kill(&Target::find(word)?, self.signal))
    }
}

/// Sends a signal to a VM's process. After SIGKILL, waits for its end and records it.
///
/// # Errors
/// The VM has ended, or the host refuses.
pub(super) fn kill(target: &Target, signal: Signal) -> Result<(), Failure> {
    let api = target.api()?;
    let failed = |error| Failure::system(format!("signal the process of VM {}", target.label()), error);
    let pid = match target {
        Target::Named(vm) => vm.record.pid.and_then(|pid| i32::try_from(pid).ok()),
        Target::Socket(_) => Some(client::process_of(api)?),
    };
    // A keeper removes what it has made on the host, if the VM's own process is the one that is killed.
    let pid = pid.map(|pid| if signal == Signal::KILL { security::process_of_vm(pid) } else { pid });
    let starts = || Failure::vm(&target.label(), "it starts just now; try again");
    let process = pidfd_open(pid.and_then(Pid::from_raw).ok_or_else(starts)?, PidfdFlags::empty());
    let process = process.map_err(failed)?;
    // The VM still lives, so the number was that of its process when the descriptor was opened.
    target.api()?;
    pidfd_send_signal(&process, signal).map_err(failed)?;
    if let Target::Named(vm) = target
        && signal == Signal::KILL
    {
        vm.wait()?;
        vm.record_end(&EndOfVm::now(137, Cause::Killed, "volt-vmm kill killed the VM's process"));
    }
    Ok(())
}

/// Waits up to `limit` for the end of a VM.
fn has_ended(target: &Target, limit: Duration) -> bool {
    within(limit, || match target {
        Target::Named(vm) => !vm.is_alive(),
        Target::Socket(socket) => client::process_of(socket).is_err(),
    })
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
