//! `volt-vmm image rm` and `prune`: remove images and the layers that nothing needs.

use clap::Args;
use serde::Serialize;
use volt_image::store::Removed;
use volt_vmm::internal::paths::is_locked;

use super::short;
use crate::cli::image_place::{short_name, store};
use crate::cli::image_vm::remove_warm_snapshots;
use crate::cli::{Outcome, complete};
use crate::failure::Failure;
use crate::output::print::print;
use crate::process::exit::Status;

/// Remove names of images. An image without a name goes, with the layers that no other image has
///
/// A digest removes all names of its image. Example: volt-vmm image rm python:3.12-slim
#[derive(Debug, Args)]
pub(crate) struct Remove {
    /// Names of images, or the beginnings of their digests
    #[arg(value_name = "IMAGE", required = true, add = complete::images())]
    images: Vec<String>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Remove images without a name, and what broken pulls left
///
/// Example: volt-vmm image prune
#[derive(Debug, Args)]
pub(crate) struct Prune {
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// A report of what was removed.
#[derive(Debug, Default, Serialize)]
struct Report {
    names: Vec<String>,
    images: Vec<String>,
    layers: usize,
    bytes: u64,
}

impl Report {
    /// Adds what the store has removed, and removes the warm snapshots of images that are gone.
    fn add(&mut self, removed: Removed) -> Result<(), Failure> {
        self.names.extend(removed.names.iter().map(|name| short_name(name)));
        self.images.extend(removed.images.iter().map(ToString::to_string));
        self.layers += removed.layers;
        self.bytes += removed.bytes;
        removed.images.iter().try_for_each(remove_warm_snapshots)
    }

    fn print(&self, json: bool) -> Result<(), Failure> {
        print(self, json, |report| {
            let names = report.names.iter().map(|name| format!("removed name {name}\n"));
            let images = report.images.iter().filter_map(|id| id.parse().ok());
            let images = images.map(|id| format!("removed image {}\n", short(&id)));
            let (layers, mib) = (report.layers, report.bytes as f64 / f64::from(1 << 20));
            let sum = format!("removed {layers} layers, {mib:.1} MiB in all\n");
            names.chain(images).chain([sum]).collect()
        })
    }
}

impl Remove {
    pub(crate) fn execute(self) -> Outcome {
        let (store, mut report) = (store()?, Report::default());
        let removed = self.images.iter().try_for_each(|image| report.add(store.remove(image, is_locked)?));
        report.print(self.json)?;
        removed.map(|()| Status::Success)
    }
}

impl Prune {
    pub(crate) fn execute(self) -> Outcome {
        let mut report = Report::default();
        let added = report.add(store()?.prune(is_locked)?);
        report.print(self.json)?;
        added.map(|()| Status::Success)
    }
}
