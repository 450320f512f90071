//! Accepts connections over TCP and vsock.
//!
//! A stream socket of any family is read and written alike, so one type of stream serves both.

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as BlockingStream;

use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

use crate::descriptor::{inherited, register};
use crate::options::Listen;
use crate::vsock;

/// The address that accepts connections.
pub struct Listener {
    socket: Socket,
}

enum Socket {
    Tcp(tokio::net::TcpListener),
    Vsock { socket: AsyncFd<OwnedFd>, allow_local: bool },
}

impl Listener {
    /// Binds the address.
    pub fn bind(listen: &Listen) -> io::Result<Self> {
        let socket = match *listen {
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address)
                    .map_err(|error| named(&error, &format!("cannot listen on {address}")))?;
                listener.set_nonblocking(true)?;
                Socket::Tcp(tokio::net::TcpListener::from_std(listener)?)
            }
            Listen::Vsock { port, allow_local } => {
                let socket = vsock::listen(port)
                    .map_err(|error| named(&error, &format!("cannot listen on vsock port {port}")))?;
                Socket::Vsock { socket: register(socket)?, allow_local }
            }
            Listen::Inherited(number) => {
                let socket = inherited(number)
                    .map_err(|error| named(&error, &format!("cannot take descriptor {number}")))?;
                Socket::Vsock { socket: register(socket)?, allow_local: false }
            }
        };
        Ok(Self { socket })
    }

    /// Waits for a connection that may come in.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let stream = BlockingStream::from(OwnedFd::from(stream.into_std()?));
                UnixStream::from_std(stream)
            }
            Socket::Vsock { socket, allow_local } => loop {
                let mut ready = socket.readable().await?;
                let Ok(accepted) = ready.try_io(|socket| vsock::accept(socket.get_ref())) else { continue };
                let (stream, from) = accepted?;
                let is_welcome =
                    from == libc::VMADDR_CID_HOST || (*allow_local && from == libc::VMADDR_CID_LOCAL);
                if is_welcome {
                    return UnixStream::from_std(BlockingStream::from(stream));
                }
            },
        }
    }
}

fn named(error: &io::Error, act: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{act}: {error}"))
}
