//! The output of a child, collected by a thread.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::patience::{patience, wait_until};

/// The output of a stream. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Transcript(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<Collected>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Collected {
    bytes: Vec<u8>,
    ended: bool,
    /// A duplicate of the stream, for the number of unread bytes.
    stream: Option<OwnedFd>,
}

impl Transcript {
    /// Collects from `stream` until it ends.
    pub(crate) fn of(mut stream: impl Read + AsFd + Send + 'static) -> Self {
        let transcript = Self::default();
        transcript.lock().stream = Some(stream.as_fd().try_clone_to_owned().expect("duplicate a stream"));
        let collected = transcript.clone();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                if poll(&mut [PollFd::new(&stream, PollFlags::IN)], None).is_err() {
                    continue; // interrupted
                }
                // Reads under the lock, so each byte is either in the stream or in `bytes`.
                let mut state = collected.lock();
                match stream.read(&mut buffer) {
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    // A terminal whose other end is closed gives EIO.
                    Ok(0) | Err(_) => state.ended = true,
                    Ok(count) => state.bytes.extend_from_slice(&buffer[..count]),
                }
                collected.0.changed.notify_all();
                if state.ended {
                    break;
                }
            }
        });
        transcript
    }

    /// Waits until all written bytes are read. The stream need not end, because another process may have its
    /// other end.
    pub(crate) fn wait_read(&self) {
        wait_until("written bytes are read", || {
            let state = self.lock();
            let left = state.stream.as_ref().map_or(Ok(0), rustix::io::ioctl_fionread);
            state.ended || left == Ok(0)
        });
    }

    fn lock(&self) -> MutexGuard<'_, Collected> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all output so far.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.lock().bytes).into_owned()
    }

    /// Returns the number of bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().bytes.len()
    }

    /// Tells whether nothing has come yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tells whether the stream has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// Waits for the end of the stream.
    pub(crate) fn wait_end(&self) {
        let state = self.lock();
        let waited = self.0.changed.wait_timeout_while(state, patience(), |state| !state.ended);
        let ended = waited.map_or_else(|poisoned| poisoned.into_inner().0.ended, |(state, _)| state.ended);
        assert!(ended || thread::panicking(), "waited {:?} in vain until a stream ended", patience());
    }

    /// Waits until `find` finds something in the bytes after `from`. Returns `None` if the stream ends or
    /// time is up.
    pub(crate) fn find<T>(&self, from: usize, mut find: impl FnMut(&[u8]) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + patience();
        let mut state = self.lock();
        loop {
            if let Some(found) = find(&state.bytes[from..]) {
                return Some(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.ended || left == Duration::ZERO {
                return None;
            }
            state = self.0.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until no more output comes.
    pub(crate) fn settle(&self) {
        let quiet = patience() / 300;
        wait_until("nothing comes any more", || {
            let before = self.len();
            thread::sleep(quiet);
            self.len() == before
        });
    }
}
