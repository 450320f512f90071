//! Process 1 of a VM that runs an image.
//!
//! ```text
//! job ── modules ── disks ── root ── mounts, volumes, settings, names, network, cgroup
//!   ├──> agent ──asks for the main process, if the job has none
//!   └──> main process ── supervise ── shutdown (report)
//! ```
//!
//! Without a main process, as after a fault before its start, the VM ends too: its report has the reason.

mod agent;
mod cgroup;
mod console;
mod keeper;
mod main_process;
mod modules;
mod mounts;
mod names;
mod network;
mod process;
mod report;
mod root;
mod settings;
mod shutdown;
mod signal_names;
mod signals;
mod supervise;
mod system;

use std::panic::{AssertUnwindSafe, catch_unwind};

use agent::Agent;
use root::Upper;
use volt_job::ended::NOT_PREPARED;
use volt_job::{Ended, Job};

use crate::volumes;

/// The parts that the end of the VM needs.
#[derive(Default)]
struct Machine {
    upper: Option<Upper>,
    agent: Agent,
    /// Whether the main process writes to the console, so that its last line may lack an end.
    shares_console: bool,
}

/// Runs the job and powers off.
pub(crate) fn main() -> ! {
    let mut machine = Machine::default();
    // A panic of process 1 would be one of the kernel.
    let ended = catch_unwind(AssertUnwindSafe(|| run(&mut machine)));
    let not_prepared = |why| Ended::not_started(NOT_PREPARED, why);
    let ended = ended.unwrap_or_else(|_| Err("init has failed (a fault of volt-vmm)".to_owned()));
    shutdown::end(machine, &ended.unwrap_or_else(not_prepared))
}

/// Returns the end of the main process, or why there was none.
fn run(machine: &mut Machine) -> Result<Ended, String> {
    signals::block();
    mounts::first()?;
    console::open();
    let job = read_job()?;
    modules::load(&job.modules)?;
    let upper = root::mount(&job.root)?;
    let for_agent = upper.0.try_clone().map_err(|error| format!("cannot duplicate a descriptor: {error}"))?;
    machine.agent.give_upper(for_agent);
    machine.upper = Some(upper);
    root::switch()?;
    let say = |problems: Vec<String>| problems.iter().for_each(|problem| console::say(problem));
    say(mounts::others());
    volumes::mount(&job.mounts)?;
    [settings::make(), names::give(&job), network::configure(job.network.as_ref())].into_iter().for_each(say);
    say(Vec::from_iter(cgroup::make().err()));
    let hostname = job.hostname.as_deref();
    let Some(process) = &job.process else {
        if !job.agent {
            return Err("the job has neither a process nor an agent to start one; give it one".to_owned());
        }
        machine.agent.start_with_link();
        return Ok(supervise::until_end(None, &mut machine.agent));
    };
    if job.agent {
        machine.agent.start();
    }
    machine.shares_console = process.console || process.terminal;
    if process.is_init {
        keeper::leave(&mut machine.agent);
        return Ok(process::become_init(process, hostname));
    }
    let stop = supervise::Stop::new(process)?;
    let on_console = |command: &mut _, user| console::redirect(command, process, user);
    Ok(match process::start(process, hostname, on_console) {
        Ok(pid) => supervise::until_end(Some(supervise::Main { pid, stop }), &mut machine.agent),
        Err(ended) => ended,
    })
}

fn read_job() -> Result<Job, String> {
    let path = format!("/{}", volt_job::job::PATH);
    let text = std::fs::read(&path).map_err(|error| {
        format!("cannot read {path}: {error}; append it to the initramfs (volt_kernel::archive)")
    })?;
    serde_json::from_slice(&text).map_err(|error| format!("{path}: {error}"))
}
