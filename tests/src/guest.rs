//! A running `volt-vmm` and the guest in it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::outcome::{Outcome, number};
use crate::patience::{limited, patience};
use crate::progress::without_progress;
use crate::rest;
use crate::scratch::Scratch;
use crate::silence;
use crate::transcript::Transcript;

/// A guest. Its process is killed on drop.
#[derive(Debug)]
pub struct Guest {
    child: Child,
    input: Option<File>,
    output: Transcript,
    on_terminal: bool,
    stderr: Transcript,
    /// How much of the output the test has waited for.
    seen: usize,
    scratch: Scratch,
    socket: PathBuf,
}

impl Guest {
    pub(crate) fn new(
        child: Child,
        input: Option<File>,
        (output, stderr): (Transcript, Transcript),
        on_terminal: bool,
        scratch: Scratch,
        socket: PathBuf,
    ) -> Self {
        Self { child, input, output, on_terminal, stderr, seen: 0, scratch, socket }
    }

    // ---- Its console ----

    /// Waits until the guest says `text`. Output of earlier waits does not count.
    ///
    /// # Panics
    /// The guest ends before, or does not say it in time.
    pub fn wait_for(&mut self, text: &str) -> &mut Self {
        let needle = text.as_bytes();
        let found = self
            .output
            .find(self.seen, |bytes| bytes.windows(needle.len()).position(|window| window == needle));
        match found {
            Some(at) => self.seen += at + needle.len(),
            None => self.give_up(text),
        }
        self
    }

    /// Waits for the next whole line that starts with `start`. Returns the rest of the line.
    ///
    /// # Panics
    /// As [`Guest::wait_for`].
    pub fn next_line(&mut self, start: &str) -> String {
        let Some((end, rest)) = self.output.find(self.seen, |bytes| line(bytes, start)) else {
            self.give_up(start)
        };
        self.seen += end;
        rest
    }

    /// Waits for a line among all output, such as answers to earlier orders.
    ///
    /// # Panics
    /// As [`Guest::wait_for`].
    #[must_use]
    pub fn line_of_all(&self, start: &str) -> String {
        self.output.find(0, |bytes| line(bytes, start)).map_or_else(|| self.give_up(start), |(_, rest)| rest)
    }

    /// Waits for the next line `name N` and returns N.
    ///
    /// # Panics
    /// As [`Guest::wait_for`].
    pub fn next_number(&mut self, name: &str) -> u64 {
        let rest = self.next_line(&format!("{name} "));
        rest.parse().unwrap_or_else(|_| panic!("{name} {rest}: no number"))
    }

    fn give_up(&self, awaited: &str) -> ! {
        let (output, stderr) = (self.output.text(), self.stderr.text());
        let unread = self.input.as_ref().and_then(|input| rustix::io::ioctl_fionread(input).ok());
        let silence = if self.output.has_ended() { String::new() } else { self.explain_silence() };
        panic!(
            "the guest did not say {awaited:?}, but said:\n{output}\nstandard error:\n{stderr}\n\
             unread bytes of its input: {unread:?}\n{silence}"
        )
    }

    /// Reports threads, clocks, timers and interrupts of a guest that does not answer.
    #[must_use]
    pub fn explain_silence(&self) -> String {
        silence::explain(self.pid(), &self.output, &self.scratch, |directory| self.try_snapshot(directory))
    }

    /// Returns all output of the guest.
    #[must_use]
    pub fn output(&self) -> String {
        self.output.text()
    }

    /// Returns all output of a paused guest, once no more comes.
    pub fn settled_output(&self) -> String {
        self.output.settle();
        self.output.text()
    }

    /// Pauses the guest between two lines and returns its output. A snapshot within a line would put the rest
    /// of the line in the output of the restored guest.
    ///
    /// # Panics
    /// The guest's line does not end in time.
    #[must_use]
    pub fn paused_in_whole_lines(&self) -> String {
        loop {
            self.pause();
            let said = self.settled_output();
            if said.is_empty() || said.ends_with('\n') {
                return said;
            }
            self.resume();
            // On a single processor the guest may not have run at all, so another pause has to wait.
            let ended = self.output.find(said.len(), |more| more.contains(&b'\n').then_some(()));
            ended.unwrap_or_else(|| self.give_up("the end of the line"));
        }
    }

