//! `volt-vmm volume create`: an empty volume.

use clap::Args;
use volt_vmm::parse_size;

use crate::cli::Outcome;
use crate::cli::volume_place::{DEFAULT_SIZE, Volumes};
use crate::failure::Failure;
use crate::output::print::text;
use crate::process::exit::Status;
use crate::run_dir::name::VmName;

/// Make an empty volume. It takes room on the host as it is filled
///
/// Example: volt-vmm volume create --size 20G db
#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Name of the volume: letters, digits, `_` and `-`
    #[arg(value_name = "NAME")]
    name: VmName,

    /// Most bytes of the volume [default: 10G]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
}

/// Parses a size in bytes.
fn size(text: &str) -> Result<u64, &'static str> {
    parse_size(text, 1)
}

impl Create {
    pub(crate) fn execute(self) -> Outcome {
        let Self { name, size } = self;
        if !Volumes::open()?.create(&name, size.unwrap_or(DEFAULT_SIZE))? {
            let problem = "it exists; choose another name, or remove it (volt-vmm volume rm NAME)".to_owned();
            return Err(Failure::Volume { name: name.to_string(), problem });
        }
        text(&format!("{name}\n"))?;
        Ok(Status::Success)
    }
}
