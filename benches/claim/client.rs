//! A client of a guest's agent, without a process of its own.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use volt_agent_client::{Agent, Command};
use volt_benches::{OrSay, Result};

/// Runs a command by the agent behind a vsock's unix socket. Waits for the end of the connection, at which
/// the first child of a fork keeps its working set. Returns two times since `start`: that of the process's
/// start, and that of its first output.
///
/// # Errors
/// The agent does not answer or refuses, or the command writes nothing.
pub fn first_output(vsock: &Path, argv: &[String], start: Instant) -> Result<[Duration; 2]> {
    let command = Command {
        argv: argv.to_vec(),
        env: BTreeMap::new(),
        cwd: Some("/".to_owned()),
        user: None,
        terminal: None,
        has_input: false,
    };
    let begun = Agent::new(vsock).start(&command).or_say("start a command")?;
    let mut session = begun.map_err(|refusal| refusal.message)?;
    let begun = start.elapsed();
    let mut wrote = None;
    loop {
        let received = session.receive().or_say("read output")?;
        if !received.output.is_empty() {
            wrote.get_or_insert_with(|| start.elapsed());
        }
        if received.is_at_end {
            return Ok([begun, wrote.ok_or("the command wrote nothing")?]);
        }
        let stream = session.output();
        poll(&mut [PollFd::new(&stream, PollFlags::IN)], None).or_say("wait for output")?;
    }
}
