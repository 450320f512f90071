//! Bodies of responses, and the plain ones.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use tokio::sync::mpsc;

/// A response of the agent.
pub type Reply = Response<ReplyBody>;

/// Content of a response.
#[derive(Debug)]
pub enum ReplyBody {
    /// All of it.
    Whole(Bytes),
    /// Pieces from a task. An error breaks the connection, so the client sees that something is missing.
    Pieces(mpsc::Receiver<io::Result<Bytes>>),
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Pieces(pieces) => {
                pieces.poll_recv(context).map(|piece| piece.map(|bytes| bytes.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Pieces(_) => SizeHint::default(),
        }
    }
}

/// A REST call that fails: an HTTP status and its reason.
#[derive(Debug)]
pub struct Failure {
    /// The status.
    pub status: StatusCode,
    /// The reason, for a human.
    pub message: String,
}

impl Failure {
    /// A failure with this status.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// The status of an error of the file system.
    pub fn of_file(act: &str, error: &io::Error) -> Self {
        let status = match error.kind() {
            io::ErrorKind::NotFound => StatusCode::NOT_FOUND,
            io::ErrorKind::PermissionDenied => StatusCode::FORBIDDEN,
            io::ErrorKind::AlreadyExists => StatusCode::CONFLICT,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StatusCode::INSUFFICIENT_STORAGE,
            io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidFilename
            | io::ErrorKind::UnexpectedEof => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, format!("cannot {act}: {error}"))
    }

    /// The response.
    pub fn reply(&self) -> Reply {
        #[derive(Serialize)]
        struct Told<'a> {
            code: u16,
            message: &'a str,
        }
        json(self.status, &Told { code: self.status.as_u16(), message: &self.message })
    }
}

/// A response without content.
pub fn empty(status: StatusCode) -> Reply {
    with_body(status, "", Bytes::new())
}

/// A response of JSON.
pub fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    // Only maps with keys that are no strings and failing writers fail, and no reply has them.
    let text = serde_json::to_vec(value).unwrap_or_default();
    with_body(status, "application/json", text.into())
}

/// A response with all of its content.
pub fn with_body(status: StatusCode, content_type: &'static str, bytes: Bytes) -> Reply {
    let mut reply = Response::new(ReplyBody::Whole(bytes));
    *reply.status_mut() = status;
    if !content_type.is_empty() {
        reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    reply
}
