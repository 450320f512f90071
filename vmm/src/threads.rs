//! Threads with names and confinement. Each name starts with `volt-`, so that `ps -L` and a debugger tell
//! them apart.

use std::fmt::Display;
use std::thread::{self, JoinHandle, Scope, ScopedJoinHandle};

use crate::error::{Error, Result};
use crate::sandbox;
use crate::sandbox::ThreadKind;

/// Bytes of a thread's stack. Where the host makes huge pages of any memory (`always` in
/// /sys/kernel/mm/transparent_hugepage/enabled), the kernel would give a stack of 2 MiB, the standard
/// library's, that much memory at its first touch.
const STACK: usize = 1 << 20;

/// A thread of this name, with a small stack.
pub fn named(name: &str) -> thread::Builder {
    thread::Builder::new().name(name.to_owned()).stack_size(STACK)
}

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
    let thread = named(&name);
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
    let thread = named(&name);
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

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;

    #[test]
    fn stack_is_smaller_than_a_huge_page() {
        let stack = spawn(ThreadKind::Worker, "stack", || {
            let (mut start, mut len) = (std::ptr::null_mut(), 0);
            // SAFETY: the attributes are those of this thread, and destroyed once they were read.
            unsafe {
                let mut attributes = std::mem::zeroed();
                assert_eq!(libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes), 0);
                assert_eq!(
                    libc::pthread_attr_getstack(&raw const attributes, &raw mut start, &raw mut len),
                    0
                );
                libc::pthread_attr_destroy(&raw mut attributes);
            }
            len
        });
        let len = stack.unwrap().join().unwrap();
        assert!((STACK / 2..2 << 20).contains(&len), "{len}");
    }
}
