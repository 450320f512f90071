//! `volt-vmm image save`: writes images to an archive.

use std::fs::{self, File};
use std::io::{BufWriter, IsTerminal, stdout};
use std::path::{Path, PathBuf};

use clap::Args;
use volt_image::archive;
use volt_image::reference::Name;
use volt_image::store::{Image, Store};

use crate::cli::image_place::store;
use crate::cli::{Outcome, complete};
use crate::failure::Failure;
use crate::output::progress;
use crate::process::exit::Status;

/// Write images to an archive that docker, podman and `image load` take
///
/// Example: volt-vmm image save app:1 | docker load
#[derive(Debug, Args)]
pub(crate) struct Save {
    /// Names of images, or the beginnings of their digests
    #[arg(value_name = "IMAGE", required = true, add = complete::images())]
    images: Vec<String>,

    /// The archive to make [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Save {
    pub(crate) fn execute(self) -> Outcome {
        let store = store()?;
        let _kept = store.keep()?;
        let images =
            self.images.iter().map(|image| named(&store, image)).collect::<Result<Vec<_>, Failure>>()?;
        let Some(path) = &self.output else {
            if stdout().is_terminal() {
                let problem = "standard output is a terminal; give it another place, or use --output FILE";
                return Err(Failure::Server(problem.to_owned()));
            }
            let mut to = BufWriter::with_capacity(1 << 20, stdout());
            archive::save(&store, &images, &mut to, Path::new("standard output"))?;
            return Ok(Status::Success);
        };
        let file = File::create_new(path)
            .map_err(|error| Failure::system(format!("create {}", path.display()), error))?;
        let mut to = BufWriter::with_capacity(1 << 20, file);
        let saved = progress::during("saving images", || archive::save(&store, &images, &mut to, path));
        saved.inspect_err(|_| drop(fs::remove_file(path)))?;
        Ok(Status::Success)
    }
}

/// An image with the name by which it is asked for; one that is asked for by its digest has all its names.
fn named(store: &Store, text: &str) -> Result<(Image, Vec<Name>), Failure> {
    let id = store.find(text)?;
    let all = store.names()?;
    let asked = text.parse::<Name>().ok().filter(|name| all.contains_key(&name.to_string()));
    let names = match asked {
        Some(name) => vec![name],
        None => {
            all.iter().filter(|(_, named)| **named == id).filter_map(|(name, _)| name.parse().ok()).collect()
        }
    };
    Ok((store.image(&id)?, names))
}
