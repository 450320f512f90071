//! `volt-vmm snapshot inspect`, `verify` and `convert`: what needs no VM, only a snapshot's files.

use std::io::{Write as _, stdout};
use std::path::PathBuf;

use clap::Args;
use volt_vmm::Store;
use volt_vmm::snapshot::convert;
use volt_vmm::snapshot::inspect;
use volt_vmm::snapshot::{Verified, verify};

use super::Outcome;
use super::packing::{Memory, PackingArgs};
use crate::failure::Failure;
use crate::output::inspection;
use crate::output::print::print;
use crate::output::progress;
use crate::process::exit::Status;

/// Say what is in a snapshot: its metadata, and how its memory is stored
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// Directory of the snapshot
    dir: PathBuf,

    /// Leave out the list of page ranges
    #[arg(long)]
    summarized: bool,

    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

/// Verify every checksum of a snapshot; the first damage found is the error
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// Directory of the snapshot
    dir: PathBuf,

    /// Read the base of a diff that this user's volt-vmm did not write, if it lies in this directory. May be
    /// given more than once
    #[arg(long = "allow-path", value_name = "DIR")]
    allowed: Vec<PathBuf>,
}

/// Write a snapshot once more, its memory stored in another way; the first one stays as it is
#[derive(Debug, Args)]
pub(crate) struct Convert {
    /// Directory of the snapshot
    dir: PathBuf,

    /// Directory to be made
    to: PathBuf,

    /// Pack the memory: lz4, zstd or zstd:LEVEL (1 to 22); none leaves it raw, to be mapped as it is
    #[arg(long, value_name = "HOW")]
    compress: Memory,

    #[command(flatten)]
    packing: PackingArgs,
}

impl Inspect {
    pub(crate) fn execute(self) -> Outcome {
        let (store, name) = Store::split(&self.dir)?;
        let mut found = inspect(&store, &name)?;
        if self.summarized {
            found.pages.clear();
        }
        print(&found, self.json, inspection::text)?;
        Ok(Status::Success)
    }
}

impl Verify {
    pub(crate) fn execute(self) -> Outcome {
        let (store, name) = Store::split(&self.dir)?;
        let verified =
            progress::measured("verifying", |progress| verify(&store, &name, &self.allowed, progress))?;
        let text = match verified {
            Verified::Whole => "every checksum is right: state and memory are as they were written",
            Verified::AllButMemory => {
                "the state is as it was written; its memory, raw and without a digest, is as long as it should be"
            }
        };
        writeln!(stdout(), "{text}").map_err(|source| Failure::system("print the outcome", source))?;
        Ok(Status::Success)
    }
}

impl Convert {
    pub(crate) fn execute(self) -> Outcome {
        let packing = self.packing.of(self.compress)?;
        let ((from_store, from), (to_store, to)) = (Store::split(&self.dir)?, Store::split(&self.to)?);
        progress::measured("converting", |progress| {
            convert((&from_store, &from), (&to_store, &to), packing.as_ref(), progress)
        })?;
        Ok(Status::Success)
    }
}
