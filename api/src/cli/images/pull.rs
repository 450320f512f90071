//! `volt-vmm image pull`: gets an image from its registry.

use clap::Args;
use serde::Serialize;
use volt_image::digest::Digest;
use volt_image::manifest::Platform;
use volt_image::reference::Name;

use super::platform;
use crate::cli::Outcome;
use crate::cli::image_intake::pull;
use crate::output::print::print;
use crate::process::exit::Status;
use crate::registry::Mirror;

/// Get an image from its registry. Layers that are here already are not fetched
///
/// Logins are those of `docker login` and `podman login`. Example: volt-vmm image pull python:3.12-slim
#[derive(Debug, Args)]
pub(crate) struct Pull {
    /// Name of the image, as docker takes it: [REGISTRY/]REPOSITORY[:TAG|@DIGEST]
    #[arg(value_name = "IMAGE")]
    name: String,

    /// The system and processor that the image is for [default: linux, on this host's processors]
    #[arg(long, value_name = "OS/ARCHITECTURE", value_parser = platform)]
    platform: Option<Platform>,

    /// Ask this mirror of a registry first, such as docker.io=https://mirror.example. Repeatable
    /// [default: $VOLT_REGISTRY_MIRRORS, separated by commas]
    #[arg(long = "mirror", value_name = "REGISTRY=URL")]
    mirrors: Vec<Mirror>,

    /// Ask the registry without TLS. One on localhost is asked so in any case
    #[arg(long)]
    plain_http: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// An image that is here now.
#[derive(Debug, Serialize)]
struct Pulled {
    name: String,
    id: Digest,
}

impl Pull {
    pub(crate) fn execute(self) -> Outcome {
        let name: Name = self.name.parse()?;
        let id = pull(&name, self.platform.as_ref(), self.mirrors, self.plain_http)?;
        let pulled = Pulled { name: name.to_string(), id };
        print(&pulled, self.json, |pulled| format!("{} {}\n", name.short(), pulled.id))?;
        Ok(Status::Success)
    }
}
