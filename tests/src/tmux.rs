//! A terminal of tmux, as a user has one: a shell reads its keys, and tmux answers what programs ask it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::patience::{output, wait_until};
use crate::program::binary;
use crate::scratch::Scratch;

/// A terminal of 80 columns and 24 lines. Its server and its shell are ended on drop.
#[derive(Debug)]
pub struct Tmux {
    socket: PathBuf,
    /// The device of the terminal.
    device: String,
    shell: u32,
    _scratch: Scratch,
}

impl Tmux {
    /// Starts a server, and a shell with these variables. Its `volt-vmm` is the program under test.
    ///
    /// # Panics
    /// The server does not start.
    pub fn start(scratch: &Scratch, environment: impl IntoIterator<Item = (&'static str, OsString)>) -> Self {
        let socket = scratch.fresh("tmux");
        let programs = binary().parent().expect("a program has a directory").to_owned();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = [programs.into_os_string(), path].join(":".as_ref());
        let mut command = Command::new("tmux");
        command.arg("-S").arg(&socket).args(["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24"]);
        command.arg("exec sh").envs(environment).env("PATH", path).env_remove("TMUX");
        let started = output(&mut command);
        assert!(started.status.success(), "{started:?}");
        let mut tmux = Self { socket, device: String::new(), shell: 0, _scratch: scratch.clone() };
        tmux.control(&["set-option", "-g", "status", "off"]);
        tmux.device = tmux.control(&["display-message", "-p", "#{pane_tty}"]);
        tmux.shell = tmux.control(&["display-message", "-p", "#{pane_pid}"]).parse().expect("a process");
        tmux.run("echo ready-$((1 + 1))");
        tmux.wait_for("ready-2");
        tmux
    }

    fn control(&self, words: &[&str]) -> String {
        let done = output(Command::new("tmux").arg("-S").arg(&self.socket).args(words));
        assert!(done.status.success(), "{words:?}: {done:?}");
        String::from_utf8_lossy(&done.stdout).trim_end().to_owned()
    }

    /// Types text.
    pub fn type_in(&self, text: &str) {
        self.control(&["send-keys", "-l", text]);
    }

    /// Presses a key by its name, such as `C-a` or `Enter`.
    pub fn press(&self, key: &str) {
        self.control(&["send-keys", key]);
    }

    /// Runs a command line in the shell.
    pub fn run(&self, line: &str) {
        self.type_in(line);
        self.press("Enter");
    }

    /// Changes the size of the window.
    pub fn resize(&self, columns: u32, lines: u32) {
        self.control(&["resize-window", "-x", &columns.to_string(), "-y", &lines.to_string()]);
    }

    /// Returns what the terminal shows.
    #[must_use]
    pub fn screen(&self) -> String {
        self.control(&["capture-pane", "-p", "-J"])
    }

    /// Waits until the terminal shows `text`.
    pub fn wait_for(&self, text: &str) {
        wait_until(&format!("the terminal shows {text:?}"), || self.screen().contains(text));
    }

    /// Returns all modes of the terminal, as stty prints them.
    ///
    /// # Panics
    /// stty cannot tell them.
    #[must_use]
    pub fn modes(&self) -> String {
        let told = output(Command::new("stty").args(["-a", "-F", &self.device]));
        assert!(told.status.success(), "{told:?}");
        String::from_utf8_lossy(&told.stdout).into_owned()
    }

    /// Returns the children of the shell.
    #[must_use]
    pub fn children(&self) -> Vec<u32> {
        children(self.shell)
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = Command::new("tmux").arg("-S").arg(&self.socket).arg("kill-server").output();
    }
}

/// Returns the children of a process with one thread.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    let listed = fs::read_to_string(Path::new("/proc").join(format!("{pid}/task/{pid}/children")));
    listed.unwrap_or_default().split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}
