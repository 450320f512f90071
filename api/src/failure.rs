//! What can go wrong in the faces themselves, beside the library's own [`volt_vmm::Error`].

use std::io;
use std::path::{Path, PathBuf};

/// An error of the command line, the API server's set-up or the API client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The library's.
    #[error(transparent)]
    Vmm(#[from] volt_vmm::Error),
    /// The config file is no `VmConfig` in JSON; the source names field, line and column.
    #[error("config file {}", path.display())]
    ConfigFile { path: PathBuf, source: serde_json::Error },
    /// The system refused an act.
    #[error("cannot {act}")]
    System { act: String, source: io::Error },
    /// The API socket cannot be used; the text says why.
    #[error("API socket {}: {problem}", path.display())]
    Socket { path: PathBuf, problem: String },
    /// A child of a fork cannot be; the text says why.
    #[error("child {}: {problem}", socket.display())]
    Child { socket: PathBuf, problem: String },
    /// What the server at the API socket answered.
    #[error("{0}")]
    Server(String),
}

impl Failure {
    /// `act` says the act and its object: `read config file /x.json`.
    pub(crate) fn system(act: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System { act: act.into(), source: source.into() }
    }

    /// `problem` is what is wrong with the child that was to serve at `socket`.
    pub(crate) fn child(socket: &Path, problem: impl Into<String>) -> Self {
        Self::Child { socket: socket.to_owned(), problem: problem.into() }
    }

    /// `problem` is a whole sentence about the socket at `path`.
    pub(crate) fn socket(path: &Path, problem: impl Into<String>) -> Self {
        Self::Socket { path: path.to_owned(), problem: problem.into() }
    }
}
