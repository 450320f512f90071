//! A guest at its console: orders in, answers out (`kernel/guest`).

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::process::Running;
use crate::{OrSay, Result};

/// How long a guest may be silent.
const PATIENCE: Duration = Duration::from_secs(120);

/// A VM whose guest takes orders. Dropped, it is ended.
#[derive(Debug)]
pub struct Guest {
    name: &'static str,
    input: ChildStdin,
    lines: Receiver<String>,
    vmm: Running,
}

/// Result of a measurement in the guest.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Number of operations.
    pub operations: u64,
    /// Number of bytes that they moved.
    pub bytes: u64,
    /// Time of all.
    pub took: Duration,
    /// How long single operations took: p50, p90 and p99.
    pub each: [Duration; 3],
    /// How long single operations took: up to 256 of them, taken evenly from the shortest to the longest.
    pub durations: Vec<Duration>,
}

impl Guest {
    /// Starts a VMM and waits until its guest is ready.
    ///
    /// # Errors
    /// It does not get there.
    pub fn boot(name: &'static str, vmm: &mut Command) -> Result<Self> {
        let (running, input, output) = Running::talking(vmm)?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(std::io::Result::ok) {
                if sender.send(line.trim_end().to_owned()).is_err() {
                    return;
                }
            }
        });
        let guest = Self { name, input, lines, vmm: running };
        guest.lines_until(|line| line.starts_with("volt-init: ready"))?;
        Ok(guest)
    }

    /// Gives an order and waits until it is carried out. Returns what it printed.
    ///
    /// # Errors
    /// The guest says so, or nothing.
    pub fn order(&mut self, order: &str) -> Result<Vec<String>> {
        writeln!(self.input, "{order}").or_say(&format!("talk to the guest of {}", self.name))?;
        let name = order.split(' ').next().unwrap_or_default();
        let (done, failed) = (format!("ok {name}"), format!("error {name}"));
        let mut lines = self.lines_until(|line| line == done || line.starts_with(&failed))?;
        match lines.pop() {
            Some(last) if last == done => Ok(lines),
            last => Err(format!("{}: {order}: {}", self.name, last.unwrap_or_default())),
        }
    }

    /// Gives an order that measures something.
    ///
    /// # Errors
    /// As [`Guest::order`].
    pub fn measure(&mut self, order: &str) -> Result<Measured> {
        let lines = self.order(order)?;
        parse(&lines).ok_or_else(|| format!("{}: {order}: no measurement in {lines:?}", self.name))
    }

    /// Process id of the VMM.
    #[must_use]
    pub fn vmm_id(&self) -> u32 {
        self.vmm.id()
    }

    fn lines_until(&self, is_last: impl Fn(&str) -> bool) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        loop {
            let line = self.lines.recv_timeout(PATIENCE).map_err(|_| {
                format!("the guest of {} is gone or silent; it said last: {lines:?}", self.name)
            })?;
            let last = is_last(&line);
            lines.push(line);
            if last {
                return Ok(lines);
            }
        }
    }
}

fn parse(lines: &[String]) -> Option<Measured> {
    let numbers = |name: &str| -> Option<Vec<u64>> {
        let text = lines.iter().find_map(|line| line.strip_prefix(name))?;
        text.split_whitespace().map(|word| word.parse().ok()).collect()
    };
    let [operations, bytes, took, each @ ..] = <[u64; 6]>::try_from(numbers("measured ")?).ok()?;
    Some(Measured {
        operations,
        bytes,
        took: Duration::from_nanos(took),
        each: each.map(Duration::from_nanos),
        durations: numbers("each")?.into_iter().map(Duration::from_nanos).collect(),
    })
}
