//! `volt-vmm snapshot inspect`, `verify` and `convert`: commands on a snapshot's files, without a VM.

use std::io::{Write as _, stdout};
use std::path::PathBuf;

use clap::Args;
use volt_vmm::Store;
use volt_vmm::snapshot::convert;
use volt_vmm::snapshot::inspect;
use volt_vmm::snapshot::{Inspection, Verified, verify};

use crate::cli::packing::{Memory, PackingArgs};
use crate::cli::{Outcome, complete, snapshot_place};
use crate::failure::Failure;
use crate::output::inspection;
use crate::output::print::print;
use crate::output::progress;
use crate::process::exit::Status;

/// Print a snapshot's metadata and the layout of its memory file
///
/// Example: volt-vmm snapshot inspect --summarized warm
#[derive(Debug, Args)]
pub(crate) struct InspectSnapshot {
    /// Name of the snapshot, or its directory
    #[arg(value_name = "SNAPSHOT", add = complete::snapshots_and_paths())]
    dir: PathBuf,

    /// Omit the list of page ranges
    #[arg(long)]
    summarized: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Verify every checksum of a snapshot; fail at the first damage
///
/// Example: volt-vmm snapshot verify warm
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// Name of the snapshot, or its directory
    #[arg(value_name = "SNAPSHOT", add = complete::snapshots_and_paths())]
    dir: PathBuf,

    /// Allow a diff that this user's volt-vmm did not write to have its base in this directory. Repeatable
    #[arg(long = "allow-path", value_name = "DIR")]
    allowed: Vec<PathBuf>,
}

/// Copy a snapshot, with its memory raw or compressed; the original stays unchanged
///
/// Example: volt-vmm snapshot convert --compress zstd:9 warm packed
#[derive(Debug, Args)]
pub(crate) struct Convert {
    /// Name of the snapshot, or its directory
    #[arg(value_name = "SNAPSHOT", add = complete::snapshots_and_paths())]
    dir: PathBuf,

    /// Name of the copy, or the directory to create for it
    #[arg(value_name = "NEW")]
    to: PathBuf,

    /// Compress the memory: lz4, zstd or zstd:LEVEL (1 to 22); none stores it raw
    #[arg(long, value_name = "CODEC")]
    compress: Memory,

    /// Print the copy as JSON, as `snapshot inspect --summarized` does
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    packing: PackingArgs,
}

impl InspectSnapshot {
    pub(crate) fn execute(self) -> Outcome {
        let (store, name) = Store::split(&snapshot_place::existing(&self.dir))?;
        let mut found = shown(inspect(&store, &name)?);
        if self.summarized {
            found.pages.clear();
        }
        print(&found, self.json, inspection::text)?;
        Ok(Status::Success)
    }
}

impl Verify {
    pub(crate) fn execute(self) -> Outcome {
        let (store, name) = Store::split(&snapshot_place::existing(&self.dir))?;
        let verified =
            progress::with_bar("verifying", |progress| verify(&store, &name, &self.allowed, progress))?;
        let text = match verified {
            Verified::Whole => "every checksum is right: state and memory are unchanged",
            Verified::AllButMemory => {
                "the state is unchanged; the memory is raw and without a digest, so only its length was \
                 checked, which is right"
            }
        };
        writeln!(stdout(), "{text}").map_err(|source| Failure::system("print the result", source))?;
        Ok(Status::Success)
    }
}

impl Convert {
    pub(crate) fn execute(self) -> Outcome {
        let packing = self.packing.of(self.compress)?;
        let new = snapshot_place::new_beside(&self.dir, &self.to)?;
        let ((from_store, from), (to_store, to)) =
            (Store::split(&snapshot_place::existing(&self.dir))?, Store::split(&new)?);
        progress::with_bar("converting", |progress| {
            convert((&from_store, &from), (&to_store, &to), packing.as_ref(), progress)
        })?;
        print_new((&to_store, &to), self.json)
    }
}

/// An inspection without the variables of the guest's main process, which may be secrets.
fn shown(mut found: Inspection) -> Inspection {
    let main = found.metadata.note.as_mut().and_then(|note| note.get_mut("main")?.as_object_mut());
    main.into_iter().for_each(|main| drop(main.remove("env")));
    found
}

/// Prints a snapshot that was made, if JSON is asked for: its metadata without the list of page ranges.
///
/// # Errors
/// It cannot be read, or a write to standard output failed.
pub(super) fn print_new((store, name): (&Store, &str), json: bool) -> Outcome {
    if json {
        let mut made = shown(inspect(store, name)?);
        made.pages.clear();
        print(&made, true, inspection::text)?;
    }
    Ok(Status::Success)
}
