//! `volt-vmm image warm`: makes warm snapshots ahead of the first run.

use clap::Args;

use crate::cli::run::Run;
use crate::cli::{Outcome, image_vm};

/// Boot a VM of an image and keep it as a warm snapshot, from which later runs start
///
/// Runs with the same image, memory, processors, network and number of volumes start from it, so give the
/// options of those runs. The snapshot has nothing of the other options, such as variables and ports.
///
/// Example: volt-vmm image warm --memory 1G python:3.12-slim
#[derive(Debug, Args)]
pub(crate) struct Warm {
    #[command(flatten)]
    run: Box<Run>,
}

impl Warm {
    pub(crate) fn execute(self) -> Outcome {
        image_vm::warm(*self.run)
    }
}
