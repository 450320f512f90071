//! Input of commands.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::io::{Errno, write};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::unix::AsyncFd;
use tokio::sync::Mutex;

use crate::connect::{Code, RpcError};
use crate::messages::process::{ProcessInput, PtySize};

/// Where input goes. Writers wait for each other, so pieces stay whole.
pub enum Input {
    /// A pipe, until it is closed. The function closes its duplicates elsewhere.
    Pipe(Mutex<Option<AsyncFd<OwnedFd>>>, Option<Box<dyn Fn()>>),
    /// The controlling side of a terminal.
    Pty(Mutex<()>, Rc<AsyncFd<OwnedFd>>),
}

impl Input {
    /// A pipe. Without one, the input is closed.
    pub fn pipe(pipe: Option<AsyncFd<OwnedFd>>, on_close: Option<Box<dyn Fn()>>) -> Self {
        Self::Pipe(Mutex::new(pipe), on_close)
    }

    /// A terminal.
    pub fn pty(terminal: Rc<AsyncFd<OwnedFd>>) -> Self {
        Self::Pty(Mutex::new(()), terminal)
    }

    /// Writes all input. Waits while the command reads none.
    pub async fn send(&self, input: &ProcessInput) -> Result<(), RpcError> {
        let wrong = |why: &str| Err(RpcError::new(Code::InvalidArgument, why));
        match (self, &input.stdin, &input.pty) {
            (Self::Pipe(pipe, _), Some(bytes), None) => match &*pipe.lock().await {
                Some(pipe) => write_all(pipe, bytes).await,
                None => Err(RpcError::new(Code::FailedPrecondition, "the standard input is closed")),
            },
            (Self::Pty(one, terminal), None, Some(bytes)) => {
                let _one = one.lock().await;
                write_all(terminal, bytes).await
            }
            (Self::Pipe(..), None, Some(_)) => wrong("the command has no terminal"),
            (Self::Pty(..), Some(_), None) => wrong("the command has a terminal: send input to it"),
            _ => wrong("input needs exactly one of stdin and pty"),
        }
    }

    /// Closes the standard input.
    pub async fn close(&self) -> Result<(), RpcError> {
        match self {
            Self::Pipe(pipe, on_close) => {
                if let (Some(_), Some(close)) = (pipe.lock().await.take(), on_close) {
                    close();
                }
                Ok(())
            }
            Self::Pty(..) => {
                let why = "a terminal has no end of input: send the character 4 (Ctrl-D)";
                Err(RpcError::new(Code::FailedPrecondition, why))
            }
        }
    }

    /// Sets the terminal's size.
    pub fn resize(&self, size: &PtySize) -> Result<(), RpcError> {
        let Self::Pty(_, terminal) = self else {
            return Err(RpcError::new(Code::FailedPrecondition, "the command has no terminal"));
        };
        tcsetwinsize(terminal.get_ref(), window(size))
            .map_err(|error| RpcError::of_file("set the terminal's size", &error.into()))
    }
}

/// The kernel's form of a size.
pub fn window(size: &PtySize) -> Winsize {
    let short = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
    Winsize { ws_row: short(size.rows), ws_col: short(size.cols), ws_xpixel: 0, ws_ypixel: 0 }
}

/// Writes all bytes to a descriptor that does not block.
pub async fn write_all(target: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> Result<(), RpcError> {
    let failed = |error: std::io::Error| match error.raw_os_error() {
        Some(code) if code == Errno::PIPE.raw_os_error() => {
            RpcError::new(Code::FailedPrecondition, "the command reads no more input")
        }
        _ => RpcError::of_file("write input", &error),
    };
    while !bytes.is_empty() {
        let mut ready = target.writable().await.map_err(failed)?;
        match ready.try_io(|target| Ok(write(target.get_ref(), bytes)?)) {
            Ok(Ok(written)) => bytes = &bytes[written..],
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Ok(Err(error)) => return Err(failed(error)),
            // The descriptor was not ready.
            Err(_) => {}
        }
    }
    Ok(())
}
