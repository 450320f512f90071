//! The agent: this program once more, as a child of process 1.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::FdFlags;
use rustix::process::Pid;
use volt_job::quiet;

use super::main_process::Kept;
use super::{cgroup, console, process, system};
use crate::link::{self, ToAgent, ToInit};
use crate::vsock;

/// The vsock port of the agent.
const PORT: u32 = 49983;
/// How long the agent may take to tell its clients the end of the main process. It waits for output, for the
/// first client and for all clients, a second each.
const PATIENCE: Duration = Duration::from_secs(4);
/// Least and most time between two starts.
const REST: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// An agent that has run so long rests least.
const HEALTHY: Duration = Duration::from_secs(60);

/// Returns the time between the last start, after which the agent ran so long, and the next one.
fn rest(last: Duration, ran: Duration) -> Duration {
    let [least, most] = REST;
    if ran >= HEALTHY { least } else { (last * 2).clamp(least, most) }
}

/// Descriptors that all agents have one after another.
struct Lasting {
    /// The sockets, so that hosts that connect between two agents reach the second.
    listener: OwnedFd,
    control: OwnedFd,
    /// The file of settings, so that the second has the token of the first.
    settings: OwnedFd,
}

impl Lasting {
    fn make() -> io::Result<Self> {
        let named = |what: &str, error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"));
        let listen = |port| vsock::listen(port).map_err(|error| named(&format!("vsock port {port}"), error));
        let (listener, control) = (listen(PORT)?, listen(quiet::PORT)?);
        let settings = memfd_create("settings", MemfdFlags::CLOEXEC)
            .map_err(|error| named("a file of memory", error.into()))?;
        Ok(Self { listener, control, settings })
    }
}

/// The agent's process, and the time of its next start.
#[derive(Default)]
pub(super) struct Agent {
    running: Option<Pid>,
    started: Option<Instant>,
    due: Option<Instant>,
    rest: Duration,
    lasting: Option<Lasting>,
    /// Whether agents get a link, over which they ask for the main process.
    has_link: bool,
    link: Option<OwnedFd>,
    main: Option<Kept>,
    upper: Option<OwnedFd>,
}

impl Agent {
    /// Gives each agent from now on a directory of the file system with the root's changes, to freeze it.
    pub(super) fn give_upper(&mut self, upper: OwnedFd) {
        self.upper = Some(upper);
    }

    /// Starts the agent with a link, as each agent after it.
    pub(super) fn start_with_link(&mut self) {
        self.has_link = true;
        self.start();
    }

    /// Starts the agent. A failure is tried again, as an end is.
    pub(super) fn start(&mut self) {
        (self.started, self.due) = (Some(Instant::now()), None);
        match self.spawn() {
            Ok(agent) => {
                self.running = Some(agent);
                self.tell_running();
            }
            Err(error) => {
                console::say(&format!("cannot start the agent: {error}"));
                self.await_rest();
            }
        }
    }

    fn spawn(&mut self) -> io::Result<Pid> {
        let lasting = match self.lasting.take() {
            Some(lasting) => lasting,
            None => Lasting::make()?,
        };
        let Lasting { listener, control, settings } = self.lasting.insert(lasting);
        let mut inherited = vec![
            ("--listen-fd", listener.try_clone()?),
            ("--control-fd", control.try_clone()?),
            ("--settings-fd", settings.try_clone()?),
        ];
        if let Some(upper) = &self.upper {
            inherited.push(("--upper-fd", upper.try_clone()?));
        }
        if self.has_link {
            let (ours, of_agent) = link::pair()?;
            self.link = Some(ours);
            inherited.push(("--init-fd", of_agent));
        }
        // The file of the program is removed, but the kernel still has it.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("volt-agent").arg("--set-clock").current_dir("/");
        for (option, descriptor) in &inherited {
            command.args([*option, &descriptor.as_raw_fd().to_string()]);
        }
        command.env_clear().env("PATH", process::PATH).stdin(Stdio::null());
        let entrance = cgroup::entrance(cgroup::AGENT);
        system::before_exec(&mut command, move || {
            rustix::process::setsid()?;
            if let Some(entrance) = &entrance {
                rustix::io::write(entrance, b"0")?;
            }
            for (_, descriptor) in &inherited {
                rustix::io::fcntl_setfd(descriptor, FdFlags::empty())?;
            }
            Ok(())
        });
        Ok(Pid::from_child(&command.spawn()?))
    }