    /// Returns volt-vmm's messages.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Returns volt-vmm's messages without lines of progress.
    #[must_use]
    pub fn messages(&self) -> String {
        without_progress(&self.stderr.text())
    }

    /// Types on the guest's console.
    ///
    /// # Panics
    /// The process does not read its input.
    pub fn type_in(&mut self, text: &str) -> &mut Self {
        let input = self.input.as_mut().expect("this guest's input does not come from the test");
        input.write_all(text.as_bytes()).expect("type on the console");
        self
    }

    /// Waits until Linux's init takes orders. Returns the guest's uptime in seconds.
    ///
    /// # Panics
    /// As [`Guest::wait_for`].
    pub fn wait_until_ready(&mut self) -> f64 {
        self.next_line("volt-init: ready ").parse().expect("an uptime")
    }

    /// Gives an order to Linux's init and waits until it is done. Returns the lines of the answer, without
    /// messages of the kernel.
    ///
    /// # Panics
    /// The answer is an error.
    pub fn order(&mut self, order: &str) -> Vec<String> {
        let name = order.split(' ').next().unwrap_or_default();
        self.type_in(&format!("{order}\n"));
        let (done, failed) = (format!("ok {name}"), format!("error {name}: "));
        let mut answer = Vec::new();
        loop {
            let line = self.next_line("");
            if line == done {
                return answer;
            }
            assert!(!line.starts_with(&failed), "{order}: {line}");
            if !is_of_kernel(&line) {
                answer.push(line);
            }
        }
    }

    // ---- Its API ----

