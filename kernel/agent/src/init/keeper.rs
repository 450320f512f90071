//! The keeper of the agent beside an init of the image: such an init would not start the agent again.
//! Process 1 forks the keeper before it becomes the init.

use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, setsid, waitpid};

use super::agent::Agent;
use super::{cgroup, console, system};

/// Time after which a kernel short of memory is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// Leaves a keeper behind, if there is an agent.
pub(super) fn leave(agent: &mut Agent) {
    if agent.running().is_none() && agent.due().is_none() {
        return;
    }
    match system::fork() {
        Ok(Some(_)) => {}
        Ok(None) => {
            // A panic may not reach what process 1 does at the VM's end.
            let _ = catch_unwind(AssertUnwindSafe(|| keep(agent)));
            std::process::abort();
        }
        Err(error) => console::say(&format!("an agent that ends will not start again: {error}")),
    }
}

/// Starts the agent whenever it has ended. The init ends this process at the VM's end, as all others.
fn keep(agent: &mut Agent) -> ! {
    let _ = setsid();
    let _ = rustix::thread::set_name(c"volt-keeper");
    // A frozen keeper could not start the agent that is to thaw it.
    if let Some(entrance) = cgroup::entrance(cgroup::AGENT) {
        let _ = rustix::io::write(&entrance, b"0");
    }
    system::unblock_signals();
    agent.close_link();
    loop {
        if let Some(running) = agent.running() {
            await_end(running);
            agent.child_ended(running);
        }
        if let Some(due) = agent.due() {
            sleep(due.saturating_duration_since(Instant::now()));
            agent.start_if_due();
        }
    }
}

/// Waits until a process ends. The first agent is a child of process 1, later ones are this process's.
fn await_end(process: Pid) {
    loop {
        match pidfd_open(process, PidfdFlags::empty()) {
            Ok(handle) => {
                system::await_input([handle.as_fd()], None);
                break;
            }
            Err(Errno::SRCH) => break,
            Err(_) => sleep(AGAIN),
        }
    }
    let _ = waitpid(Some(process), WaitOptions::NOHANG);
}
