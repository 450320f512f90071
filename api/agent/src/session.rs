//! A stream of a command's output, and its input, for a loop of poll(2).

use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::envelopes::{Unpacked, unpack};
use crate::error::{Error, Result};
use crate::http::Answer;
use crate::input::Input;
use crate::messages::{CallError, Data, Event, Last, Output};
use crate::text::shown;

/// The field at the end of a stream that has the status as a shell shows it.
const STATUS: &str = "volt-status";
/// The field with the offset of the first byte of output.
pub(crate) const OFFSET: &str = "volt-offset";
/// The field that tells one agent of a VM from the next one.
pub(crate) const INSTANCE: &str = "volt-agent";
/// Bytes of one read.
const READ: usize = 64 << 10;

/// Output that came.
#[derive(Debug, Default)]
pub struct Received {
    /// Bytes of the standard output, or of the terminal.
    pub output: Vec<u8>,
    /// Bytes of standard error.
    pub error: Vec<u8>,
    /// Whether no more follows.
    pub is_at_end: bool,
}

/// The end of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The status as a shell shows it.
    pub status: u8,
    /// The cause for a person.
    pub text: String,
}

/// A command that this process follows.
#[derive(Debug)]
pub struct Session {
    stream: UnixStream,
    unread: Vec<u8>,
    input: Option<Input>,
    /// The process id in the guest.
    pub pid: u32,
    /// The offset of the next byte of output.
    pub position: u64,
    /// Tells the agent from a later one, whose offsets begin again at 0.
    pub instance: Option<String>,
    /// The end, once it has come.
    pub end: Option<End>,
}

impl Session {
    /// Waits for the command's start. The inner error is the agent's refusal.
    ///
    /// # Errors
    /// The agent does not answer.
    pub(crate) fn open(answer: Answer) -> Result<std::result::Result<Self, CallError>> {
        if answer.status != 200 {
            let body = answer.body()?;
            return Ok(Err(shown_error(serde_json::from_slice(&body).unwrap_or_default())));
        }
        let position = answer.field(OFFSET).and_then(|offset| offset.parse().ok()).unwrap_or(0);
        let instance = answer.field(INSTANCE).map(str::to_owned);
        let Answer { mut unread, mut stream, .. } = answer;
        let mut buffer = vec![0; READ];
        let pid = loop {
            match next(&mut unread)? {
                Some(Unpacked::Message(Output { event: Event { start: Some(start), .. } })) => {
                    break start.pid;
                }
                Some(Unpacked::Message(_)) => {}
                Some(Unpacked::Last(last)) => return Ok(Err(shown_error(last.error.unwrap_or_default()))),
                None => match stream.read(&mut buffer) {
                    Ok(0) => return Err(Error::NotListening),
                    Ok(count) => unread.extend_from_slice(&buffer[..count]),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error.into()),
                },
            }
        };
        let stream = stream.into_inner();
        stream.set_nonblocking(true)?;
        Ok(Ok(Self { stream, unread, input: None, pid, position, instance, end: None }))
    }

    /// Takes input too.
    pub(crate) fn with_input(mut self, input: Input) -> Self {
        self.input = Some(input);
        self
    }

    /// Adds the messages that have come whole. Returns whether the last one was among them.
    fn take(&mut self, received: &mut Received) -> Result<bool> {
        while let Some(unpacked) = next(&mut self.unread)? {
            match unpacked {
                Unpacked::Message(Output { event }) => {
                    if let Some(data) = event.data {
                        let before = received.output.len() + received.error.len();
                        add(received, data)?;
                        self.position += (received.output.len() + received.error.len() - before) as u64;
                    }
                    if let Some(end) = event.end {
                        // The kernel has no more than a byte for it.
                        let status = if end.exited { (end.exit_code & 0xff) as u8 } else { 255 };
                        self.end = Some(End { status, text: end.status });
                    }
                }
                Unpacked::Last(Last { error: Some(error), .. }) => {
                    let CallError { code, message } = shown_error(error);
                    return Err(Error::refused(code, format!("its agent ended the call: {message}")));
                }
                Unpacked::Last(Last { metadata, .. }) => {
                    let status = metadata.get(STATUS).and_then(|values| values.first()?.parse().ok());
                    if let (Some(end), Some(status)) = (&mut self.end, status) {
                        end.status = status;
                    }
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The descriptor from which output comes. It does not block.
    #[must_use]
    pub fn output(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// The descriptor that takes input, if the command takes any. It does not block.
    #[must_use]
    pub fn input(&self) -> Option<BorrowedFd<'_>> {
        self.input.as_ref().map(Input::descriptor)
    }

    /// Takes the output that has come, without a wait.
    ///
    /// # Errors
    /// The agent speaks another language, or ended the call with an error.
    pub fn receive(&mut self) -> Result<Received> {
        let mut buffer = vec![0; READ];
        let mut received = Received::default();
        match self.stream.read(&mut buffer) {
            Ok(0) => received.is_at_end = true,
            Ok(count) => self.unread.extend_from_slice(&buffer[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => received.is_at_end = true,
        }
        received.is_at_end |= self.take(&mut received)?;
        Ok(received)
    }

    /// Sends input. Returns how many bytes were taken: all of them if the command takes no input.
    ///
    /// # Errors
    /// `WouldBlock`, or the command reads no more.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.input.as_mut().map_or(Ok(bytes.len()), |input| input.send(bytes))
    }

    /// Whether bytes that were taken have not left yet: [`Self::send`] goes on with them.
    #[must_use]
    pub fn is_sending(&self) -> bool {
        self.input.as_ref().is_some_and(Input::is_sending)
    }

    /// Tells that no more input follows. Later calls have no effect.
    pub fn end_input(&mut self) {
        self.input.as_mut().into_iter().for_each(Input::end);
    }
}

/// Adds output that came in one message.
fn add(received: &mut Received, data: Data) -> Result<()> {
    let Data { stdout, stderr, pty } = data;
    let parts = [(stdout, false), (pty, false), (stderr, true)];
    for (text, is_error) in parts.into_iter().filter_map(|(text, is_error)| Some((text?, is_error))) {
        let to = if is_error { &mut received.error } else { &mut received.output };
        let decoded = STANDARD.decode_vec(text, to);
        decoded.map_err(|error| Error::Foreign(format!("sent output that is none: {error}")))?;
    }
    Ok(())
}

/// Takes the next message that has come whole.
fn next(unread: &mut Vec<u8>) -> Result<Option<Unpacked<Output, Last>>> {
    unpack(unread).map_err(|problem| Error::Foreign(format!("sent {problem}")))
}

fn shown_error(error: CallError) -> CallError {
    CallError { message: shown(&error.message), ..error }
}
