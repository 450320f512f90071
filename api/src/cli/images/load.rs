//! `volt-vmm image load`: gets images from an archive.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use volt_image::archive;
use volt_image::digest::Digest;
use volt_image::manifest::Platform;

use super::{platform, short};
use crate::cli::Outcome;
use crate::cli::image_intake::with_bar;
use crate::cli::image_place::store;
use crate::output::print::print;
use crate::process::exit::Status;

/// Load images from an archive of `docker save` or `podman save`, or from an OCI layout
///
/// Example: volt-vmm image load app.tar
#[derive(Debug, Args)]
pub(crate) struct Load {
    /// The archive, which may be compressed by gzip or zstd, or the directory; - is standard input
    #[arg(value_name = "PATH", default_value = "-")]
    path: PathBuf,

    /// The system and processor that an image is for [default: linux, on this host's processors]
    #[arg(long, value_name = "OS/ARCHITECTURE", value_parser = platform)]
    platform: Option<Platform>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// An image that is here now.
#[derive(Debug, Serialize)]
struct Loaded {
    id: Digest,
    names: Vec<String>,
}

impl Load {
    pub(crate) fn execute(self) -> Outcome {
        let store = store()?;
        let path = if self.path == Path::new("-") { Path::new("/dev/stdin") } else { &self.path };
        let loaded = with_bar("loading images", self.platform.as_ref(), |options| {
            Ok(archive::load(&store, path, options)?)
        })?;
        let loaded: Vec<_> = loaded
            .into_iter()
            .map(|image| Loaded {
                id: image.id,
                names: image.names.iter().map(|name| name.short()).collect(),
            })
            .collect();
        print(&loaded, self.json, |loaded| loaded.iter().map(line).collect())?;
        Ok(Status::Success)
    }
}

fn line(loaded: &Loaded) -> String {
    let names = if loaded.names.is_empty() { "without a name".to_owned() } else { loaded.names.join(" ") };
    format!("{} {names}\n", short(&loaded.id))
}
