//! Threads with names and confinement. Each name starts with `volt-`, so that `ps -L` and a debugger tell
//! them apart.

use std::fmt::Display;
use std::thread::{self, JoinHandle, Scope, ScopedJoinHandle};

use crate::error::{Error, Result};
use crate::sandbox;
use crate::sandbox::ThreadKind;

/// Starts thread `volt-NAME`, confined as its kind wants.
///
/// # Errors
/// [`Error::Host`] if the host refuses a thread.
pub fn spawn<T: Send + 'static>(
    kind: ThreadKind,
    name: impl Display,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    let name = format!("volt-{name}");
    let thread = thread::Builder::new().name(name.clone());
    let parent = sandbox::kind_of_this_thread();
    let confined = move || {
        sandbox::confine_new_thread(parent, kind);
        body()
    };
    thread.spawn(confined).map_err(|source| Error::host(format!("start thread {name}"), source))
}

/// Starts thread `volt-NAME` in a scope. It is confined as the calling thread.
///
/// # Errors
/// As [`spawn`].
pub(crate) fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    body: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    let name = format!("volt-{name}");
    let thread = thread::Builder::new().name(name.clone());
    let parent = sandbox::kind_of_this_thread();
    let inheriting = move || {
        sandbox::inherit(parent);
        body()
    };
    thread
        .spawn_scoped(scope, inheriting)
        .map_err(|source| Error::host(format!("start thread {name}"), source))
}

/// Returns how many threads can run at once.
pub(crate) fn available_parallelism() -> usize {
    // std reads the files of control groups, which a confined thread cannot open.
    let counted = match sandbox::kind_of_this_thread() {
        Some(_) => rustix::thread::sched_getaffinity(None).map(|set| set.count() as usize).ok(),
        None => thread::available_parallelism().map(usize::from).ok(),
    };
    counted.unwrap_or(1)
}

/// Runs `workers`, which take their work from one queue: the last on the calling thread, each other on a
/// thread `volt-NAME`. Returns when all have ended. Without further threads the calling thread does all of
/// the work.
pub(crate) fn share_work<W: FnOnce() + Send>(name: &str, workers: impl IntoIterator<Item = W>) {
    let mut workers: Vec<W> = workers.into_iter().collect();
    let own = workers.pop();
    thread::scope(|scope| {
        for worker in workers {
            let _ = spawn_scoped(scope, name, worker);
        }
        own.into_iter().for_each(|worker| worker());
    });
}