    /// Sends a request to the API. Returns status and body of the answer.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        rest::ask(&self.socket, method, path, body)
    }

    /// Pauses the guest.
    ///
    /// # Panics
    /// The API refuses.
    pub fn pause(&self) {
        assert_eq!(self.ask("PATCH", "/vm", r#"{"state":"Paused"}"#), (204, String::new()));
    }

    /// Resumes the guest.
    ///
    /// # Panics
    /// The API refuses.
    pub fn resume(&self) {
        assert_eq!(self.ask("PATCH", "/vm", r#"{"state":"Resumed"}"#), (204, String::new()));
    }

    /// Presses the power button, which clients of Firecracker call `SendCtrlAltDel`. A kernel that drives the
    /// keyboard gets these keys.
    ///
    /// # Panics
    /// The API refuses.
    pub fn press_power_button(&self) {
        let press = r#"{"action_type":"SendCtrlAltDel"}"#;
        assert_eq!(self.ask("PUT", "/actions", press), (204, String::new()));
    }

    /// Returns the path of the API's socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Runs `volt-vmm snapshot create` with a path that may be refused.
    #[must_use]
    pub fn try_snapshot(&self, directory: &Path) -> Outcome {
        self.try_snapshot_as(directory, &[])
    }

    /// Runs `volt-vmm snapshot create` with these options.
    #[must_use]
    pub fn try_snapshot_as(&self, directory: &Path, options: &[&str]) -> Outcome {
        drop(rest::connect(&self.socket));
        let words = [
            "snapshot".as_ref(),
            "create".as_ref(),
            directory.as_os_str(),
            "--api-socket".as_ref(),
            self.socket.as_os_str(),
        ];
        Outcome::of(words.into_iter().chain(options.iter().map(OsStr::new)))
    }

    /// Returns the guest's scratch directory.
    #[must_use]
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    // ---- Its process ----

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process.
    ///
    /// # Panics
    /// The process does not exist.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("send a signal to a child");
    }

    /// Kills the process and returns the guest's output.
    ///
    /// # Panics
    /// The process cannot be killed.
    pub fn kill(mut self) -> String {
        self.child.kill().expect("kill a child");
        limited("a killed volt-vmm is gone", || self.child.wait()).expect("wait for a child");
        self.wait_output_end();
        self.output.text()
    }

    /// Waits until the process ends by itself.
    ///
    /// # Panics
    /// The process does not end in time.
    pub fn wait_exit(&mut self) -> Outcome {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait for a child") {
                self.wait_output_end();
                self.stderr.wait_read();
                return Outcome {
                    status: number(status),
                    stdout: self.output.text(),
                    stderr: self.stderr.text(),
                };
            }
            assert!(
                start.elapsed() < patience(),
                "the process does not end; output:\n{}\n{}",
                self.output(),
                self.stderr()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for the end of the output. A pipe ends with the process. A terminal does not, because the test
    /// has its other end.
    fn wait_output_end(&self) {
        if self.on_terminal {
            self.output.settle();
        } else {
            self.output.wait_end();
        }
    }

    /// Tells whether the process still runs.
    ///
    /// # Panics
    /// The process cannot be polled.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("wait for a child").is_none()
    }

    /// Tells whether an access to guest memory waits for a pager. KVM lets a kernel worker wait for a guest
    /// in user mode and halts the vCPU, so the count comes from the kernel's `userfaultfd_show_fdinfo`.
    ///
    /// # Panics
    /// The process has ended.
    #[must_use]
    pub fn waits_for_memory(&self) -> bool {
        let process = PathBuf::from(format!("/proc/{}", self.pid()));
        let has_waiting = |descriptor: fs::DirEntry| {
            let is_userfault = fs::read_link(descriptor.path())
                .is_ok_and(|target| target.as_os_str() == "anon_inode:[userfaultfd]");
            let info = process.join("fdinfo").join(descriptor.file_name());
            let info =
                if is_userfault { fs::read_to_string(info).unwrap_or_default() } else { String::new() };
            let waiting = info.lines().find_map(|line| line.strip_prefix("total:"));
            waiting.is_some_and(|count| count.trim() != "0")
        };
        fs::read_dir(process.join("fd")).expect("the process runs").flatten().any(has_waiting)
    }

    /// Returns the resident memory of the process in KiB.
    ///
    /// # Panics
    /// The process has ended.
    #[must_use]
    pub fn resident_kib(&self) -> u64 {
        resident_kib(self.pid())
    }

    /// Returns the processor time of the process, in the kernel and in user mode.
    ///
    /// # Panics
    /// The process has ended.
    #[must_use]
    pub fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("the process runs");
        let after_name = stat.rsplit(") ").next().expect("a name in brackets");
        let ticks: u64 =
            after_name.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().expect("ticks")).sum();
        Duration::from_millis(ticks * 10) // USER_HZ is 100 on every x86-64 Linux
    }
}

/// Returns the resident memory of a process in KiB, counted page by page. `VmRSS` in `/proc/PID/status` is
/// inaccurate (proc(5)), by megabytes on a host with many processors.
///
/// # Panics
/// The process does not exist.
#[must_use]
pub fn resident_kib(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the process runs");
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:")).expect("an Rss");
    line.trim().trim_end_matches(" kB").parse().expect("a number of kB")
}

/// Finds the first whole line in `bytes` that starts with `start`. Returns where it ends, and the rest of it.
fn line(bytes: &[u8], start: &str) -> Option<(usize, String)> {
    let mut at = 0;
    loop {
        let end = at + bytes[at..].iter().position(|byte| *byte == b'\n')?;
        let line = String::from_utf8_lossy(&bytes[at..end]).trim_end().to_owned();
        at = end + 1;
        if let Some(rest) = line.strip_prefix(start) {
            return Some((at, rest.to_owned()));
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = limited("a killed volt-vmm is gone", || self.child.wait());
    }
}

/// Tells whether a line of the console is the kernel's. It begins with a time: `[   17.346908]
/// hrtimer: interrupt took 30126340 ns`.
fn is_of_kernel(line: &str) -> bool {
    let time = line.strip_prefix('[').and_then(|rest| rest.split_once("] "));
    time.is_some_and(|(time, _)| time.trim_start().parse::<f64>().is_ok())
}
