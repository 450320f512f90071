//! The life of the main process: its signals, its stop and its end.

use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitOptions, WaitStatus, wait};
use volt_job::ended::NOT_PREPARED;
use volt_job::job::Process;
use volt_job::{Ended, StartMain};

use super::agent::Agent;
use super::signals::{self, Signal};
use super::{cgroup, keeper, main_process, process, signal_names, system};
use crate::link::{ToAgent, ToInit};

/// How the main process is asked to end.
pub(super) struct Stop {
    signal: i32,
    patience: Duration,
}

impl Stop {
    /// Reads the stop of a process.
    pub(super) fn new(process: &Process) -> Result<Self, String> {
        let name = &process.stop_signal;
        let signal = signal_names::number(name)
            .ok_or_else(|| format!("process.stop_signal is {name:?}; give a name such as SIGTERM"))?;
        Ok(Self { signal, patience: Duration::from_secs(process.stop_seconds.into()) })
    }
}

/// The main process.
pub(super) struct Main {
    pub(super) pid: Pid,
    pub(super) stop: Stop,
}

/// Serves signals and the agent until the main process ends. Reaps all children meanwhile.
///
/// Without a main process the agent asks for one. A VM that is stopped before ends with status 0.
pub(super) fn until_end(main: Option<Main>, agent: &mut Agent) -> Ended {
    let mut main = main;
    let mut kill_at: Option<Instant> = None;
    loop {
        let deadline = kill_at.into_iter().chain(agent.due()).min();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match (signals::wait_beside(agent.link(), left), &main) {
            (Some(Signal::Child), _) => {
                if let Some(ended) = reap(main.as_ref(), agent) {
                    return ended;
                }
            }
            (Some(Signal::Stop), None) => return Ended::exit(0),
            (Some(Signal::Stop), Some(main)) if kill_at.is_none() => {
                system::kill(main.pid, main.stop.signal);
                kill_at = Some(Instant::now() + main.stop.patience);
            }
            (Some(Signal::Forward(number)), Some(main)) => system::kill(main.pid, number),
            (Some(Signal::Stop | Signal::Forward(_)) | None, _) => {}
        }
        while let Some(message) = agent.next_message() {
            match message {
                ToInit::Start(start) if main.is_none() && start.process.is_init => {
                    agent.tell(&ToAgent::BecomesInit, &[]);
                    keeper::leave(agent);
                    let ended = process::become_init(&start.process, main_process::hostname().as_deref());
                    agent.tell_last(&ToAgent::NotStarted(ended.clone()));
                    return ended;
                }
                ToInit::Start(start) if main.is_none() => match started(*start, agent) {
                    Ok(started) => main = Some(started),
                    Err(ended) => {
                        agent.tell_last(&ToAgent::NotStarted(ended.clone()));
                        return ended;
                    }
                },
                // An earlier agent has started it.
                ToInit::Start(_) => agent.tell_running(),
                ToInit::CloseStdin => agent.close_stdin(),
                ToInit::Told => {}
            }
        }
        agent.start_if_due();
        if let (Some(main), Some(moment)) = (&main, kill_at)
            && moment <= Instant::now()
        {
            kill_at = None;
            // A process of root may have left its group.
            cgroup::kill_main();
            system::kill(main.pid, libc::SIGKILL);
        }
    }
}

/// Reaps children. Returns the end of the main process, once the agent's clients know it.
fn reap(main: Option<&Main>, agent: &mut Agent) -> Option<Ended> {
    while let Some((child, status)) = next_ended() {
        agent.child_ended(child);
        if main.is_some_and(|main| main.pid == child) {
            let ended = ended(status);
            // Its descendants would write on while clients take the last output.
            cgroup::kill_main();
            agent.tell_last(&ToAgent::Ended(ended.clone()));
            return Some(ended);
        }
    }
    None
}

/// Starts the main process for the agent.
fn started(start: StartMain, agent: &mut Agent) -> Result<Main, Ended> {
    let stop = Stop::new(&start.process).map_err(|why| Ended::not_started(NOT_PREPARED, why))?;
    let (pid, kept) = main_process::start(start)?;
    agent.keep(kept);
    Ok(Main { pid, stop })
}

/// Reaps a child that has ended.
pub(super) fn next_ended() -> Option<(Pid, WaitStatus)> {
    wait(WaitOptions::NOHANG).ok().flatten()
}

fn ended(status: WaitStatus) -> Ended {
    let low = |number: i32| (number & 0xff) as u8;
    let ended = match (status.exit_status(), status.terminating_signal()) {
        (Some(status), _) => Ended::exit(low(status)),
        (None, signal) => Ended::signal(low(signal.unwrap_or_default())),
    };
    Ended { out_of_memory: cgroup::ran_out_of_memory(), ..ended }
}
