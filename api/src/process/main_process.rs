//! Reports of the main process in a VM that runs an image: its output, and its end.
//!
//! ```text
//!   process 1 ── vsock 49984 ──> one line of JSON: the end
//!   agent ────── vsock 49985 ──> all output ──> log, for `volt-vmm logs`
//! ```
//!
//! The device's side of a vsock connects to `SOCKET_PORT` on the host. Both sockets are in the run directory,
//! and are bound before the process confines itself. A guest may send anything: more than the limits, or
//! what is no report, has no effect.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use volt_job::{Ended, ended, output};

use crate::failure::Failure;
use crate::run_dir::files;
use crate::serial::log::SerialLog;
use crate::serial::port::{self, Port};
use crate::threads;

/// Longest report.
const LONGEST: usize = 1 << 20;
/// Most connections of a guest to one port.
const MOST: usize = 16;
/// Bytes of one read of output.
const READ: usize = 64 << 10;

/// An act at the first report or output of the main process, on a thread of its own: neither may wait for it.
#[derive(Clone, Debug, Default)]
struct FirstSign(Arc<Mutex<Option<Awaited>>>);

/// A thread that awaits the first sign, and then acts.
#[derive(Debug)]
struct Awaited {
    sign: SyncSender<()>,
    thread: JoinHandle<()>,
}

impl FirstSign {
    /// Has `act` called at the first sign from now on, or after this time without one.
    fn plan(&self, longest: Duration, act: impl FnOnce() + Send + 'static) {
        let (sign, signs) = sync_channel(1);
        let begun = threads::spawn("main-sign", "for the main process's first sign", move || {
            // The channel is closed if the process ends before.
            if signs.recv_timeout(longest) != Err(RecvTimeoutError::Disconnected) {
                act();
            }
        });
        // Without a thread the act is left out.
        *self.state() = begun.ok().map(|thread| Awaited { sign, thread });
    }

    fn has_come(&self) {
        if let Some(Awaited { sign, .. }) = &*self.state() {
            // It fails once there was one.
            let _ = sign.try_send(());
        }
    }

    /// Leaves the act out if it has not begun, else waits for its end.
    fn finish(&self) {
        let awaited = self.state().take();
        if let Some(Awaited { sign, thread }) = awaited {
            drop(sign);
            let _ = thread.join();
        }
    }

    fn state(&self) -> MutexGuard<'_, Option<Awaited>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct MainProcess {
    output: Port,
    /// The listeners of ends and output, until their threads start.
    listeners: Mutex<Option<[UnixListener; 2]>>,
    ended: Arc<Mutex<Option<Ended>>>,
    first: FirstSign,
}

impl MainProcess {
    /// Opens log and sockets in a run directory.
    ///
    /// # Errors
    /// The host refuses.
    pub(super) fn open(directory: &Path) -> Result<Self, Failure> {
        let failed = |error| Failure::run_dir(directory, format!("cannot open its log: {error}"));
        let [newer, older] = files::MAIN_LOGS.map(|name| directory.join(name));
        let log = SerialLog::begin([&newer, &older]).map_err(failed)?;
        let output = Port::new(log, port::listen(&directory.join(files::MAIN))?, None).map_err(failed)?;
        let listen = |port| {
            let listener = port::listen(&directory.join(format!("{}_{port}", files::VSOCK)))?;
            // The threads wait for connections.
            listener.set_nonblocking(false).map_err(failed)?;
            Ok::<_, Failure>(listener)
        };
        let listeners = [listen(ended::PORT)?, listen(output::PORT)?];
        let listeners = Mutex::new(Some(listeners));
        Ok(Self { output, listeners, ended: Arc::default(), first: FirstSign::default() })
    }

    /// Starts to listen.
    ///
    /// # Errors
    /// The host refuses a thread.
    pub(super) fn start(&self) -> Result<(), Failure> {
        // Keys have another way, to the agent.
        self.output.start(|_| true)?;
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some([ends, outputs]) = listeners else { return Ok(()) };
        let (ended, mut writer) = (Arc::clone(&self.ended), self.output.writer());
        let (first_report, first_output) = (self.first.clone(), self.first.clone());
        threads::spawn("main-end", "to hear of the main process's end", move || {
            serve(&ends, |line, bytes| {
                line.extend_from_slice(bytes);
                let report = report_in(line);
                if let Some(report) = &report {
                    *ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(report.clone());
                    first_report.has_come();
                }
                report.is_none() && line.len() < LONGEST
            });
        })?;
        threads::spawn("main-output", "to take the main process's output", move || {
            serve(&outputs, |_, bytes| {
                let is_written = writer.write_all(bytes).is_ok();
                first_output.has_come();
                is_written
            });
        })?;
        Ok(())
    }

