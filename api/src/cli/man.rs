//! `volt-vmm man`: writes manual pages.

use std::fs;
use std::path::PathBuf;

use clap::{Args, CommandFactory};

use super::{Arguments, Outcome};
use crate::failure::Failure;
use crate::process::exit::Status;

/// Write a manual page for each command into a directory
///
/// Example: volt-vmm man ~/.local/share/man/man1
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The directory; created if missing
    dir: PathBuf,
}

impl Man {
    pub(crate) fn execute(self) -> Outcome {
        let failed =
            |error| Failure::system(format!("write manual pages into {}", self.dir.display()), error);
        fs::create_dir_all(&self.dir).map_err(failed)?;
        clap_mangen::generate_to(Arguments::command(), &self.dir).map_err(failed)?;
        Ok(Status::Success)
    }
}
