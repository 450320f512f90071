//! A place for images and their VMs that is a benchmark's own.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use crate::command_line::Program;
use crate::scratch::Scratch;
use crate::{OrSay, Result};

/// The image, and what its VMs need.
#[derive(Args, Clone, Debug)]
pub struct ImageOptions {
    /// Archive of the image, such as scripts/image.sh makes
    #[arg(long, value_name = "FILE")]
    archive: PathBuf,

    /// Name of the image in it
    #[arg(long, value_name = "NAME")]
    pub image: String,

    /// Directory with kernel and agent.cpio, such as scripts/guest-files.sh makes
    #[arg(long, value_name = "DIR")]
    guest: PathBuf,

    /// Memory of each VM
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    memory: String,

    /// Kernel command line of each VM
    #[arg(long, value_name = "TEXT", default_value = "console=ttyS0 reboot=k panic=-1 quiet")]
    pub cmdline: String,

    /// A word more for each VM, such as --vcpus=2. Repeatable
    #[arg(long = "option", value_name = "WORD", allow_hyphen_values = true)]
    options: Vec<String>,

    #[command(flatten)]
    program: Program,
}

impl ImageOptions {
    /// Options of `run` for each VM. It has no network, unless an option of the user gives it one.
    #[must_use]
    pub fn shape(&self) -> Vec<OsString> {
        let no_network = if self.value_of("--net").is_none() { &["--net", "none"][..] } else { &[] };
        let words = ["--memory", &self.memory, "--cmdline", &self.cmdline].into_iter();
        let words = words.chain(no_network.iter().copied());
        words.chain(self.options.iter().map(String::as_str)).map(OsString::from).collect()
    }

    /// The value of an option of `run` for each VM.
    #[must_use]
    pub fn value_of(&self, option: &str) -> Option<&str> {
        value_of(&self.options, option)
    }

    /// MiB of each VM's memory.
    ///
    /// # Errors
    /// The option is no size of memory.
    pub fn memory_mib(&self) -> Result<u64> {
        volt_vmm::parse_memory_mib(&self.memory).or_say("read --memory")
    }

    /// Kernel and initramfs of each VM.
    #[must_use]
    pub fn boot_files(&self) -> [PathBuf; 2] {
        ["kernel", "agent.cpio"].map(|name| self.guest.join(name))
    }
}

/// The value of an option among words such as `--vcpus=2` and `--vcpus 2`.
fn value_of<'a>(words: &'a [String], option: &str) -> Option<&'a str> {
    let of_word = |(number, word): (usize, &'a String)| match word.strip_prefix(option)? {
        "" => words.get(number + 1).map(String::as_str),
        rest => rest.strip_prefix('='),
    };
    words.iter().enumerate().find_map(of_word)
}

/// See the module.
#[derive(Debug)]
pub struct ImageHost {
    program: PathBuf,
    /// The second is the directory of VMs that run.
    environment: Vec<(&'static str, PathBuf)>,
    data: PathBuf,
}

impl ImageHost {
    /// Makes the directories, and stores the image.
    ///
    /// # Errors
    /// The file system refuses, or the archive has no image.
    pub fn new(scratch: &Scratch, options: &ImageOptions) -> Result<Self> {
        let [run, data, home] = ["run", "data", "home"].map(|name| scratch.path(name));
        for path in [&run, &data, &home] {
            DirBuilder::new().mode(0o700).create(path).or_say("make a directory")?;
        }
        let mut environment = vec![("VOLT_GUEST", options.guest.clone())];
        environment.extend([("VOLT_RUN_DIR", run), ("VOLT_DATA_DIR", data.clone()), ("HOME", home)]);
        let host = Self { program: options.program.path()?, environment, data };
        host.output(["image", "load", &options.archive.display().to_string()])?;
        Ok(host)
    }

    /// A directory below the data of this place, such as `images`.
    #[must_use]
    pub fn data(&self, name: &str) -> PathBuf {
        self.data.join(name)
    }

