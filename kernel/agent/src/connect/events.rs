//! Streams of messages to a client.

use std::io;

use bytes::Bytes;
use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use tokio::sync::mpsc;

use super::codec::{Codec, Form, Message};
use super::{RpcError, envelope};
use crate::reply::{Reply, ReplyBody};

/// Messages between a task and the connection.
const QUEUED: usize = 4;

/// The sending side of a stream.
#[derive(Debug)]
pub struct EventSender {
    codec: Codec,
    pieces: mpsc::Sender<io::Result<Bytes>>,
}

/// The client closed the stream.
#[derive(Debug)]
pub struct Gone;

impl EventSender {
    /// Makes a stream and its response.
    pub fn new(form: Form) -> (Self, Reply) {
        let (pieces, received) = mpsc::channel(QUEUED);
        let mut reply = Response::new(ReplyBody::Pieces(received));
        reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(form.content_type()));
        (Self { codec: form.codec, pieces }, reply)
    }

    /// Sends a message, after earlier ones are on their way.
    pub async fn send<M: Message>(&self, message: &M) -> Result<(), Gone> {
        let envelope = envelope::wrap(&self.codec.encode(message));
        self.pieces.send(Ok(envelope)).await.map_err(|_| Gone)
    }

    /// Ends the stream.
    pub async fn end(self, error: Option<&RpcError>) {
        let _ = self.pieces.send(Ok(envelope::end(error))).await;
    }

    /// Ends the stream well, with one piece of metadata.
    pub async fn end_with(self, name: &str, value: &str) {
        let _ = self.pieces.send(Ok(envelope::end_with(name, value))).await;
    }

    /// Waits until the client closes the stream.
    pub async fn closed(&self) {
        self.pieces.closed().await;
    }
}
