//! A process that waits for a snapshot, and the request that loads one into it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use volt_benches::process::Running;
use volt_benches::{OrSay, Result};

/// How long a step may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How long a process is left alone when it serves its API: the threads of its VM come up meanwhile.
const SETTLED: Duration = Duration::from_millis(20);

/// A request of the REST API that restores a snapshot.
pub struct LoadRequest {
    /// The socket of the API.
    pub socket: PathBuf,
    text: String,
}

impl LoadRequest {
    /// One for the snapshot in `dir`.
    pub fn new(socket: PathBuf, dir: &Path) -> Self {
        let body = serde_json::json!({ "snapshot_path": dir, "resume_vm": true }).to_string();
        let head = "PUT /snapshot/load HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
        Self { socket, text: format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()) }
    }

    /// Starts the process and loads the snapshot when it waits. Returns the time from the connection to the
    /// API to the guest's first byte.
    ///
    /// # Errors
    /// The process does not start, or does not load the snapshot.
    pub fn timed(&self, command: &mut Command) -> Result<(Running, Duration)> {
        let mut running = Running::start(command)?;
        self.wait_for_api()?;
        thread::sleep(SETTLED);
        let start = Instant::now();
        let mut api = UnixStream::connect(&self.socket).or_say("reach the API")?;
        api.write_all(self.text.as_bytes()).or_say("send a request")?;
        wait_for_output(&running, &mut api)?;
        running.first_byte()?;
        Ok((running, start.elapsed()))
    }

    fn wait_for_api(&self) -> Result<()> {
        let start = Instant::now();
        while let Err(error) = UnixStream::connect(&self.socket) {
            if start.elapsed() > LIMIT {
                return Err(error).or_say("reach the API");
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Waits for output of the process. A load that fails is answered, and has no output.
fn wait_for_output(running: &Running, api: &mut UnixStream) -> Result<()> {
    let output = running.output().ok_or("a process without a pipe")?;
    let limit = Timespec::try_from(LIMIT).or_say("set a time limit")?;
    let is_ready = |fds: &mut [PollFd<'_>]| poll(fds, Some(&limit)).or_say("wait for a guest");
    let mut both = [PollFd::new(output, PollFlags::IN), PollFd::new(&*api, PollFlags::IN)];
    is_ready(&mut both)?;
    if !both[0].revents().is_empty() {
        return Ok(());
    }
    if both[1].revents().is_empty() {
        return Err("neither the guest nor the API says anything".to_owned());
    }
    let mut buffer = [0; 4096];
    let read = api.read(&mut buffer).or_say("read an answer")?;
    let answer = String::from_utf8_lossy(&buffer[..read]);
    if !answer.starts_with("HTTP/1.1 204") {
        return Err(format!("the snapshot is not loaded: {answer}"));
    }
    match is_ready(&mut [PollFd::new(output, PollFlags::IN)])? {
        0 => Err("the guest says nothing".to_owned()),
        _ => Ok(()),
    }
}
