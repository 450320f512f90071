//! A command that runs in a sandbox.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use volt_agent_client as client;
use volt_agent_client::{Agent, Received, Selected, Session};

use crate::error::{Error, Result};
use crate::exec::{Exec, Output};
use crate::face::Blocking;

/// SIGKILL.
const KILL: i32 = 9;
/// Most reads, of 64 KiB each, of output that may have come before a limit.
const LATE_READS: usize = 64;

/// Output of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Bytes of the standard output.
    Stdout(Vec<u8>),
    /// Bytes of standard error.
    Stderr(Vec<u8>),
}

/// A command that runs, from [`Exec::spawn`]. If this is dropped, the command goes on in the guest, and its
/// further output is lost.
#[derive(Debug)]
pub struct Process {
    killer: Killer,
    session: Session,
    /// The input that has not left.
    input: VecDeque<u8>,
    /// When the command is killed, and after how long.
    limit: Option<(Instant, Duration)>,
    /// Output that was not asked for yet.
    waiting: VecDeque<Event>,
    is_at_end: bool,
}

/// Sends signals to a command, also from another thread than that which reads its output.
#[derive(Clone, Debug)]
pub struct Killer {
    agent: Agent,
    sandbox: String,
    /// The act, for errors.
    act: String,
    process: Selected,
}

impl Exec<Blocking> {
    /// Starts the command.
    ///
    /// # Errors
    /// The guest lacks the program ([`Error::is_not_found`]) or the user, or its
    /// agent does not answer.
    pub fn spawn(self) -> Result<Process> {
        Process::start(self)
    }

    /// Runs the command to its end, and collects its output in memory. A status other than 0 is no error.
    ///
    /// # Errors
    /// As [`Exec::spawn`], or the command takes too long ([`Error::TimedOut`]), or
    /// the VM ends before it.
    pub fn output(self) -> Result<Output> {
        self.spawn()?.output()
    }
}

impl Process {
    pub(crate) fn start<Face>(exec: Exec<Face>) -> Result<Self> {
        let Exec { agent, sandbox, mut command, input, limit, .. } = exec;
        let act = format!("run {}", command.argv.first().map_or("a command", String::as_str));
        let refused = |code: String, message: String| {
            Error::of_agent(&sandbox, &act, client::Error::Refused { code, message })
        };
        if command.argv.is_empty() {
            return Err(refused("invalid_argument".to_owned(), "the command names no program".to_owned()));
        }
        command.has_input = input.is_some();
        // A limit beyond the clock's range counts as none.
        let limit = limit.and_then(|limit| Some((Instant::now().checked_add(limit)?, limit)));
        let started = agent.start(&command).map_err(|cause| Error::of_agent(&sandbox, &act, cause))?;
        let session = started.map_err(|error| refused(error.code, error.message))?;
        let killer = Killer { agent, sandbox, act, process: Selected::Pid(session.pid) };
        let (input, waiting) = (input.unwrap_or_default().into(), VecDeque::new());
        let mut process = Self { killer, session, input, limit, waiting, is_at_end: false };
        // Output may have come with the start, and nothing would wake a wait for it.
        let received = process.receive_now()?;
        process.add(received);
        Ok(process)
    }

