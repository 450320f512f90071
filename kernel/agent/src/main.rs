//! The only program of the initramfs. As process 1 it runs an image; otherwise it is the agent, which runs
//! programs and moves files for a host.
//!
//! ```text
//! volt_job <── init (process 1) ──starts──> volt-agent --vsock 49983
//!                       └─────────link──────────┘
//!
//! serve ── connect (RPC) ─┬─ processes
//!       ├─ REST ── files  ├─ filesystem
//!       └─ control        └─ messages, users, time
//!             └── quiet, volumes
//! ```
//!
//! Process 1 is the parent of the main process. The agent asks for it, and has its streams, over [`link`].
//! [`serve`] holds the listener and the routes; the modules below it know nothing about it.

mod access;
mod connect;
mod descriptor;
mod farewell;
mod files;
mod filesystem;
mod group_signal;
mod host;
mod init;
mod kept;
mod kernel_file;
mod limits;
mod link;
mod messages;
mod options;
mod processes;
mod query;
mod quiet;
mod reply;
#[cfg(test)]
mod scratch;
mod serve;
mod setup;
mod streams;
mod time;
mod tunnel;
mod users;
mod volumes;
mod vsock;

use std::process::ExitCode;

/// Control group of the main process, of commands and of hooks, which stand still together.
const WORKLOAD: &str = "/sys/fs/cgroup/volt/workload";
/// Control group of all commands. Process 1 makes it, and the agent a group for each command below.
const COMMANDS: &str = "/sys/fs/cgroup/volt/workload/commands";

/// musl's allocator gives freed memory back at once, and so takes two system calls for many a request.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    if std::process::id() == 1 {
        init::main();
    }
    let options = match options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("volt-agent: {error}");
            return ExitCode::FAILURE;
        }
    };
    match serve::run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("volt-agent: {error}");
            ExitCode::FAILURE
        }
    }
}
