//! A child of a fork: a process that nobody's test started, known by what its parent says of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::numbers::numbers;
use crate::patience::{patience, wait_until};
use crate::{rest, silence};

/// A child. Dropped, its process is killed.
#[derive(Debug)]
pub struct Child {
    pid: u32,
    socket: PathBuf,
    id: String,
    serial: PathBuf,
}

impl Child {
    /// Has a VM, whose API is at `socket`, forked into children that serve theirs at `NAME.sock` and say what
    /// they say in `NAME.out` of `directory`, and which differ from it as the JSON beside their names has it.
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

    /// The request for them.
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

    /// One that `volt-vmm fork` has told of in a line of its output.
    ///
    /// # Panics
    /// That is no such line.
    #[must_use]
    pub fn told(line: &str, serial: &Path) -> Self {
        let [pid, socket, id] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line:?}") };
        let pid = pid.parse().expect("a pid");
        Self { pid, socket: socket.into(), id: id.to_owned(), serial: serial.to_owned() }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its API socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// A request to its API: status and body of the answer.
    #[must_use]
    pub fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        rest::ask(&self.socket, method, path, body)
    }

    /// All that its guest has said since it is one of its own.
    ///
    /// # Panics
    /// Its file is gone.
    #[must_use]
    pub fn output(&self) -> String {
        fs::read_to_string(&self.serial).unwrap_or_else(|error| panic!("{}: {error}", self.serial.display()))
    }

    /// Waits until it has said `name N` with an N of at least `least`.
    ///
    /// # Panics
    /// It does not. Tells what it said last, and where its threads wait.
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

    /// Ends it, and waits until its process is gone altogether.
    pub fn stop(self) {
        assert_eq!(self.ask("PUT", "/v1/stop", ""), (204, String::new()));
        self.wait_gone();
    }

    /// Waits until its process is gone altogether.
    pub fn wait_gone(&self) {
        wait_until("the child's process is gone", || !Path::new(&format!("/proc/{}", self.pid)).exists());
    }

    /// A field of its line in `/proc/PID/stat`, as that numbers them (proc(5)).
    ///
    /// # Panics
    /// It is gone.
    #[must_use]
    pub fn stat(&self, field: usize) -> String {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).expect("the process runs");
        let after_name = stat.rsplit(") ").next().expect("a name in brackets");
        after_name.split(' ').nth(field - 3).expect("a field").to_owned()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Only if the number is still that of what was started there.
        let command = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        if String::from_utf8_lossy(&command).contains(&self.id)
            && let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw)
        {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}