    /// The unix socket of a VM's vsock.
    #[must_use]
    pub fn vsock(&self, vm: &str) -> PathBuf {
        let (_, run) = &self.environment[1];
        run.join(vm).join("vsock")
    }

    /// Files of the image: its metadata and layers. There is no other image here.
    ///
    /// # Errors
    /// The store cannot be listed.
    pub fn image_files(&self) -> Result<Vec<PathBuf>> {
        let images = self.data("images");
        let mut directories = vec![images.join("layers")];
        let list = |path: &PathBuf| fs::read_dir(path).or_say("list the images");
        directories.extend(list(&images.join("images"))?.flatten().map(|entry| entry.path()));
        let mut files = Vec::new();
        for directory in directories {
            files.extend(list(&directory)?.flatten().map(|entry| entry.path()));
        }
        files.retain(|path| path.extension().is_some_and(|extension| extension == "erofs"));
        if files.is_empty() { Err("the image has no files".to_owned()) } else { Ok(files) }
    }

    /// The variable and value by which all processes of this place are known.
    #[must_use]
    pub fn mark(&self) -> Vec<u8> {
        let (_, run) = &self.environment[1];
        format!("VOLT_RUN_DIR={}", run.display()).into_bytes()
    }

    /// Removes warm snapshots, so that the next run boots.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn forget_warm(&self) -> Result<()> {
        let warm = self.data("warm");
        if warm.exists() { fs::remove_dir_all(warm).or_say("remove warm snapshots") } else { Ok(()) }
    }

    /// A command of volt-vmm in this place.
    pub fn command<W: Into<OsString>>(&self, words: impl IntoIterator<Item = W>) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words.into_iter().map(Into::into)).envs(self.environment.iter().cloned());
        command.stdin(Stdio::null());
        command
    }

    /// Runs a command to its end, and returns its output.
    ///
    /// # Errors
    /// It fails.
    pub fn output<W: Into<OsString>>(&self, words: impl IntoIterator<Item = W>) -> Result<String> {
        self.bytes(words).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// As [`Self::output`], byte by byte as it came.
    ///
    /// # Errors
    /// It fails.
    pub fn bytes<W: Into<OsString>>(&self, words: impl IntoIterator<Item = W>) -> Result<Vec<u8>> {
        let mut command = self.command(words);
        let output = command.output().or_say("run volt-vmm")?;
        match output.status.success() {
            true => Ok(output.stdout),
            false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }

    /// Runs a command to its end. Returns the time until its output had these bytes.
    ///
    /// # Errors
    /// It fails, or its output lacks them.
    pub fn time_until<W: Into<OsString>>(
        &self,
        wanted: &[u8],
        words: impl IntoIterator<Item = W>,
    ) -> Result<Duration> {
        let mut command = self.command(words);
        let start = Instant::now();
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().or_say("run volt-vmm")?;
        let output = child.stdout.as_mut().expect("it is a pipe");
        let (mut seen, mut buffer, mut took) = (Vec::new(), [0; 4096], None);
        while let Ok(read @ 1..) = output.read(&mut buffer) {
            seen.extend_from_slice(&buffer[..read]);
            if took.is_none() && seen.windows(wanted.len()).any(|window| window == wanted) {
                took = Some(start.elapsed());
            }
        }
        let ended = child.wait_with_output().or_say("wait for volt-vmm")?;
        took.ok_or_else(|| {
            let [output, errors] = [&seen, &ended.stderr].map(|bytes| String::from_utf8_lossy(bytes));
            format!("{command:?} did not print {:?}: {output}{errors}", String::from_utf8_lossy(wanted))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_follows_its_option_in_the_same_word_or_the_next() {
        let words = ["--vcpus=2", "--cpu-template", "file", "--vcpus-more=3"].map(str::to_owned);
        assert_eq!(value_of(&words, "--vcpus"), Some("2"));
        assert_eq!(value_of(&words, "--cpu-template"), Some("file"));
        assert_eq!(value_of(&words, "--irqchip"), None);
        assert_eq!(value_of(&words[..2], "--cpu-template"), None);
    }
}
