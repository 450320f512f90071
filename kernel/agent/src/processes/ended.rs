//! The last commands that ended, for clients whose streams broke.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use super::process::Process;
use super::ring::KEPT;

/// Most commands.
const NUMBER: usize = 64;
/// How long a command is kept.
const AGE: Duration = Duration::from_secs(300);
/// Memory of all their output. The last command is kept whole.
const BYTES: usize = KEPT;

/// Ended commands with their times, the oldest first.
#[derive(Default)]
pub struct Ended(VecDeque<(Instant, Rc<Process>)>);

impl Ended {
    /// Adds a command, and drops older ones beyond the limits.
    pub fn add(&mut self, process: &Rc<Process>, now: Instant) {
        self.0.push_back((now, Rc::clone(process)));
        let mut bytes = 0;
        let fits = |(_, process): &&(Instant, Rc<Process>)| {
            bytes += process.cost();
            bytes <= BYTES
        };
        let kept = self.0.iter().rev().take(NUMBER).take_while(fits).count().max(1);
        self.0.drain(..self.0.len() - kept);
        self.expire(now);
    }

    /// Drops commands that are too old. Returns the time of the next one.
    pub fn expire(&mut self, now: Instant) -> Option<Instant> {
        self.0.retain(|(ended, _)| *ended + AGE > now);
        self.0.front().map(|(ended, _)| *ended + AGE)
    }

    /// The newest command that is wanted.
    pub fn find(&self, is_wanted: impl Fn(&Process) -> bool) -> Option<Rc<Process>> {
        self.0.iter().rev().map(|(_, process)| process).find(|process| is_wanted(process)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::Pid;

    use super::*;
    use crate::messages::process::ProcessConfig;
    use crate::processes::input::Input;
    use crate::processes::ring::Source;

    fn process(pid: i32, output: usize) -> Rc<Process> {
        let input = Input::pipe(None, None);
        let made = Process::new(Pid::from_raw(pid).unwrap(), ProcessConfig::default(), None, input);
        made.push(Source::Stdout, &vec![0; output]);
        made
    }

    fn pids(ended: &Ended) -> Vec<u32> {
        ended.0.iter().map(|(_, process)| process.id()).collect()
    }

    #[test]
    fn commands_are_dropped_by_number_bytes_and_age() {
        let (mut ended, now) = (Ended::default(), Instant::now());
        (1..=100).for_each(|pid| ended.add(&process(pid, 10), now));
        assert_eq!(pids(&ended), (37..=100).collect::<Vec<_>>());
        // With the overhead of their chunks, two take all but 40 bytes.
        ended.add(&process(101, BYTES / 2 - 1044), now);
        ended.add(&process(102, BYTES / 2 - 1044), now);
        assert_eq!(pids(&ended), [101, 102]);
        ended.add(&process(103, 2 * BYTES), now + AGE / 2);
        assert_eq!(pids(&ended), [103]);
        ended.add(&process(104, 10), now + AGE / 2);
        assert_eq!(pids(&ended), [104]);
        assert_eq!(ended.expire(now + AGE), Some(now + AGE / 2 + AGE));
        assert_eq!(ended.expire(now + 2 * AGE), None);
    }
}
