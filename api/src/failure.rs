//! Errors of the command line and the API, in addition to the library's [`volt_vmm::Error`].

use std::io;
use std::path::{Path, PathBuf};

use volt_vmm::Cure;

/// An error of the command line, of the API server's set-up or of the API client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// An error of the library.
    #[error(transparent)]
    Vmm(#[from] volt_vmm::Error),
    /// The config file is no valid `VmConfig` in JSON. The source names field, line and column.
    #[error("config file {}", path.display())]
    ConfigFile { path: PathBuf, source: serde_json::Error },
    /// A system call failed.
    #[error("cannot {act}")]
    System { act: String, source: io::Error },
    /// The API socket cannot be used.
    #[error("API socket {}: {problem}", path.display())]
    Socket { path: PathBuf, problem: String },
    /// A child of a fork failed.
    #[error("child {}: {problem}", socket.display())]
    Child { socket: PathBuf, problem: String, cures: Vec<Cure> },
    /// The error text from the server at the API socket.
    #[error("{0}")]
    Server(String),
}

impl Failure {
    /// Makes an error of a system call. `act` names act and object: `read config file /x.json`.
    pub(crate) fn system(act: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System { act: act.into(), source: source.into() }
    }

    /// Makes an error of the child whose API socket is `socket`.
    pub(crate) fn child(socket: &Path, problem: impl Into<String>) -> Self {
        Self::Child { socket: socket.to_owned(), problem: problem.into(), cures: Vec::new() }
    }

    /// Makes an error of the API socket at `path`.
    pub(crate) fn socket(path: &Path, problem: impl Into<String>) -> Self {
        Self::Socket { path: path.to_owned(), problem: problem.into() }
    }
}
