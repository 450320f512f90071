//! A memory handler in a process of its own: this executable, started again.

mod process;
mod userfault;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::guest::Guest;
use crate::patience::limited;
use crate::scratch::Scratch;
use crate::transcript::Transcript;

/// The first argument of a process that is a handler.
const ARGUMENT: &str = "--memory-handler";

/// The treatment of a VM that connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conduct {
    /// Answers its page faults from the file.
    Serves,
    /// As `Serves`, and closes the connection once it has the memory.
    ServesWithoutConnection,
    /// As `Serves`, as long as the connection has no end, as Firecracker's example of a handler.
    ServesUntilTheEnd,
    /// Closes the connection at once.
    Closes,
    /// Reads nothing from the connection.
    Waits,
    /// Reads the page faults, and answers none.
    Ignores,
}

impl Conduct {
    const ALL: [Self; 6] = [
        Self::Serves,
        Self::ServesWithoutConnection,
        Self::ServesUntilTheEnd,
        Self::Closes,
        Self::Waits,
        Self::Ignores,
    ];
}

/// A running handler. It serves one VM. Its process is killed on drop.
#[derive(Debug)]
pub struct MemoryHandler {
    child: Child,
    socket: PathBuf,
    output: Transcript,
}

impl MemoryHandler {
    /// Starts a handler that answers page faults from a memory file.
    #[must_use]
    pub fn serving(memory: &Path, scratch: &Scratch) -> Self {
        Self::start(Conduct::Serves, memory, scratch)
    }

    /// Starts a handler, and waits until it listens.
    ///
    /// # Panics
    /// It does not start.
    #[must_use]
    pub fn start(conduct: Conduct, memory: &Path, scratch: &Scratch) -> Self {
        let socket = scratch.fresh("handler");
        let mut command = Command::new(std::env::current_exe().expect("this executable has a path"));
        command.arg(ARGUMENT).arg(format!("{conduct:?}")).arg(&socket).arg(memory);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("start a memory handler");
        let output = Transcript::of(child.stdout.take().expect("a pipe"));
        let handler = Self { child, socket, output };
        handler.wait_for("listens");
        handler
    }

    /// Returns the path of its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the body of a load with its memory.
    #[must_use]
    pub fn load(&self, state: &Path) -> Value {
        json!({
            "snapshot_path": state,
            "mem_backend": {"backend_type": "Uffd", "backend_path": self.socket},
            "resume_vm": true,
        })
    }

    /// Restores a VM from a state file, with more fields of the request.
    ///
    /// # Panics
    /// The API refuses.
    #[must_use]
    pub fn restore(&self, state: &Path, more: &Value) -> Guest {
        let guest = Guest::waiting();
        let mut body = self.load(state);
        let fields = more.as_object().expect("an object").clone();
        body.as_object_mut().expect("an object").extend(fields);
        assert_eq!(guest.ask("PUT", "/snapshot/load", &body.to_string()), (204, String::new()));
        guest
    }

    /// Waits until it says a line that starts with `word`, and returns the rest of the line.
    ///
    /// # Panics
    /// It ends before.
    pub fn wait_for(&self, word: &str) -> String {
        let found = self.output.find(0, |bytes| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            let whole = text.rsplit_once('\n')?.0.to_owned();
            whole.lines().find_map(|line| line.strip_prefix(word).map(str::to_owned))
        });
        found.unwrap_or_else(|| panic!("the handler did not say {word}, but {}", self.output.text()))
    }

    /// Returns the mappings that it received.
    ///
    /// # Panics
    /// They are not JSON.
    #[must_use]
    pub fn mappings(&self) -> Value {
        serde_json::from_str(&self.wait_for("mappings ")).expect("mappings in JSON")
    }

    /// Returns the number of lines so far that start with `word`: `page` for each page that it copied, `zero`
    /// for each page of zeros, `removed` for each range that was dropped.
    #[must_use]
    pub fn count(&self, word: &str) -> usize {
        self.output.text().lines().filter(|line| line.split(' ').next() == Some(word)).count()
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = limited("a killed handler is gone", || self.child.wait());
    }
}

impl Drop for MemoryHandler {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Becomes a handler, and does not return, if the arguments of this process ask for one.
///
/// # Panics
/// The arguments are incomplete, or the handler fails.
pub fn become_one_if_asked() {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if arguments.first().is_none_or(|first| first != ARGUMENT) {
        return;
    }
    let [_, conduct, socket, memory] = &*arguments else { panic!("a handler has three arguments") };
    let conduct = Conduct::ALL.into_iter().find(|known| *conduct == *format!("{known:?}"));
    process::run(conduct.expect("a conduct"), Path::new(socket), Path::new(memory));
    std::process::exit(0);
}
