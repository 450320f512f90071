//! Programs that are timed beside each other.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use volt_benches::Result;
use volt_benches::process::Running;
use volt_benches::shuffle::Shuffle;
use volt_benches::stats::Times;

use crate::worker::LoadRequest;

/// A program that is run again and again.
pub struct Contender {
    /// Its name in the table.
    pub name: String,
    command: Command,
    /// Exec to first byte, or request to first byte.
    pub times: Times,
    runs: usize,
    /// File that a killed process leaves, if it would be in the way of the next one.
    remains: Option<PathBuf>,
    /// Loads a snapshot into the process, which waits for it.
    request: Option<LoadRequest>,
    /// Whether a process that is killed would leave something on the host.
    is_asked_to_end: bool,
}

impl Contender {
    /// One that is run so often.
    pub fn new(name: &str, command: Command, runs: usize) -> Self {
        let (name, times) = (name.to_owned(), Times::default());
        Self { name, command, times, runs, remains: None, request: None, is_asked_to_end: false }
    }

    /// This one leaves a file behind when it is killed. The next does not find it.
    pub fn leaving(self, remains: PathBuf) -> Self {
        Self { remains: Some(remains), ..self }
    }

    /// This one waits, and loads a snapshot by a request. It is timed from that request.
    pub fn loading(self, request: LoadRequest) -> Self {
        Self { remains: Some(request.socket.clone()), request: Some(request), ..self }
    }

    /// This one is asked to end, so that it cleans up.
    pub fn asked_to_end(self) -> Self {
        Self { is_asked_to_end: true, ..self }
    }

    fn clean(&self) {
        self.remains.iter().for_each(|path| drop(fs::remove_file(path)));
    }

    fn run(&mut self, pause: Duration) -> Result<()> {
        if self.times.len() < self.runs {
            let took = self.run_once()?;
            self.times.add(took);
            // The kernel finishes the end of a VM meanwhile, so that the next one does not pay for it.
            thread::sleep(pause);
        }
        Ok(())
    }

    fn run_once(&mut self) -> Result<Duration> {
        let (running, took) = match &self.request {
            Some(request) => request.timed(&mut self.command)?,
            None => Running::timed(&mut self.command)?,
        };
        if self.is_asked_to_end {
            running.end()?
        } else {
            drop(running)
        }
        self.clean();
        Ok(took)
    }
}

/// Runs all of them as often as they are to be, each in turn.
///
/// # Errors
/// One of them fails.
pub fn run_in_turn(contenders: &mut [Contender], pause: Duration) -> Result<()> {
    for contender in &mut *contenders {
        // Once for the page cache, and not counted.
        contender.run_once()?;
    }
    let runs = contenders.iter().map(|contender| contender.runs).max().unwrap_or(0);
    let mut order: Vec<usize> = (0..contenders.len()).collect();
    let mut shuffle = Shuffle::default();
    for _ in 0..runs {
        // Not always behind the same one, whose end may still cost time.
        shuffle.next(&mut order);
        for &number in &order {
            contenders[number].run(pause)?;
        }
    }
    Ok(())
}
