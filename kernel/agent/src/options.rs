//! The command line.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// Settings of one agent.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    /// Address to serve.
    pub listen: Listen,
    /// Lets `/init` set the wall clock.
    pub set_clock: bool,
    /// The number of an open descriptor: the link to process 1.
    pub init_fd: Option<RawFd>,
    /// The number of an open descriptor: a socket of vsock that listens for the VM's own process.
    pub control_fd: Option<RawFd>,
    /// The number of an open descriptor: a directory of the file system with the root's changes.
    pub upper_fd: Option<RawFd>,
    /// The number of an open descriptor: the file that keeps settings for the next agent.
    pub settings_fd: Option<RawFd>,
}

/// Address to serve.
#[derive(Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address, for tests on a host.
    Tcp(SocketAddr),
    /// A port of vsock.
    Vsock {
        /// The port.
        port: u32,
        /// Accepts programs in the same machine (CID 1) too, for tests.
        allow_local: bool,
    },
    /// The number of an open descriptor: a socket of vsock that listens.
    Inherited(RawFd),
}

/// A command line that the agent refuses.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(why) = self;
        write!(
            formatter,
            "{why}; usage: volt-agent --vsock PORT [--allow-local] | --listen ADDRESS:PORT | --listen-fd FD \
             [--set-clock] [--init-fd FD] [--control-fd FD] [--upper-fd FD] \
             [--settings-fd FD]"
        )
    }
}

/// Reads the arguments after the program's name.
pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Options, Refused> {
    let mut arguments = arguments;
    let (mut tcp, mut vsock, mut inherited, mut allow_local) = (None, None, None, false);
    let (mut set_clock, mut init_fd) = (false, None);
    let (mut control_fd, mut upper_fd, mut settings_fd) = (None, None, None);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--listen" => tcp = Some(value(&mut arguments, "--listen")?),
            "--vsock" => vsock = Some(value(&mut arguments, "--vsock")?),
            "--listen-fd" => inherited = Some(value(&mut arguments, "--listen-fd")?),
            "--allow-local" => allow_local = true,
            "--set-clock" => set_clock = true,
            "--init-fd" => init_fd = Some(value(&mut arguments, "--init-fd")?),
            "--control-fd" => control_fd = Some(value(&mut arguments, "--control-fd")?),
            "--upper-fd" => upper_fd = Some(value(&mut arguments, "--upper-fd")?),
            "--settings-fd" => settings_fd = Some(value(&mut arguments, "--settings-fd")?),
            other => return Err(Refused(format!("unknown argument {other}"))),
        }
    }
    let listen = match (tcp, vsock, inherited) {
        (Some(address), None, None) => Listen::Tcp(address),
        (None, Some(port), None) => Listen::Vsock { port, allow_local },
        (None, None, Some(number)) => Listen::Inherited(number),
        _ => return Err(Refused("exactly one of --vsock, --listen and --listen-fd is required".into())),
    };
    Ok(Options { listen, set_clock, init_fd, control_fd, upper_fd, settings_fd })
}

fn value<T: std::str::FromStr>(
    arguments: &mut impl Iterator<Item = String>,
    name: &str,
) -> Result<T, Refused> {
    let text = arguments.next().ok_or_else(|| Refused(format!("{name} lacks a value")))?;
    text.parse().map_err(|_| Refused(format!("{name} {text} is no valid value")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, Refused> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn vsock_port_refuses_local_programs_by_default() {
        let listen = Listen::Vsock { port: 49983, allow_local: false };
        let (init_fd, control_fd, upper_fd, settings_fd) = (None, None, None, None);
        let options = Options { listen, set_clock: false, init_fd, control_fd, upper_fd, settings_fd };
        assert_eq!(parsed("--vsock 49983"), Ok(options));
    }

    #[test]
    fn line_without_one_address_is_refused() {
        for line in ["", "--vsock", "--vsock x", "--vsock 1 --listen 127.0.0.1:1", "--other"] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
