//! Commands in a guest: their start, and requests about them.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;
use volt_job::start::{self, Size, Started};
use volt_job::{Ended, StartMain};

use crate::envelopes::pack;
use crate::error::{Error, Result};
use crate::http::{Answer, Request};
use crate::input::{Input, InputKind};
use crate::messages::{About, CallError, Config, Pty, Running, Selected, Start};
use crate::session::{INSTANCE, OFFSET, Session};
use crate::text::shown;
use crate::{ANSWER, Agent};

/// Time between two attempts to follow a main process that the agent does not know yet.
const AGAIN: Duration = Duration::from_millis(50);
/// Longest list of commands, with their arguments and variables.
const LONGEST_LIST: u64 = 16 << 20;
/// Longest time for an answer that a loop waits for.
const SHORT: Duration = Duration::from_secs(1);
/// SIGKILL.
const KILL: i32 = 9;
const STREAM: &str = "application/connect+json";

/// A command to start.
#[derive(Clone, Debug)]
pub struct Command {
    /// The program, which the guest looks for, and its arguments.
    pub argv: Vec<String>,
    /// Its variables, beside those that the agent adds.
    pub env: BTreeMap<String, String>,
    /// Its working directory, else the home of its user.
    pub cwd: Option<String>,
    /// `USER[:GROUP]`, names or numbers.
    pub user: Option<String>,
    /// The size of its terminal, if it has one.
    pub terminal: Option<Size>,
    /// Whether it gets input.
    pub has_input: bool,
}

/// Why the main process did not start.
#[derive(Debug)]
pub enum MainRefusal {
    /// It cannot: the status is one of a shell.
    Ended(Ended),
    /// The VM has one already.
    Exists,
}

/// The refusal of an object, with its name.
fn refusal(object: &str, answer: Answer) -> Error {
    let refusal = answer.refusal();
    let message = format!("its agent refuses {object}: {refusal}");
    Error::refused(refusal.code().unwrap_or_default(), message)
}

/// Whether an error is that of a connection that the other side has closed.
fn is_closed(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// A signal for a command.
#[derive(Debug, Serialize)]
struct SignalFor<'a> {
    #[serde(flatten)]
    process: &'a Selected,
    signal: i32,
}

