//! `volt-vmm port-forward`: ports of this host lead to a VM that runs an image.

use std::io;
use std::sync::Arc;

use clap::Args;
use rustix::event::{PollFd, PollFlags, poll};

use super::exec::{agent_of, running};
use super::wait;
use crate::agent::forwarding::{Forwarding, Listening};
use crate::cli::{Outcome, complete};
use crate::descriptors::allow_descriptors;
use crate::failure::Failure;
use crate::output::print::print;
use crate::process::exit::Status;
use crate::run_dir::forward::Forward;
use crate::run_dir::vm_dir::VmDir;
use crate::terminal::signal_queue::SignalQueue;
use crate::threads;

/// Let ports of this host lead to TCP ports of a running VM that runs an image
///
/// The VM's side is its localhost, so the VM needs no network. Each line of output is an open port. The
/// command goes on until Ctrl-C, or until the VM ends, and then has the VM's status.
///
/// Example: volt-vmm port-forward web 8080:80 0.0.0.0:8443:443
#[derive(Debug, Args)]
pub(crate) struct PortForward {
    /// Name of the VM, or the beginning of its id
    #[arg(add = complete::living_vms())]
    vm: String,

    /// Port of this host and of the VM: [ADDRESS:]HOST:GUEST. The address is 127.0.0.1 if none is given;
    /// HOST 0 is a free port
    #[arg(value_name = "PORTS", required = true)]
    ports: Vec<Forward>,

    /// Print the open ports as JSON
    #[arg(long)]
    json: bool,
}

impl PortForward {
    pub(crate) fn execute(self) -> Outcome {
        let vm = Arc::new(running(&self.vm)?);
        let agent = agent_of(&vm);
        agent.check()?;
        allow_descriptors();
        let failed = |source: io::Error| Failure::system("forward ports", source);
        // Threads that begin later block the signals too.
        let signals = SignalQueue::block_ending().map_err(failed)?;
        let ports = self.ports.iter().map(|port| Listening::open(port, "ports"));
        let ports = ports.collect::<Result<Vec<_>, _>>()?;
        let open: Vec<_> = ports.iter().map(|port| port.forward).collect();
        let ended = end_of(&vm)?;
        let forwarding = Forwarding::start(&agent, &vm, ports)?;
        let line = |forward: &Forward| forward.line(vm.name()) + "\n";
        print(&open, self.json, |open| open.iter().map(line).collect())?;
        loop {
            let mut ready = [PollFd::new(&ended, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
            match poll(&mut ready, None) {
                Err(rustix::io::Errno::INTR) => continue,
                polled => polled.map_err(|errno| failed(errno.into()))?,
            };
            if let Some(signal) = signals.take().first() {
                return Ok(Status::Signal(*signal));
            }
            if !ready[0].revents().is_empty() {
                forwarding.finish();
                return wait::end_as(&vm);
            }
        }
    }
}

/// A pipe that ends with the VM.
fn end_of(vm: &Arc<VmDir>) -> Result<io::PipeReader, Failure> {
    let (ended, tell) = io::pipe().map_err(|source| Failure::system("wait for the VM's end", source))?;
    let vm = Arc::clone(vm);
    let body = move || {
        // The command waits once more, and has the error.
        let _ = vm.wait();
        drop(tell);
    };
    threads::spawn("end", "to wait for the VM's end", body)?;
    Ok(ended)
}
