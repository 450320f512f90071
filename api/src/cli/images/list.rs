//! `volt-vmm image ls` and `inspect`: the images that are here.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use volt_image::digest::Digest;
use volt_image::store::{Image, ImageRecord, Store};

use super::short;
use crate::cli::image_place::{short_name, store};
use crate::cli::list_options::ListArgs;
use crate::cli::{Outcome, complete};
use crate::failure::Failure;
use crate::output::print::print;
use crate::output::table::Table;
use crate::process::exit::Status;

/// List the images that are here
///
/// Example: volt-vmm image ls
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    list: ListArgs,
}

/// Print an image's configuration, layers and files as JSON
///
/// Example: volt-vmm image inspect python:3.12-slim
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// Name of the image, or the beginning of its digest
    #[arg(value_name = "IMAGE", add = complete::images())]
    image: String,
}

/// An image that is here.
#[derive(Debug, Serialize)]
struct Listed {
    id: Digest,
    names: Vec<String>,
    platform: String,
    layers: usize,
    /// Bytes on the host's disk, with those of layers that other images have too.
    disk_bytes: u64,
}

/// All that is known of an image.
#[derive(Debug, Serialize)]
struct Inspected {
    id: Digest,
    names: Vec<String>,
    #[serde(flatten)]
    record: ImageRecord,
    /// The files of its disk, one after another.
    parts: Vec<PathBuf>,
    config: serde_json::Value,
}

impl Listed {
    fn of(image: Image, names: Vec<String>) -> Self {
        let held = |path: &PathBuf| fs::metadata(path).map_or(0, |found| found.blocks() * 512);
        Self {
            names,
            platform: format!("{}/{}", image.config.os(), image.config.architecture()),
            layers: image.record.layers.len(),
            disk_bytes: image.parts.iter().map(held).sum(),
            id: image.id,
        }
    }
}

/// The names of an image, as short as docker takes them.
fn names_of(store: &Store, id: &Digest) -> Result<Vec<String>, Failure> {
    let names = store.names()?;
    Ok(names.iter().filter(|(_, named)| *named == id).map(|(name, _)| short_name(name)).collect())
}

impl List {
    pub(crate) fn execute(self) -> Outcome {
        let store = store()?;
        let _kept = store.keep()?;
        let all = store
            .images()?
            .iter()
            .map(|id| Ok(Listed::of(store.image(id)?, names_of(&store, id)?)))
            .collect::<Result<Vec<_>, Failure>>()?;
        self.list.print(&all, |image| image.names.clone(), table)?;
        Ok(Status::Success)
    }
}

fn table(all: &Vec<Listed>) -> String {
    let mut table = Table::new(["NAME", "ID", "PLATFORM", "LAYERS", "ON DISK"]);
    for image in all {
        let names = if image.names.is_empty() { vec!["-".to_owned()] } else { image.names.clone() };
        for name in names {
            table.row([
                name,
                short(&image.id).to_owned(),
                image.platform.clone(),
                image.layers.to_string(),
                format!("{:.1} MiB", image.disk_bytes as f64 / f64::from(1 << 20)),
            ]);
        }
    }
    table.text()
}

impl Inspect {
    pub(crate) fn execute(self) -> Outcome {
        let store = store()?;
        let _kept = store.keep()?;
        let id = store.find(&self.image)?;
        let Image { config, record, parts, .. } = store.image(&id)?;
        let config = serde_json::to_value(config)
            .map_err(|error| Failure::system("print the configuration", std::io::Error::from(error)))?;
        let found = Inspected { names: names_of(&store, &id)?, id, record, parts, config };
        print(&found, true, |_| String::new())?;
        Ok(Status::Success)
    }
}
