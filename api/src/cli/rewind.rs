//! `volt-vmm rewind`: resets a restored VM to its snapshot, through its API.

use clap::Args;

use super::Outcome;
use super::vms::target::TargetArgs;
use crate::client;
use crate::process::exit::Status;

/// Reset a restored VM to the instant of its snapshot, in the same process
///
/// Example: volt-vmm rewind web
#[derive(Debug, Args)]
pub(crate) struct Rewind {
    #[command(flatten)]
    target: TargetArgs,
}

impl Rewind {
    pub(crate) fn execute(self) -> Outcome {
        client::put(self.target.find()?.api()?, "/v1/vm/rewind", &())?;
        Ok(Status::Success)
    }
}
