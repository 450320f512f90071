//! Sandboxes: VMs that run an image of a container, with calls for commands, files and forks.
//!
//! ```no_run
//! use volt_sandbox::Sandbox;
//!
//! fn main() -> volt_sandbox::Result<()> {
//!     let sandbox = Sandbox::builder().image("python:3.12-slim").memory("512M").start()?;
//!     sandbox.files().write("/tmp/a.py", b"print(6 * 7)")?;
//!     let output = sandbox.exec(["python3", "/tmp/a.py"]).output()?;
//!     assert_eq!((output.status, &output.stdout[..]), (0, &b"42\n"[..]));
//!     for child in sandbox.fork(3)? {
//!         child.exec(["rm", "/tmp/a.py"]).output()?; // the others keep it
//!     }
//!     Ok(())
//! } // all VMs end here, and leave nothing
//! ```
//!
//! Each sandbox is a VM with a name, in a process of its own, which this crate starts by the program
//! `volt-vmm`. The crate neither links the VMM nor uses KVM itself. Commands and files go straight to the
//! agent in the guest, over a socket in the VM's run directory. `docs/sandboxes.md` shows more.
//!
//! | part | holds |
//! | --- | --- |
//! | [`Builder`] | the options of a sandbox, and its start |
//! | [`Sandbox`] | one VM: commands, files, forks, snapshots, its end |
//! | [`Exec`], [`Process`] | a command, and one that runs |
//! | [`Files`] | files of the guest |
//! | `tokio` | the same as async functions, with the feature `tokio` |

mod builder;
mod error;
mod exec;
mod face;
mod files;
mod process;
mod program;
mod record;
mod sandbox;
#[cfg(test)]
mod testing;
#[cfg(feature = "tokio")]
pub mod tokio;

pub use builder::Builder;
pub use error::{Error, Result};
pub use exec::{Exec, Output};
pub use face::Blocking;
pub use files::Files;
pub use process::{Event, Killer, Process};
pub use sandbox::Sandbox;
pub use volt_agent_client::{Error as AgentError, FileEntry, FileKind};

/// Compiles the examples of the documentation.
#[cfg(doctest)]
mod documentation {
    #[cfg(feature = "tokio")]
    #[doc = include_str!("../../../docs/sandboxes.md")]
    struct Sandboxes;
}
