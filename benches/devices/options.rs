//! Options of the benchmark.

use std::path::PathBuf;

use volt_benches::Result;
use volt_benches::command_line::{Parts, number, options};

pub const HELP: &str = "\
Measures how fast a Linux guest's virtio devices are under volt-vmm, beside the same guest under QEMU microvm.
Needs a KVM that runs Linux, root (for tap devices) and qemu-system-x86_64.

cargo bench -p volt-benches --bench devices [-- OPTION...]

  --rounds N          runs of each measurement under each VMM, in turn (default 7)
  --ms N              how long each takes, by the guest's clock (default 500)
  --only LIST         of disk, net, vsock (default all)
  --match TEXT        only what has this in its name, such as \"random read\"
  --volt-vmm FILE     the program to measure (default: built from this tree)
  --kernel FILE       the guest's kernel, an uncompressed vmlinux (default: built by kernel/build.sh)
  --initrd FILE       its init (default: built by kernel/guest/build.sh)
  --images DIRECTORY  where the disks' images lie (default: the system's temporary directory)
  --qemu-iothread     let QEMU's disks have a thread of their own; without, its main loop serves them
  --help

In the lab: benches/lab.sh devices";

/// See [`HELP`].
#[derive(Debug)]
pub struct Options {
    pub rounds: usize,
    pub ms: u64,
    pub only: Parts,
    pub part_of_name: String,
    pub volt_vmm: Option<PathBuf>,
    pub kernel: Option<PathBuf>,
    pub initrd: Option<PathBuf>,
    pub images: Option<PathBuf>,
    pub qemu_iothread: bool,
    /// As given, for the record.
    pub line: String,
}

impl Options {
    /// From the command line; nothing if help was asked for.
    ///
    /// # Errors
    /// An option that does not exist, or a value that makes no sense.
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Option<Self>> {
        let mut asked = Self {
            rounds: 7,
            ms: 500,
            only: Parts::all(&["disk", "net", "vsock"]),
            part_of_name: String::new(),
            volt_vmm: None,
            kernel: None,
            initrd: None,
            images: None,
            qemu_iothread: false,
            line: String::new(),
        };
        let line = options(arguments, HELP, |option, value| {
            match option {
                "--rounds" => asked.rounds = number(&value()?)?,
                "--ms" => asked.ms = number(&value()?)?,
                "--only" => asked.only.choose(&value()?)?,
                "--match" => asked.part_of_name = value()?,
                "--volt-vmm" => asked.volt_vmm = Some(value()?.into()),
                "--kernel" => asked.kernel = Some(value()?.into()),
                "--initrd" => asked.initrd = Some(value()?.into()),
                "--images" => asked.images = Some(value()?.into()),
                "--qemu-iothread" => asked.qemu_iothread = true,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(line.map(|line| Self { line, ..asked }))
    }
}
