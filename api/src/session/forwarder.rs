//! `--publish`: a process that serves the forwards of a VM until the VM ends, also after its client.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use super::helper;
use crate::agent::Agent;
use crate::agent::forwarding::{Forwarding, Listening};
use crate::descriptors::allow_descriptors;
use crate::failure::Failure;
use crate::run_dir::record::Record;
use crate::run_dir::root::RunRoot;
use crate::run_dir::{files, listing};

/// Starts the process for a claimed name. If the VM does not start, it ends with the claim. This process has
/// one thread, and closes its descriptors of the ports.
///
/// # Errors
/// The host refuses a process.
pub(super) fn start(root: &RunRoot, record: &Record, ports: Vec<Listening>) -> Result<(), Failure> {
    if ports.is_empty() {
        return Ok(());
    }
    let kept: Vec<_> = ports.iter().map(|port| port.listener().as_raw_fd()).collect();
    let act = "start the process that forwards ports";
    helper::start(c"volt-forwarder", act, &kept, || serve(root, record, ports))
}

fn serve(root: &RunRoot, record: &Record, ports: Vec<Listening>) -> Result<(), Failure> {
    let vm = listing::find(root, record.name.as_str())?;
    if vm.record.id != record.id {
        return Ok(());
    }
    // Its messages are those of the VM's process.
    let log = vm.file(files::LOG);
    let opened = File::options().append(true).open(&log);
    let log = opened.map_err(|error| Failure::run_dir(&log, format!("cannot open it: {error}")))?;
    rustix::stdio::dup2_stderr(&log).map_err(|errno| Failure::system("write to the VM's log", errno))?;
    allow_descriptors();
    let agent = Agent::new(&vm.file(files::VSOCK), record.name.as_str());
    let vm = Arc::new(vm);
    let forwarding = Forwarding::start(&agent, &vm, ports)?;
    vm.wait()?;
    forwarding.finish();
    Ok(())
}
