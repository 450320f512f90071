//! Programs that are timed beside each other.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use volt_benches::Result;
use volt_benches::process::Running;
use volt_benches::stats::Times;

/// A program that is run again and again.
pub struct Contender {
    /// Its name in the table.
    pub name: String,
    command: Command,
    /// Exec to first byte.
    pub times: Times,
    runs: usize,
    /// File that a killed process leaves, if it would be in the way of the next one.
    remains: Option<PathBuf>,
}

impl Contender {
    /// One that is run so often.
    pub fn new(name: &str, command: Command, runs: usize) -> Self {
        Self { name: name.to_owned(), command, times: Times::default(), runs, remains: None }
    }

    /// This one leaves a file behind when it is killed. The next does not find it.
    pub fn leaving(self, remains: PathBuf) -> Self {
        Self { remains: Some(remains), ..self }
    }

    fn clean(&self) {
        self.remains.iter().for_each(|path| drop(fs::remove_file(path)));
    }

    fn run(&mut self, pause: Duration) -> Result<()> {
        if self.times.len() < self.runs {
            let (running, took) = Running::timed(&mut self.command)?;
            self.times.add(took);
            drop(running);
            self.clean();
            // The kernel finishes the end of a VM meanwhile, so that the next one does not pay for it.
            thread::sleep(pause);
        }
        Ok(())
    }
}

/// Runs all of them as often as they are to be, each in turn.
///
/// # Errors
/// One of them fails.
pub fn run_in_turn(contenders: &mut [Contender], pause: Duration) -> Result<()> {
    for contender in &mut *contenders {
        // Once for the page cache.
        drop(Running::timed(&mut contender.command)?);
        contender.clean();
    }
    let runs = contenders.iter().map(|contender| contender.runs).max().unwrap_or(0);
    for run in 0..runs {
        // Not always behind the same one.
        let first = run % contenders.len();
        for number in 0..contenders.len() {
            let number = (first + number) % contenders.len();
            contenders[number].run(pause)?;
        }
    }
    Ok(())
}
