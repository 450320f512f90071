//! Messages between a process and its opener and starter.

use std::io;

use serde::{Deserialize, Serialize};

use super::call::{PathCall, PathText};
use super::program::{AllowedProgram, ProgramStart};
use crate::holders::Holder;

/// A request. Its descriptors lie beside it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Makes a call. Without a path, that of the file beside it.
    Make { path: PathText, call: PathCall },
    /// Allows connections to `PATH_N`. The directory lies beside it if it was checked.
    Allow { path: PathText },
    /// Allows no further sockets, or programs, from now on. It has no answer.
    Seal,
    /// Connects to `PATH_N` for the path with this number.
    Connect { number: usize, port: u32 },
    /// Allows a program and its first argument also after [`Request::Seal`]. It has no answer.
    AllowProgram(AllowedProgram),
    /// Starts a program. The starter answers this and the two next ones, and the opener all others.
    Start(ProgramStart),
    /// Tells how a program ended.
    StatusOf { pid: u32 },
    /// Forgets a program: its status will not be asked for.
    Detach { pid: u32 },
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The path has this number.
    Allowed(usize),
    /// Done. The descriptor of a file or connection lies beside it.
    Done,
    /// The socket lies beside it. Its file has this device and inode.
    Listening {
        file: (u64, u64),
    },
    Holder(Option<Holder>),
    /// The program runs in this process. A descriptor of it lies beside it.
    Started {
        pid: u32,
    },
    /// The program has ended with this status, as wait(2) tells it.
    Ended {
        status: i32,
    },
    /// The system refused with this number, or for this reason.
    Failed {
        errno: Option<i32>,
        reason: String,
    },
}

impl Answer {
    pub fn failed(error: &io::Error) -> Self {
        let errno = error.raw_os_error();
        Self::Failed { errno, reason: errno.map_or_else(|| error.to_string(), |_| String::new()) }
    }
}