impl Agent {
    /// Starts a command. The inner error is the agent's refusal.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn start(&self, command: &Command) -> Result<std::result::Result<Session, CallError>> {
        let (program, arguments) = command.argv.split_first().expect("a command has a program");
        let process =
            Config { cmd: program, args: arguments, envs: &command.env, cwd: command.cwd.as_deref() };
        let pty = command.terminal.map(|size| Pty { size });
        let start = Start { process, pty, tag: None, stdin: command.has_input };
        let mut request = Request::new("POST", "/process.Process/Start").body(STREAM, pack(&start));
        if let Some(user) = &command.user {
            request = request.field("volt-user", user);
        }
        let answer = self.call(&request)?;
        let session = match Session::open(answer)? {
            Ok(session) => session,
            refused => return Ok(refused),
        };
        let selected = Selected::Pid(session.pid);
        let kind = InputKind { is_terminal: command.terminal.is_some(), is_whole: true };
        let session = self.with_input(session, &selected, command.has_input.then_some(kind));
        if session.is_err() {
            // It would wait for its input. Its agent may not answer now either.
            let _ = self.signal(&selected, KILL);
        }
        session.map(Ok)
    }

    /// Starts the main process. Returns its process id.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn start_main(&self, main: &StartMain) -> Result<std::result::Result<u32, MainRefusal>> {
        let answer = self.call(&Request::new("POST", start::PATH).json(main))?;
        let status = answer.status;
        if !matches!(status, 200 | 409 | 422) {
            return Err(refusal("its main process", answer));
        }
        let body = answer.body()?;
        let foreign = || Error::Foreign(format!("answers with status {status}, and no JSON of a start"));
        Ok(match status {
            200 => Ok(serde_json::from_slice::<Started>(&body).map_err(|_| foreign())?.pid),
            409 => Err(MainRefusal::Exists),
            _ => {
                let ended: Ended = serde_json::from_slice(&body).map_err(|_| foreign())?;
                Err(MainRefusal::Ended(Ended { error: ended.error.as_deref().map(shown), ..ended }))
            }
        })
    }

    /// Follows the main process, `from_start` of its output on, as far as the agent has it, or from now on.
    ///
    /// # Errors
    /// There is none, or the agent does not answer.
    pub fn follow_main(&self, from_start: bool, input: Option<InputKind>) -> Result<Session> {
        self.follow_from(from_start.then_some((0, None)), input)
    }

    /// Follows the main process from an offset that holds for an agent.
    fn follow_from(&self, from: Option<(u64, Option<&str>)>, input: Option<InputKind>) -> Result<Session> {
        let mut request = Request::new("POST", "/process.Process/Connect")
            .body(STREAM, pack(&About { process: &Selected::MAIN, pty: None }));
        if let Some((offset, instance)) = from {
            request = request.field(OFFSET, offset.to_string());
            request = instance.into_iter().fold(request, |request, name| request.field(INSTANCE, name));
        }
        let session = Session::open(self.call(&request)?)?;
        let session = session.map_err(|CallError { code, message }| {
            Error::refused(code, format!("its main process cannot be followed: {message}"))
        })?;
        self.with_input(session, &Selected::MAIN, input)
    }

    /// Follows the main process where an earlier session broke off. A new agent has its output from that
    /// agent's start on. It answers before it knows the main process, so this asks again for a while.
    ///
    /// # Errors
    /// The VM has ended, or the agent does not know the process in time.
    pub fn follow_again(
        &self,
        earlier: &Session,
        input: Option<InputKind>,
        is_alive: impl Fn() -> bool,
    ) -> Result<Session> {
        let end = Instant::now() + ANSWER;
        loop {
            match self.follow_from(Some((earlier.position, earlier.instance.as_deref())), input) {
                Err(_) if is_alive() && Instant::now() < end => sleep(AGAIN),
                next => return next,
            }
        }
    }

    fn with_input(&self, session: Session, command: &Selected, kind: Option<InputKind>) -> Result<Session> {
        let Some(kind) = kind else { return Ok(session) };
        Ok(session.with_input(Input::open(self, command, kind)?))
    }

    /// Sends a signal to a command. One that has ended takes none, which is no error.
    ///
    /// # Errors
    /// The agent does not answer, or refuses.
    pub fn signal(&self, process: &Selected, signal: i32) -> Result<()> {
        let request = Request::new("POST", "/volt/signal").json(&SignalFor { process, signal });
        let answer = self.call(&request)?;
        match answer.status {
            204 | 404 => Ok(()),
            _ => Err(refusal(&format!("signal {signal}"), answer)),
        }
    }

    /// Whether a command has ended, so that its last output may be on its way. It has, perhaps, if the agent
    /// closes the connection: it does so before the end of its VM. `None`: no answer comes within a second.
    #[must_use]
    pub fn has_ended(&self, pid: u32) -> Option<bool> {
        let request = Request::new("POST", "/process.Process/List").body("application/json", b"{}".to_vec());
        let listed = self.ask_shortly(SHORT, &request).and_then(|answer| match answer.status {
            200 => Ok(serde_json::from_slice(&answer.body_up_to(LONGEST_LIST)?)?),
            _ => Err(ErrorKind::InvalidData.into()),
        });
        match listed {
            Ok(Running { processes }) => Some(processes.iter().all(|process| process.pid != pid)),
            Err(error) if is_closed(error.kind()) => Some(true),
            Err(_) => None,
        }
    }

    /// Tells a command's terminal its size.
    ///
    /// # Errors
    /// As [`Agent::signal`].
    pub fn resize(&self, process: &Selected, size: Size) -> Result<()> {
        let about = About { process, pty: Some(Pty { size }) };
        let answer = self.call(&Request::new("POST", "/process.Process/Update").json(&about))?;
        match answer.status {
            200..=299 | 404 => Ok(()),
            _ => Err(refusal("a window size", answer)),
        }
    }
}
