//! Options of `run` that concern an image.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use volt_image::store::Image;
use volt_vmm::parse_size;

use super::attached_volumes::VolumeOption;
use crate::run_dir::forward::Forward;

/// An image and its main process
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Images")]
pub(super) struct ImageArgs {
    /// Run this image of a container: [REGISTRY/]REPOSITORY[:TAG|@DIGEST], or the beginning of a digest. It
    /// is pulled if it is not here
    #[arg(value_name = "IMAGE", conflicts_with = "config_file")]
    pub(super) image: Option<String>,

    /// Program and arguments, in place of the image's
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(super) command: Vec<String>,

    /// Pass standard input to the program
    #[arg(short, long, requires = "image")]
    pub(super) interactive: bool,

    /// Give the program a terminal
    #[arg(short, long, requires = "image")]
    pub(super) tty: bool,

    /// Set a variable of the program's environment, or take it from here: NAME=VALUE or NAME. Repeatable
    #[arg(short, long = "env", value_name = "VARIABLE", requires = "image")]
    pub(super) env: Vec<String>,

    /// Read variables from a file, one a line. Lines that begin with # count for nothing. Repeatable
    #[arg(long = "env-file", value_name = "FILE", requires = "image")]
    pub(super) env_files: Vec<PathBuf>,

    /// Start the program in this directory
    #[arg(short, long, value_name = "DIR", requires = "image")]
    pub(super) workdir: Option<String>,

    /// Run the program as this user: USER[:GROUP], names of the image or numbers
    #[arg(short, long, value_name = "USER", requires = "image")]
    pub(super) user: Option<String>,

    /// Run this program, in place of the image's entry point. Its arguments are those of COMMAND
    #[arg(long, value_name = "PROGRAM", requires = "image")]
    pub(super) entrypoint: Option<String>,

    /// Let this port of the host lead to that TCP port of the VM: [ADDRESS:]HOST:GUEST. The address is
    /// 127.0.0.1 if none is given; HOST 0 is a free port. Repeatable
    #[arg(short, long, value_name = "PORTS", requires = "image")]
    pub(super) publish: Vec<Forward>,

    /// Mount a volume, which is made if it is missing: NAME:PATH[:ro]. Or mount a copy of a directory of the
    /// host, made at the start: DIR:PATH:ro. DIR has a slash. Repeatable
    #[arg(short, long = "volume", value_name = "VOLUME", requires = "image")]
    pub(super) volumes: Vec<VolumeOption>,

    /// When the image is pulled [default: missing]
    #[arg(long, value_name = "WHEN", requires = "image")]
    pub(super) pull: Option<PullWhen>,

    /// Most bytes of changes to the image's files [default: 10G]
    #[arg(long, value_name = "SIZE", requires = "image", value_parser = size)]
    pub(super) disk_size: Option<u64>,

    /// Where changes to the image's files go: a disk, or the VM's memory [default: disk]
    #[arg(long, value_name = "PLACE", requires = "image")]
    pub(super) upper: Option<UpperPlace>,

    /// Boot the VM anew, and keep no warm snapshot of it. By default the first VM of an image and a shape
    /// leaves one, of before its first command, and later ones are restored from it
    #[arg(long, requires = "image")]
    pub(super) cold: bool,

    /// Most bytes of all warm snapshots on the disk: those that were used last the longest time ago go
    /// [default: 10G]
    #[arg(long, value_name = "SIZE", requires = "image", value_parser = size)]
    pub(super) warm_cache: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum PullWhen {
    #[default]
    Missing,
    Always,
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum UpperPlace {
    Disk,
    Memory,
}

/// Parses a size in bytes.
fn size(text: &str) -> Result<u64, &'static str> {
    parse_size(text, 1)
}

impl ImageArgs {
    /// The program and its arguments, as docker combines those of options and image.
    pub(super) fn argv(&self, image: &Image) -> Vec<String> {
        let config = image.config.config().as_ref();
        let of_image = |part: Option<&Vec<String>>| part.cloned().unwrap_or_default();
        let entrypoint = match &self.entrypoint {
            Some(program) if program.is_empty() => Vec::new(),
            Some(program) => vec![program.clone()],
            None => of_image(config.and_then(|config| config.entrypoint().as_ref())),
        };
        let command = match &self.entrypoint {
            None if self.command.is_empty() => of_image(config.and_then(|config| config.cmd().as_ref())),
            _ => self.command.clone(),
        };
        [entrypoint, command].concat()
    }
}
