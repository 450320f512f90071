//! Bodies of requests, for threads that wait.

use std::io::{self, Read};

use bytes::{Buf, Bytes};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::mpsc;

const QUEUED: usize = 4;

/// A body, in the thread that reads it.
pub struct Received {
    pieces: mpsc::Receiver<Option<Bytes>>,
    piece: Bytes,
    is_over: bool,
}

/// Takes a body apart into its reader, and a task that must run beside that.
pub fn receive(body: Incoming) -> (Received, impl Future<Output = ()>) {
    let (sender, pieces) = mpsc::channel(QUEUED);
    (Received { pieces, piece: Bytes::new(), is_over: false }, forward(body, sender))
}

/// Hands the body to the thread that reads, until that has enough.
async fn forward(mut body: Incoming, sender: mpsc::Sender<Option<Bytes>>) {
    while let Some(frame) = body.frame().await {
        // The thread sees a body that ends without `None` as cut.
        let Ok(frame) = frame else { return };
        if let Ok(bytes) = frame.into_data()
            && sender.send(Some(bytes)).await.is_err()
        {
            return;
        }
    }
    let _ = sender.send(None).await;
}

impl Read for Received {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() && !self.is_over {
            match self.pieces.blocking_recv() {
                Some(Some(piece)) => self.piece = piece,
                Some(None) => self.is_over = true,
                None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the body ends early")),
            }
        }
        let length = buffer.len().min(self.piece.len());
        buffer[..length].copy_from_slice(&self.piece[..length]);
        self.piece.advance(length);
        Ok(length)
    }
}
