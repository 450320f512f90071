//! `volt-vmm image export`: an image's disk for other programs.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use volt_image::vmdk;
use volt_vmm::internal::sparse::each_with_data;

use crate::cli::image_place::store;
use crate::cli::{Outcome, complete};
use crate::failure::Failure;
use crate::output::progress;
use crate::process::exit::Status;

/// Write an image's disk, an EROFS file system, to a file
///
/// Example: volt-vmm image export python:3.12-slim python.erofs
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// Name of the image, or the beginning of its digest
    #[arg(value_name = "IMAGE", add = complete::images())]
    image: String,

    /// The file to make
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Write a VMDK descriptor that names the image's files, instead of copying them. Other VMMs open it
    /// read-only
    #[arg(long)]
    vmdk: bool,
}

impl Export {
    pub(crate) fn execute(self) -> Outcome {
        let store = store()?;
        let _kept = store.keep()?;
        let parts = store.image(&store.find(&self.image)?)?.parts;
        let mut file = File::create_new(&self.file)
            .map_err(|error| Failure::system(format!("create {}", self.file.display()), error))?;
        let written = if self.vmdk {
            write_descriptor(&parts, &mut file)
        } else {
            progress::during("writing the disk", || copy(&parts, &mut file))
        };
        written.map_err(|error| {
            let _ = fs::remove_file(&self.file);
            Failure::system(format!("write {}", self.file.display()), error)
        })?;
        Ok(Status::Success)
    }
}

fn write_descriptor(parts: &[PathBuf], to: &mut File) -> io::Result<()> {
    let with_len = |path: &'_ PathBuf| Ok((fs::canonicalize(path)?, fs::metadata(path)?.len()));
    let parts = parts.iter().map(with_len).collect::<io::Result<Vec<_>>>()?;
    let parts: Vec<(&Path, u64)> = parts.iter().map(|(path, len)| (path.as_path(), *len)).collect();
    to.write_all(vmdk::descriptor(&parts).as_bytes())
}

/// Copies the parts one after another. Their holes stay holes.
fn copy(parts: &[PathBuf], to: &mut File) -> io::Result<()> {
    let mut start = 0;
    for part in parts {
        let part = File::open(part)?;
        let len = part.metadata()?.len();
        each_with_data(&part, 0..len, |data| {
            (&part).seek(SeekFrom::Start(data.start))?;
            to.seek(SeekFrom::Start(start + data.start))?;
            io::copy(&mut (&part).take(data.end - data.start), to).map(drop)
        })?;
        start += len;
    }
    to.set_len(start)
}