    /// The process id in the guest.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.session.pid
    }

    /// Waits for output. Returns `None` once the command has ended and all of its output was returned. The
    /// order of events of the two streams may differ from that of the command's writes.
    ///
    /// # Errors
    /// The command takes too long, and is killed; or the VM ends before it.
    pub fn next_event(&mut self) -> Result<Option<Event>> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Ok(Some(event));
            }
            if self.is_at_end {
                return match &self.session.end {
                    Some(_) => Ok(None),
                    None => Err(self.killer.broken()),
                };
            }
            let received = self.receive()?;
            self.add(received);
        }
    }

    fn add(&mut self, received: Received) {
        let Received { output, error, is_at_end } = received;
        let events = [Event::Stdout(output), Event::Stderr(error)];
        self.waiting.extend(events.into_iter().filter(|event| !event.bytes().is_empty()));
        self.is_at_end = is_at_end;
    }

    /// Puts back an event that was taken last.
    #[cfg(feature = "tokio")]
    pub(crate) fn put_back(&mut self, event: Event) {
        self.waiting.push_front(event);
    }

    /// Waits for the command's end, and drops its further output. Returns its status: 128 and the signal's
    /// number after a signal.
    ///
    /// # Errors
    /// As [`Process::next_event`].
    pub fn wait(mut self) -> Result<u8> {
        self.finish()
    }

    /// Waits for the command's end, and collects its further output in memory.
    ///
    /// # Errors
    /// As [`Process::next_event`].
    pub fn output(mut self) -> Result<Output> {
        self.collect()
    }

    pub(crate) fn finish(&mut self) -> Result<u8> {
        while self.next_event()?.is_some() {}
        self.status()
    }

    pub(crate) fn collect(&mut self) -> Result<Output> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while let Some(event) = self.next_event()? {
            match event {
                Event::Stdout(bytes) => stdout.extend(bytes),
                Event::Stderr(bytes) => stderr.extend(bytes),
            }
        }
        Ok(Output { status: self.status()?, stdout, stderr })
    }

    /// Kills the command with its process group. One that has ended takes no harm.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn kill(&self) -> Result<()> {
        self.killer.kill()
    }

    /// The part that sends signals, for another thread.
    #[must_use]
    pub fn killer(&self) -> Killer {
        self.killer.clone()
    }

    fn status(&self) -> Result<u8> {
        self.session.end.as_ref().map(|end| end.status).ok_or_else(|| self.killer.broken())
    }

    /// Sends input, until output or the end comes.
    fn receive(&mut self) -> Result<Received> {
        loop {
            self.send();
            let output = PollFd::from_borrowed_fd(self.session.output(), PollFlags::IN);
            let input = self.session.input().filter(|_| self.session.is_sending());
            let input = input.map(|input| PollFd::from_borrowed_fd(input, PollFlags::OUT));
            let mut polled: Vec<_> = [output].into_iter().chain(input).collect();
            let left = self.limit.map(|(end, _)| end.saturating_duration_since(Instant::now()));
            // One that is longer than the kernel's counts as none.
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut polled, left.as_ref()) {
                Ok(0) => return self.time_out(),
                Ok(_) if polled[0].revents().is_empty() => {}
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.killer.failed(client::Error::Unanswered(error.into()))),
            }
        }
        // Also a command that always writes ends.
        if self.limit.is_some_and(|(end, _)| end <= Instant::now()) {
            return self.time_out();
        }
        self.receive_now()
    }

    fn receive_now(&mut self) -> Result<Received> {
        self.session.receive().map_err(|error| self.killer.failed(error))
    }

    /// Sends as much of the input as the guest takes now, and the end behind it.
    fn send(&mut self) {
        loop {
            let is_empty = self.input.is_empty();
            if is_empty {
                self.session.end_input();
                if !self.session.is_sending() {
                    return;
                }
            }
            match self.session.send(self.input.make_contiguous()) {
                Ok(count) => drop(self.input.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The command reads no more.
                Err(_) => self.input.clear(),
            }
            if is_empty {
                return;
            }
        }
    }

    /// Kills the command, unless it has ended within its limit: the output up to its end may have come while
    /// nobody followed it.
    fn time_out(&mut self) -> Result<Received> {
        let mut all = Received::default();
        for _ in 0..LATE_READS {
            let Received { output, error, is_at_end } = self.receive_now()?;
            let has_come = !output.is_empty() || !error.is_empty();
            all.output.extend(output);
            all.error.extend(error);
            if is_at_end && self.session.end.is_some() {
                return Ok(Received { is_at_end, ..all });
            }
            if !has_come {
                break;
            }
        }
        // The limit is the error, also if the agent does not answer.
        let _ = self.kill();
        let Killer { sandbox, act, .. } = self.killer.clone();
        let limit = self.limit.map_or(Duration::ZERO, |(_, limit)| limit);
        Err(Error::TimedOut { sandbox, act, limit })
    }
}

impl Event {
    /// The bytes, of whichever stream.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Stdout(bytes) | Self::Stderr(bytes) => bytes,
        }
    }
}

