//! Sends the output of the main process to the host, which keeps it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::{Errno, ioctl_fionbio, read};
use tokio::io::unix::AsyncFd;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use volt_job::output::PORT;

use super::input::write_all;
use super::process::Reader;
use crate::descriptor::register;
use crate::host;

/// How long the host may take to accept, and to end the connection after the last byte.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often, and in what intervals, it connects again after a connection has broken. Meanwhile the main
/// process may have to wait, once it has written 256 KiB.
const ATTEMPTS: u32 = 5;
const INTERVAL: Duration = Duration::from_millis(200);

/// Sends output until the process has ended and the host has taken everything. Connects again after a
/// restore, which ends all connections of the vsock. Without a listener on the host it gives up.
pub async fn send(reader: Reader) {
    let Some(mut socket) = connect().await else { return };
    loop {
        let changed = reader.process().changed();
        if let Some((_, bytes)) = reader.take() {
            if write_all(&socket, &bytes).await.is_err() {
                let Some(next) = connect_again().await else { return };
                socket = next;
                if write_all(&socket, &bytes).await.is_err() {
                    return;
                }
            }
        } else if reader.process().end().is_some() {
            break;
        } else {
            changed.await;
        }
    }
    drop(reader);
    if host::end_writing(socket.get_ref()).is_ok() {
        let _ = timeout(PATIENCE, closed(&socket)).await;
    }
}

/// Connects to the host once more, which may be busy.
async fn connect_again() -> Option<AsyncFd<OwnedFd>> {
    for _ in 0..ATTEMPTS {
        if let Some(socket) = connect().await {
            return Some(socket);
        }
        sleep(INTERVAL).await;
    }
    None
}

/// Connects to the host.
async fn connect() -> Option<AsyncFd<OwnedFd>> {
    let socket = spawn_blocking(|| host::connect(PORT, PATIENCE)).await.ok()?.ok()?;
    ioctl_fionbio(&socket, true).ok()?;
    register(socket).ok()
}

/// Waits for the other end's end.
async fn closed(socket: &AsyncFd<OwnedFd>) {
    while let Ok(mut ready) = socket.readable().await {
        match ready.try_io(|socket| Ok(read(socket.get_ref(), &mut [0; 64])?)) {
            Ok(Ok(0)) => return,
            Ok(Err(error)) if error.raw_os_error() != Some(Errno::INTR.raw_os_error()) => return,
            _ => {}
        }
    }
}
