//! Threads with names, as those of the library: `volt-NAME`.

use std::thread::{Builder, JoinHandle};

use crate::failure::Failure;

/// Starts thread `volt-NAME`. `duty` says in an error for what: `to receive signals`.
///
/// # Errors
/// The host cannot start the thread.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    duty: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Failure> {
    let thread = Builder::new().name(format!("volt-{name}")).spawn(body);
    thread.map_err(|source| Failure::system(format!("start a thread {duty}"), source))
}
