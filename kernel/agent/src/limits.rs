//! The limit of open files: the agent's own, and that of programs that it starts.

use std::io;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit with which the agent began.
static FIRST: OnceLock<Rlimit> = OnceLock::new();

/// Raises the agent's limit as far as it may. Each command takes up to five descriptors, and each client one.
pub fn raise() {
    let first = FIRST.get_or_init(|| getrlimit(Resource::Nofile));
    // An agent that may not goes on with what it has.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: first.maximum, maximum: first.maximum });
}

/// Sets the first limit again, in a program before its start. Makes system calls alone.
pub fn restore() -> io::Result<()> {
    match FIRST.get() {
        Some(first) => Ok(setrlimit(Resource::Nofile, *first)?),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[test]
    #[allow(unsafe_code)]
    fn program_has_the_limit_with_which_the_agent_began() {
        let first = getrlimit(Resource::Nofile);
        raise();
        assert_eq!(getrlimit(Resource::Nofile).current, first.maximum);
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n"]);
        // SAFETY: the function makes system calls alone.
        let output = unsafe { command.pre_exec(restore) }.output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert_eq!(told.trim().parse().ok(), first.current);
        setrlimit(Resource::Nofile, first).unwrap();
    }
}
