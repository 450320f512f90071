//! The other side of a guest's streams, on the host.

use std::io::{Read, Result, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::guest::Measured;

/// Bytes of one read or write.
const CHUNK: usize = 64 << 10;

/// Act of the other side.
#[derive(Clone, Copy, Debug)]
pub enum Role {
    /// Reads to the end and closes.
    Sink,
    /// Writes for as long as it can.
    MemorySource,
    /// Gives back what comes.
    Echo,
}

/// Where the guest connects to.
#[derive(Debug)]
pub enum Place {
    /// A port.
    Tcp(TcpListener),
    /// A socket of the file system.
    Unix(UnixListener),
}

impl Place {
    /// Waits in the background for one connection, and plays the role on it.
    #[must_use]
    pub fn serve(self, role: Role) -> JoinHandle<Result<()>> {
        std::thread::spawn(move || match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                role.play(stream)
            }
            Self::Unix(listener) => role.play(listener.accept()?.0),
        })
    }
}

impl Role {
    /// Plays the role on a stream to its end.
    ///
    /// # Errors
    /// The stream breaks.
    pub fn play(self, mut stream: impl Read + Write) -> Result<()> {
        let mut bytes = vec![7; CHUNK];
        match self {
            Self::Sink => while stream.read(&mut bytes)? > 0 {},
            // It ends when the other side does.
            Self::MemorySource => while stream.write_all(&bytes).is_ok() {},
            Self::Echo => {
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    stream.write_all(&bytes[..count])?;
                }
            }
        }
        Ok(())
    }
}

/// How fast bytes go through a unix socket between two threads of this program: what a stream over vsock is
/// measured by.
///
/// # Errors
/// The socket breaks.
pub fn unix_copy(ms: u64) -> Result<Measured> {
    let (mut writer, reader) = UnixStream::pair()?;
    let sink = std::thread::spawn(move || Role::Sink.play(reader));
    let bytes = vec![7; CHUNK];
    let (start, mut operations) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_millis(ms) {
        writer.write_all(&bytes)?;
        operations += 1;
    }
    drop(writer);
    let done = sink.join();
    let took = start.elapsed();
    done.unwrap_or(Ok(()))?;
    Ok(Measured {
        operations,
        bytes: operations * CHUNK as u64,
        took,
        each: [Duration::ZERO; 3],
        durations: Vec::new(),
    })
}