impl Killer {
    /// Kills the command with its process group. One that has ended takes no harm.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn kill(&self) -> Result<()> {
        self.signal(KILL)
    }

    /// Sends a signal, by its number on Linux, to the command's process group. One that has ended takes no
    /// harm.
    ///
    /// # Errors
    /// There is no such signal, or the agent does not answer.
    pub fn signal(&self, signal: i32) -> Result<()> {
        self.agent.signal(&self.process, signal).map_err(|error| self.failed(error))
    }

    fn failed(&self, cause: client::Error) -> Error {
        Error::of_agent(&self.sandbox, &self.act, cause)
    }

    fn broken(&self) -> Error {
        let Self { sandbox, act, .. } = self.clone();
        Error::Broken { sandbox, act }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Answer, FakeAgent, stream};

    const START: &str = r#"{"event":{"start":{"pid":7}}}"#;

    #[test]
    fn events_come_until_the_end_with_the_status_of_a_shell() {
        let messages = [
            START,
            r#"{"event":{"data":{"stdout":"aGk="}}}"#,
            r#"{"event":{"data":{"stderr":"bm8="}}}"#,
            r#"{"event":{"end":{"exitCode":-1,"exited":false,"status":"signal: killed"}}}"#,
        ];
        let last = r#"{"metadata":{"volt-status":["137"]}}"#;
        let fake = FakeAgent::new(vec![Answer::Whole(stream(&messages, Some(last)))]);
        let mut process = fake.exec(&["a", "b c"]).env("A", "1").cwd("/x").user("1:2").spawn().unwrap();
        assert_eq!(process.pid(), 7);
        assert_eq!(process.next_event().unwrap(), Some(Event::Stdout(b"hi".to_vec())));
        assert_eq!(process.next_event().unwrap(), Some(Event::Stderr(b"no".to_vec())));
        assert_eq!(process.next_event().unwrap(), None);
        assert_eq!(process.wait().unwrap(), 137);
        let request = fake.requests.recv().unwrap();
        for part in
            ["volt-user: 1:2", r#""cmd":"a","args":["b c"],"envs":{"A":"1"},"cwd":"/x""#, r#""stdin":false"#]
        {
            assert!(request.contains(part), "{part}: {request}");
        }
    }

    #[test]
    fn input_is_sent_whole_beside_the_output() {
        let end = r#"{"event":{"end":{"exitCode":3,"exited":true}}}"#;
        let answer = Answer::Whole(stream(&[START, end], Some("{}")));
        let fake = FakeAgent::new(vec![answer, Answer::Input]);
        let mut process = fake.exec(&["cat"]).stdin(vec![b'x'; 100_000]).spawn().unwrap();
        // The answer is here already, so all input has to leave before its end is read.
        while !process.input.is_empty() || process.session.is_sending() {
            process.send();
        }
        assert_eq!(process.wait().unwrap(), 3);
        assert!(fake.requests.recv().unwrap().contains(r#""stdin":true"#));
        let input = fake.requests.recv().unwrap();
        assert!(
            input.contains("Volt-Close: yes") && input.contains(r#"{"stdin":"eHh4"#),
            "{}",
            &input[..500]
        );
        assert!(input.len() > 4 * 100_000 / 3, "{} bytes", input.len());
    }

    #[test]
    fn command_that_takes_too_long_is_killed() {
        let answers = vec![
            Answer::Open(stream(&[START], None)),
            Answer::Whole(b"HTTP/1.0 204 No Content\r\n\r\n".to_vec()),
        ];
        let fake = FakeAgent::new(answers);
        let error = fake.exec(&["sleep", "9"]).timeout(Duration::from_millis(20)).output().unwrap_err();
        assert_eq!(error.to_string(), "cannot run sleep in sandbox web: it took longer than 0.02 s");
        let _start = fake.requests.recv().unwrap();
        let signal = fake.requests.recv().unwrap();
        assert!(signal.starts_with("POST /volt/signal "), "{signal}");
        assert!(signal.ends_with(r#"{"pid":7,"signal":9}"#), "{signal}");
    }

    #[test]
    fn output_that_comes_with_the_start_is_not_waited_for() {
        let data = r#"{"event":{"data":{"stdout":"aGk="}}}"#;
        let fake = FakeAgent::new(vec![Answer::Open(stream(&[START, data], None))]);
        let mut process = fake.exec(&["a"]).timeout(Duration::from_secs(60)).spawn().unwrap();
        assert_eq!(process.next_event().unwrap(), Some(Event::Stdout(b"hi".to_vec())));
    }

    #[test]
    fn command_that_ended_in_time_is_no_error_however_late_it_is_read() {
        let data = r#"{"event":{"data":{"stdout":"aGk="}}}"#;
        let end = r#"{"event":{"end":{"exitCode":3,"exited":true}}}"#;
        let fake = FakeAgent::new(vec![Answer::Whole(stream(&[START, data, end], Some("{}")))]);
        let process = fake.exec(&["a"]).timeout(Duration::from_millis(20)).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(40));
        let output = process.output().unwrap();
        assert_eq!((output.status, &*output.text()), (3, "hi"));
        let fake = FakeAgent::new(vec![Answer::Whole(stream(&[START, end], Some("{}")))]);
        assert_eq!(fake.exec(&["a"]).timeout(Duration::MAX).output().unwrap().status, 3);
    }

    #[test]
    fn connection_that_breaks_before_the_end_is_an_error() {
        let fake = FakeAgent::new(vec![Answer::Whole(stream(&[START], None))]);
        let error = fake.exec(&["true"]).output().unwrap_err();
        assert!(matches!(&error, Error::Broken { sandbox, .. } if sandbox == "web"), "{error:?}");
    }

    #[test]
    fn refusals_have_their_code() {
        let missing = r#"{"error":{"code":"not_found","message":"cannot start x: No such file"}}"#;
        let fake = FakeAgent::new(vec![Answer::Whole(stream(&[], Some(missing)))]);
        let error = fake.exec(&["x"]).output().unwrap_err();
        assert_eq!(error.to_string(), "cannot run x in sandbox web: cannot start x: No such file");
        assert!(error.is_not_found());
        let error = fake.exec(&[]).output().unwrap_err();
        assert!(error.to_string().contains("names no program") && !error.is_not_found(), "{error}");
    }

    #[test]
    fn vm_that_has_gone_is_told() {
        let dir = crate::testing::Dir::new();
        let agent = Agent::new(&dir.path("vsock"));
        let exec: Exec = Exec::new(agent, "web", vec!["true".to_owned()], Default::default());
        let error = exec.output().unwrap_err().to_string();
        assert_eq!(error, "cannot run true in sandbox web: its agent does not listen; has the VM ended?");
    }
}