    /// Closes the link, and starts later agents without one: process 1 no longer answers.
    pub(super) fn close_link(&mut self) {
        (self.link, self.has_link) = (None, false);
    }

    /// Returns the link to the running agent.
    pub(super) fn link(&self) -> Option<BorrowedFd<'_>> {
        self.link.as_ref().map(AsFd::as_fd)
    }

    /// Takes the agent's next message, if there is one.
    pub(super) fn next_message(&mut self) -> Option<ToInit> {
        match link::receive(self.link.as_ref()?) {
            Ok(Some((message, _))) => Some(message),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            // The agent has ended. The next one gets another link.
            _ => {
                self.link = None;
                None
            }
        }
    }

    /// Keeps the streams of the main process, and gives them to the agent.
    pub(super) fn keep(&mut self, main: Kept) {
        self.main = Some(main);
        self.tell_running();
    }

    /// Gives the main process's streams to the agent.
    pub(super) fn tell_running(&self) {
        if let Some(main) = &self.main {
            self.tell(&ToAgent::Running(Box::new(main.running.clone())), &main.ours.descriptors());
        }
    }

    /// Closes the standard input of the main process.
    pub(super) fn close_stdin(&mut self) {
        if let Some(main) = &mut self.main {
            main.close_stdin();
        }
    }

    /// Sends a message to the agent, if there is one.
    pub(super) fn tell(&self, message: &ToAgent, descriptors: &[BorrowedFd<'_>]) {
        if let Some(link) = &self.link
            && let Err(error) = link::send(link, message, descriptors)
        {
            console::say(&format!("cannot tell the agent: {error}"));
        }
    }

    /// Tells the agent the last message, and waits until its clients know.
    pub(super) fn tell_last(&mut self, message: &ToAgent) {
        self.tell(message, &[]);
        let deadline = Instant::now() + PATIENCE;
        while let Some(link) = self.link() {
            let left = deadline.saturating_duration_since(Instant::now());
            system::await_input([link], Some(left));
            if left.is_zero() || self.next_message() == Some(ToInit::Told) {
                return;
            }
        }
    }

    /// Returns the process.
    pub(super) fn running(&self) -> Option<Pid> {
        self.running
    }

    /// Notes the end of a child. If it was the agent, the next start is due after the rest.
    pub(super) fn child_ended(&mut self, child: Pid) {
        if self.running == Some(child) {
            self.running = None;
            console::say("the agent has ended, and starts again");
            self.await_rest();
        }
    }

    fn await_rest(&mut self) {
        if let Some(started) = self.started {
            self.rest = rest(self.rest, started.elapsed());
            self.due = Some(started + self.rest);
        }
    }

    /// Returns the time of the next start, if one is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Starts the agent if that is due.
    pub(super) fn start_if_due(&mut self) {
        if self.due.is_some_and(|due| due <= Instant::now()) {
            self.start();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_grows_until_an_agent_has_run_long_enough() {
        let mut last = Duration::ZERO;
        let rests = [1, 2, 4, 8, 16, 30, 30].map(|expected| {
            last = rest(last, Duration::ZERO);
            (last.as_secs(), expected)
        });
        assert!(rests.iter().all(|(found, expected)| found == expected), "{rests:?}");
        assert_eq!(rest(last, HEALTHY), Duration::from_secs(1));
    }
}
