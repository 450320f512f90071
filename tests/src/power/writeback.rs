//! Writes parts of a file back at random moments, like a host that needs memory, without a flush of the disk.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of one piece. dm-log-writes keeps written data in memory until a flush, which a broken volt-vmm
/// never does, so at most 2 MiB are written per second.
const PIECE: i64 = 64 << 10;
const PAUSE: Duration = Duration::from_millis(30);

/// See the module. The writeback ends on drop.
#[derive(Debug)]
pub struct Writeback {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Writeback {
    /// Starts with this file.
    ///
    /// # Panics
    /// The file cannot be opened.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let len = file.metadata().expect("metadata of an open file").len().max(1) as i64;
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            let mut at = 0;
            while !seen.load(Ordering::Relaxed) {
                // Each piece is far from the last one, so their order differs from that of the writes.
                at = (at + 37 * PIECE) % len;
                let flags = libc::SYNC_FILE_RANGE_WRITE;
                // SAFETY: no memory is passed.
                unsafe { libc::sync_file_range(file.as_raw_fd(), at / PIECE * PIECE, PIECE, flags) };
                std::thread::sleep(PAUSE);
            }
        });
        Self { ended, thread: Some(thread) }
    }
}

impl Drop for Writeback {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