    /// The end of the main process, if process 1 has reported it.
    pub(super) fn ended(&self) -> Option<Ended> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Calls `act` once, as soon as the main process has given a sign of life: output, or its end. One that
    /// is silent for this time counts as if it had.
    pub(super) fn at_first_sign(&self, longest: Duration, act: impl FnOnce() + Send + 'static) {
        self.first.plan(longest, act);
    }

    /// Writes what is left of the output to the log.
    pub(super) fn finish(&self) {
        self.first.finish();
        self.output.finish();
    }
}

/// A connection, and what it has sent of a line.
type Connection = (UnixStream, Vec<u8>);

/// Serves connections, all at once: one that is silent holds no other up. `take` gets bytes, and returns
/// false to close the connection. The newest connections replace the oldest.
fn serve(listener: &UnixListener, mut take: impl FnMut(&mut Vec<u8>, &[u8]) -> bool) {
    let mut open: Vec<Connection> = Vec::new();
    let mut buffer = vec![0; READ];
    loop {
        let mut polled = vec![PollFd::new(listener, PollFlags::IN)];
        polled.extend(open.iter().map(|(stream, _)| PollFd::new(stream, PollFlags::IN)));
        match poll(&mut polled, None) {
            Err(Errno::INTR) => continue,
            Err(_) => return,
            Ok(_) => {}
        }
        let ready: Vec<_> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
        drop(polled);
        let mut is_ready = ready[1..].iter();
        open.retain_mut(|(stream, line)| {
            is_ready.next() != Some(&true)
                || match stream.read(&mut buffer) {
                    Ok(0) => false,
                    Ok(count) => take(line, &buffer[..count]),
                    Err(error) => error.kind() == io::ErrorKind::Interrupted,
                }
        });
        if ready[0]
            && let Ok((stream, _)) = listener.accept()
        {
            if open.len() == MOST {
                open.remove(0);
            }
            open.push((stream, Vec::new()));
        }
    }
}

/// The report in a line that is whole.
fn report_in(line: &[u8]) -> Option<Ended> {
    let line = line.strip_suffix(b"\n")?;
    serde_json::from_slice(line).ok()
}

#[cfg(test)]
mod tests {
    use crate::rest::testing::Dir;

    use super::*;

    #[test]
    fn report_is_a_whole_line_of_json() {
        assert_eq!(report_in(b"{\"status\":7}\n"), Some(Ended::exit(7)));
        for other in [&b"{\"status\":7}"[..], b"\n", b"{}\n", b"\xff\n"] {
            assert_eq!(report_in(other), None);
        }
    }

    #[test]
    fn act_at_the_first_sign_runs_once_and_holds_no_sign_up() {
        let (go, waits) = std::sync::mpsc::channel::<()>();
        let (told, heard) = std::sync::mpsc::channel();
        let sign = FirstSign::default();
        sign.has_come();
        sign.plan(Duration::MAX, move || {
            waits.recv().unwrap();
            told.send(()).unwrap();
        });
        sign.has_come();
        sign.has_come();
        assert!(heard.try_recv().is_err(), "it waits");
        go.send(()).unwrap();
        sign.finish();
        assert_eq!(heard.try_iter().count(), 1);
        sign.finish();
    }

    #[test]
    fn act_of_a_silent_process_runs_after_its_time_and_never_after_the_end() {
        let (told, heard) = std::sync::mpsc::channel();
        let sign = FirstSign::default();
        let other = told.clone();
        sign.plan(Duration::from_millis(1), move || told.send("silent").unwrap());
        assert_eq!(heard.recv(), Ok("silent"));
        sign.finish();
        sign.plan(Duration::MAX, move || other.send("late").unwrap());
        sign.finish();
        assert!(heard.recv().is_err(), "its sender is gone, and sent nothing");
    }

    #[test]
    fn silent_connections_hold_no_other_up() {
        let dir = Dir::new();
        let path = dir.path("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let (told, heard) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            serve(&listener, |line, bytes| {
                line.extend_from_slice(bytes);
                told.send(line.clone()).is_ok() && !line.ends_with(b"\n")
            });
        });
        let silent: Vec<_> = (0..MOST + 3).map(|_| UnixStream::connect(&path).unwrap()).collect();
        let mut speaker = UnixStream::connect(&path).unwrap();
        speaker.write_all(b"line\n").unwrap();
        assert_eq!(heard.recv().unwrap(), b"line\n");
        // Its connection is closed, which tells it that the line was taken.
        assert_eq!(speaker.read(&mut [0]).unwrap(), 0);
        drop(silent);
    }
}
