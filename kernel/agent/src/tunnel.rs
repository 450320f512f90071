//! Bytes between two streams.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes that are under way in one direction.
const BUFFER: usize = 32 << 10;

/// Passes bytes one way, and then their end. A receiver that takes no more ends the way too.
///
/// An error is the sender's: it broke off, so that its end must not look like a whole one.
pub async fn one_way(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            // A receiver that has left needs no end.
            let _ = to.shutdown().await;
            return Ok(());
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{duplex, split};

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn answer_comes_whole_after_the_end_of_the_question() {
        let question: Vec<u8> = (0..1 << 20).map(|number: u32| number.to_le_bytes()[1]).collect();
        // Small pipes: nothing but what is under way is kept.
        let ((mut client, near), (far, server)) = (duplex(100), duplex(1000));
        let ((from_client, to_client), (from_server, to_server)) = (split(near), split(far));
        let (mut server_reads, mut server_writes) = split(server);
        let serve = async {
            let mut found = Vec::new();
            server_reads.read_to_end(&mut found).await.unwrap();
            server_writes.write_all(&found).await.unwrap();
            server_writes.shutdown().await.unwrap();
        };
        let ask = async {
            client.write_all(&question).await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            answer
        };
        let (to, back) = (one_way(from_client, to_server), one_way(from_server, to_client));
        let (to, back, (), answer) = tokio::join!(to, back, serve, ask);
        to.and(back).unwrap();
        assert!(answer == question, "{} bytes", answer.len());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn receiver_that_takes_no_more_ends_the_way() {
        let ((mut client, near), (far, server)) = (duplex(100), duplex(100));
        drop(server);
        client.write_all(b"bytes").await.unwrap();
        one_way(near, far).await.unwrap();
    }
}
