//! Threads with names, as those of the library: `volt-NAME`.

use std::thread::JoinHandle;

use volt_vmm::Error;
use volt_vmm::internal::spawn_thread;
use volt_vmm::sandbox::ThreadKind;

use crate::failure::Failure;

/// Starts thread `volt-NAME`, confined as a worker. `duty` says in an error for what: `to receive signals`.
///
/// # Errors
/// The host cannot start the thread.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    duty: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Failure> {
    spawn_thread(ThreadKind::Worker, name, body).map_err(|error| match error {
        Error::Host { source, .. } => Failure::system(format!("start a thread {duty}"), source),
        error => error.into(),
    })
}
