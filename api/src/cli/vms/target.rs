//! The VM that a command is about.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::complete;
use crate::failure::Failure;
use crate::run_dir::listing;
use crate::run_dir::name::VmName;
use crate::run_dir::root::RunRoot;
use crate::run_dir::vm_dir::VmDir;

/// A VM with a name, or the API socket of one without.
#[derive(Debug)]
pub(crate) enum Target {
    Named(Box<VmDir>),
    Socket(PathBuf),
}

/// The VM of a command for one
#[derive(Clone, Debug, Args)]
pub(crate) struct TargetArgs {
    /// Name of the VM, the beginning of its id, or the path of its API socket
    #[arg(value_name = "VM", required_unless_present = "api_socket", add = complete::vms())]
    vm: Option<String>,

    /// The path of its API socket
    #[arg(long, value_name = "SOCKET", hide = true, conflicts_with = "vm")]
    api_socket: Option<PathBuf>,
}

impl TargetArgs {
    /// Finds the VM.
    ///
    /// # Errors
    /// As [`Target::find`].
    pub(crate) fn find(&self) -> Result<Target, Failure> {
        match (&self.vm, &self.api_socket) {
            (Some(word), _) => Target::find(word),
            (None, Some(socket)) => Ok(Target::at(socket.clone())),
            (None, None) => unreachable!("clap requires one of the two"),
        }
    }
}

impl Target {
    /// Finds the VM that a word names.
    ///
    /// # Errors
    /// There is none, several ids begin with the word, or it is the path of a file that is no socket.
    pub(crate) fn find(word: &str) -> Result<Self, Failure> {
        let found = fs::metadata(word).ok();
        if word.contains('/') || word.parse::<VmName>().is_err() && found.is_some() {
            return match found {
                Some(other) if !other.file_type().is_socket() => {
                    Err(Failure::socket(Path::new(word), "not a socket"))
                }
                _ => Ok(Self::at(word.into())),
            };
        }
        Self::named(word).map(|vm| Self::Named(vm.into()))
    }

    /// Finds the VM with a name that a word names.
    ///
    /// # Errors
    /// As [`Target::find`].
    pub(crate) fn named(word: &str) -> Result<VmDir, Failure> {
        match RunRoot::existing()? {
            Some(root) => listing::find(&root, word),
            None => Err(listing::unknown(word)),
        }
    }

    fn at(socket: PathBuf) -> Self {
        let root = RunRoot::existing().ok().flatten();
        match root.and_then(|root| listing::find_by_socket(&root, &socket)) {
            Some(vm) => Self::Named(vm.into()),
            None => Self::Socket(socket),
        }
    }

    /// The API socket of a VM that lives.
    ///
    /// # Errors
    /// The VM has ended.
    pub(crate) fn api(&self) -> Result<&Path, Failure> {
        match self {
            Self::Socket(socket) => Ok(socket),
            Self::Named(vm) => match vm.end() {
                None => Ok(&vm.record.api_socket),
                Some(end) => Err(Failure::vm(vm.name().as_str(), format!("it has ended: {}", end.message))),
            },
        }
    }

    /// The VM with a name, for what only those have.
    ///
    /// # Errors
    /// The VM has no name.
    pub(crate) fn with_name(self) -> Result<VmDir, Failure> {
        match self {
            Self::Named(vm) => Ok(*vm),
            Self::Socket(socket) => {
                let problem = "it has no name, so nothing is kept of it; start it with --name";
                Err(Failure::vm(&socket.display().to_string(), problem))
            }
        }
    }

    /// The VM's name, or the path of its socket.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::Named(vm) => vm.name().to_string(),
            Self::Socket(socket) => socket.display().to_string(),
        }
    }
}
