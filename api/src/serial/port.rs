//! The port between the vCPU that writes serial output and the thread that serves it.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::log::SerialLog;
use super::pending::{PortWriter, Shared};
use super::serve::{self, Served};
use crate::failure::Failure;
use crate::threads;

/// The serial port of this process's VM.
#[derive(Debug)]
pub(crate) struct Port {
    shared: Arc<Shared>,
    /// The parts of the thread, until it starts.
    parts: Mutex<Option<Served>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Port {
    /// Makes a port with its log and its listener. `first` is a client from the guest's first byte on.
    ///
    /// # Errors
    /// The host has no descriptor.
    pub(crate) fn new(log: SerialLog, listener: UnixListener, first: Option<UnixStream>) -> io::Result<Self> {
        let shared = Arc::new(Shared::new()?);
        listener.set_nonblocking(true)?;
        let parts = Served::new(Arc::clone(&shared), log, listener, first)?;
        Ok(Self { shared, parts: Mutex::new(Some(parts)), thread: Mutex::default() })
    }

    /// The end of the vCPU.
    pub(crate) fn writer(&self) -> PortWriter {
        PortWriter::of(Arc::clone(&self.shared))
    }

    /// Starts the threads that serve the port. `type_in` gives bytes to the guest, and may wait for it. It
    /// returns false once the guest has ended.
    ///
    /// # Errors
    /// The host refuses a thread.
    pub(crate) fn start(&self, type_in: impl Fn(&[u8]) -> bool + Send + 'static) -> Result<(), Failure> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(parts) = parts else { return Ok(()) };
        let typist = serve::typist(type_in)?;
        let thread =
            threads::spawn("serial", "to serve the serial port", move || serve::serve(parts, &typist))?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    /// Writes what is left to the log and to clients, within a second, and closes their connections.
    pub(crate) fn finish(&self) {
        self.shared.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        thread.into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Listens at the socket of a serial port. Its file has mode 0600.
///
/// # Errors
/// The path is too long, or the host refuses.
pub(crate) fn listen(path: &Path) -> Result<UnixListener, Failure> {
    let options = volt_vmm::internal::ListenOptions { is_private: true, ..Default::default() };
    let listening = volt_vmm::internal::paths::listen(None, path, options);
    let (listener, _) =
        listening.map_err(|error| Failure::run_dir(path, format!("cannot listen for clients: {error}")))?;
    Ok(listener)
}
