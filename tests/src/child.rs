//! Children of forks: processes that their parent's answer names and the test did not start.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

use crate::numbers::numbers;
use crate::patience::{patience, wait_until};
use crate::scratch::list;
use crate::{rest, silence};

/// A child of a fork. On drop its process is killed, and its end is waited for.
#[derive(Debug)]
pub struct Child {
    pid: u32,
    socket: PathBuf,
    id: String,
    serial: PathBuf,
}

impl Child {
    /// Forks the VM behind the API at `socket`. A child serves its API at `NAME.sock` and writes its output
    /// to `NAME.out` in `directory`. The JSON beside a name holds further fields of the request.
    ///
    /// # Panics
    /// The API refuses.
    #[must_use]
    pub fn fork(socket: &Path, directory: &Path, children: &[(&str, Value)], paused: bool) -> Vec<Self> {
        let request = Self::request(directory, children, paused);
        let (status, answer) = rest::ask(socket, "POST", "/v1/vm/fork", &request);
        assert_eq!(status, 200, "{answer}");
        let answer: Value = serde_json::from_str(&answer).expect("an answer in JSON");
        let told = answer["children"].as_array().expect("children");
        assert_eq!(told.len(), children.len(), "{answer}");
        told.iter()
            .zip(children)
            .map(|(told, (name, _))| Self {
                pid: told["pid"].as_u64().and_then(|pid| pid.try_into().ok()).expect("a pid"),
                socket: told["api_socket"].as_str().expect("a socket").into(),
                id: told["id"].as_str().expect("an id").to_owned(),
                serial: directory.join(format!("{name}.out")),
            })
            .collect()
    }

    /// Returns the request for these children.
    #[must_use]
    pub fn request(directory: &Path, children: &[(&str, Value)], paused: bool) -> String {
        let child = |(name, different): &(&str, Value)| {
            let mut child = serde_json::json!({
                "api_socket": directory.join(format!("{name}.sock")),
                "serial": directory.join(format!("{name}.out")),
            });
            let different = different.as_object().expect("an object").clone();
            child.as_object_mut().expect("an object").extend(different);
            child
        };
        let children: Vec<_> = children.iter().map(child).collect();
        serde_json::json!({ "children": children, "paused": paused }).to_string()
    }

    /// Reads a line of `volt-vmm fork`'s output.
    ///
    /// # Panics
    /// The line does not name a child.
    #[must_use]
    pub fn from_line(line: &str, serial: &Path) -> Self {
        let [pid, socket, id] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line:?}") };
        let pid = pid.parse().expect("a pid");
        Self { pid, socket: socket.into(), id: id.to_owned(), serial: serial.to_owned() }
    }

    /// Finds the children that were forked into `directory`, each with its output in `NAME.out`, by their
    /// arguments: of forks whose answer did not arrive.
    #[must_use]
    pub fn all_in(directory: &Path) -> Vec<Self> {
        list("/proc".as_ref())
            .iter()
            .filter_map(|pid| Self::of_process(pid.parse().ok()?, directory))
            .collect()
    }

    fn of_process(pid: u32, directory: &Path) -> Option<Self> {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        let mut arguments = command.split('\0').skip_while(|argument| *argument != "forked");
        let (socket, id) = (PathBuf::from(arguments.nth(2)?), arguments.nth(1)?.to_owned());
        let serial = socket.with_extension("out");
        // Lazily: the drop of a child kills it.
        socket.starts_with(directory).then(|| Self { pid, socket, id, serial })
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the VM's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the path of the API's socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends a request to the API. Returns status and body of the answer.
    #[must_use]
    pub fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        rest::ask(&self.socket, method, path, body)
    }

    /// Returns the child's output since the fork.
    ///
    /// # Panics
    /// The output file cannot be read.
    #[must_use]
    pub fn output(&self) -> String {
        fs::read_to_string(&self.serial).unwrap_or_else(|error| panic!("{}: {error}", self.serial.display()))
    }

    /// Waits until the child has said `name N` with an N of at least `least`.
    ///
    /// # Panics
    /// The child does not get there in time. The message has its last line and where its threads wait.
    pub fn reaches(&self, name: &str, least: u64) {
        let start = Instant::now();
        while numbers(&self.output(), name).last().is_none_or(|number| *number < least) {
            assert!(
                start.elapsed() < patience(),
                "waited {:?} in vain until child {} says {name} {least}; it ends with {:?}\n{}",
                start.elapsed(),
                self.id,
                self.output().lines().last(),
                silence::threads(self.pid)
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops the VM and waits until its process is gone.
    pub fn stop(self) {
        assert_eq!(self.ask("PUT", "/v1/stop", ""), (204, String::new()));
        self.wait_gone();
    }

    /// Waits until the process is gone.
    pub fn wait_gone(&self) {
        wait_until("the child's process is gone", || !Path::new(&format!("/proc/{}", self.pid)).exists());
    }

    /// Returns a field of `/proc/PID/stat`, numbered as in proc(5).
    ///
    /// # Panics
    /// The process is gone.
    #[must_use]
    pub fn stat(&self, field: usize) -> String {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).expect("the process runs");
        let after_name = stat.rsplit(") ").next().expect("a name in brackets");
        after_name.split(' ').nth(field - 3).expect("a field").to_owned()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return };
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        // Another process may have the number by now.
        let command = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        if !String::from_utf8_lossy(&command).contains(&self.id) {
            return;
        }
        let _ = pidfd_send_signal(&process, Signal::KILL);
        // The pidfd is readable once all threads have ended. The locks on their files are released by then.
        let limit = patience().try_into().ok();
        let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], limit.as_ref());
    }
}

/// Whether a process has memory in a file of this name.
///
/// # Panics
/// The process's descriptors cannot be read.
#[must_use]
pub fn has_memfd(pid: u32, name: &str) -> bool {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("read a process's descriptors");
    let links = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok()).collect::<Vec<_>>();
    assert!(!links.is_empty(), "process {pid} has none, or hides them");
    links.iter().any(|link| link.to_string_lossy().starts_with(&format!("/memfd:{name}")))
}
