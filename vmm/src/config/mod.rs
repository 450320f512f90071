//! Configuration of a VM: one type for the library, REST, the command line and the configuration file. It
//! knows no KVM and opens only the files that it names.
//!
//! Programs make it by constructors and setters ([`VmConfig::new`], [`devices::DiskConfig::new`]), so that
//! new fields do not break them. The crates of this repository list all fields (feature `internal`): a new
//! field does not compile until each of them has it.

use std::fmt;
use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Invalid, Result};
use crate::paths;

pub mod clock_mode;
pub mod cpu;
pub mod devices;
pub mod disk_content;
pub mod huge_pages;
pub mod irqchip;
pub(crate) mod mac;
pub mod metadata;
pub mod network;
pub mod overrides;
mod setters;
pub(crate) mod sharing;
pub mod size;
pub mod socket_path;
mod template;
pub mod user_network;

pub use clock_mode::ClockMode;
pub use cpu::CpuTemplate;
pub use devices::Devices;
pub use disk_content::DiskContent;
pub use huge_pages::HugePages;
pub use irqchip::IrqchipKind;
pub use overrides::Overrides;
pub use size::parse_size;
pub use socket_path::SocketPath;

/// Most vCPUs a VM can have.
pub const MAX_VCPUS: u8 = 32;
/// Bytes of a MiB, the unit of guest memory.
pub const MIB: u64 = 1 << 20;
/// Default kernel command line.
pub const DEFAULT_CMDLINE: &str = "console=ttyS0 reboot=k panic=-1";

/// Configuration of a VM. A snapshot saves it, and a restore applies a clone's overrides to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(feature = "internal"), non_exhaustive)]
pub struct VmConfig {
    /// Kernel, initrd and command line. A restored VM keeps them as a record and reads none of the files.
    pub boot: BootConfig,
    /// Number of vCPUs, 1 to [`MAX_VCPUS`].
    #[serde(default = "one")]
    pub vcpus: u8,
    /// Shows each two vCPUs as threads of one core. Their number is 1 or even.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub smt: bool,
    /// Guest memory in MiB.
    #[serde(default = "default_memory_mib")]
    pub memory_mib: u64,
    /// Size of the pages under guest memory.
    #[serde(default, skip_serializing_if = "HugePages::is_none")]
    pub huge_pages: HugePages,
    /// Location of the interrupt controllers.
    #[serde(default)]
    pub irqchip: IrqchipKind,
    /// VMGENID and VMClock: a restore, a fork or a rewind gives the guest a new generation id, at which its
    /// kernel reseeds its random numbers.
    #[serde(default = "yes")]
    pub vmgenid: bool,
    /// Logs the time of the boot when the guest writes the byte 123 to guest physical address 0xc0000000.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub boot_timer: bool,
    /// Changes of the CPU that the guest sees, made when it boots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_template: Option<Box<CpuTemplate>>,
    /// Virtio devices.
    #[serde(default, skip_serializing_if = "Devices::is_none")]
    pub devices: Devices,
}

/// Kernel, initrd and command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(feature = "internal"), non_exhaustive)]
pub struct BootConfig {
    /// An uncompressed ELF `vmlinux` or a bzImage.
    pub kernel: FileRef,
    /// Initial RAM disk, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initrd: Option<FileRef>,
    /// Kernel command line.
    #[serde(default = "default_cmdline")]
    pub cmdline: String,
}

impl BootConfig {
    /// Adds words for the kernel to the command line. The words after `--` stay those for init.
    pub fn add_to_cmdline(&mut self, words: &str) {
        volt_kernel::cmdline::add_words(&mut self.cmdline, words);
    }

    /// Whether a word of the command line names the kernel's root device.
    #[must_use]
    pub fn names_root(&self) -> bool {
        let mut words = volt_kernel::cmdline::kernel_part(&self.cmdline).split_ascii_whitespace();
        words.any(|word| word.starts_with("root="))
    }
}

fn yes() -> bool {
    true
}

fn one() -> u8 {
    1
}

fn default_memory_mib() -> u64 {
    128
}

fn default_cmdline() -> String {
    DEFAULT_CMDLINE.to_owned()
}

impl VmConfig {
    /// Returns a VM with one vCPU and 128 MiB that boots `kernel`.
    #[must_use]
    pub fn new(kernel: impl Into<FileRef>) -> Self {
        let boot = BootConfig { kernel: kernel.into(), initrd: None, cmdline: default_cmdline() };
        Self {
            boot,
            vcpus: one(),
            smt: false,
            memory_mib: default_memory_mib(),
            huge_pages: HugePages::default(),
            irqchip: IrqchipKind::default(),
            vmgenid: yes(),
            boot_timer: false,
            cpu_template: None,
            devices: Devices::default(),
        }
    }

    /// Returns the size of guest memory in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory_mib * MIB
    }

    /// Checks the fields; files are checked when they are opened.
    ///
    /// # Errors
    /// [`Error::Config`] names the field and the rule.
    pub fn validate(&self) -> Result<()> {
        if self.vcpus == 0 || self.vcpus > MAX_VCPUS {
            return Err(Error::config("vcpus", Invalid::VcpuCount { given: self.vcpus, most: MAX_VCPUS }));
        }
        if self.smt && self.vcpus > 1 && !self.vcpus.is_multiple_of(2) {
            return Err(Error::config("vcpus", Invalid::OddThreads { given: self.vcpus }));
        }
        if self.memory_mib == 0 {
            return Err(Error::config("memory", Invalid::NoMemory));
        }
        // No x86 user address space has more than 46 bits. Mapping finds the limit of this host.
        if self.memory_mib > (1 << 46) / MIB {
            return Err(Error::config("memory", Invalid::TooMuchMemory { mib: self.memory_mib }));
        }
        if !self.huge_pages.is_none() && !self.memory_mib.is_multiple_of(huge_pages::HUGE_MIB) {
            return Err(Error::config("memory", Invalid::HugePageSize { mib: self.memory_mib }));
        }
        if let Some(balloon) = &self.devices.balloon {
            devices::balloon_pages(balloon.target_mib, self.memory_mib)?;
        }
        if let Some(template) = &self.cpu_template {
            template.validate()?;
        }
        self.devices.validate()
    }

    /// Checks the fields for a VM that boots. A restore does not apply the additional rules.
    ///
    /// # Errors
    /// [`Error::Config`] as for [`VmConfig::validate`], and for devices on the kernel command line of a
    /// machine with split interrupt controllers.
    pub fn validate_boot(&self) -> Result<()> {
        if self.devices.on_cmdline && self.irqchip == IrqchipKind::Split {
            return Err(Error::config("irqchip", Invalid::CmdlineDevicesWithSplit));
        }
        self.validate()
    }
}

/// Parses a size of guest memory: `512M`, `4G`, `262144K`, or a plain number of MiB.
///
/// # Errors
/// [`Error::Config`] for another text, for 0, and for a size that is not a whole number of MiB.
pub fn parse_memory_mib(text: &str) -> Result<u64> {
    let bad = |why: &str| Error::config("memory", format!("{text:?}: {why}"));
    let bytes = parse_size(text, MIB).map_err(bad)?;
    if bytes == 0 {
        return Err(bad("a VM needs memory"));
    }
    if bytes % 4096 != 0 {
        return Err(bad("not a whole number of 4 KiB pages"));
    }
    if bytes % MIB != 0 {
        return Err(bad("not a whole number of MiB"));
    }
    Ok(bytes / MIB)
}

/// A file given by its path, or by an open descriptor (a confined process cannot open files). Written as the
/// path, or as `fd:N`. A number from a file or a request names no descriptor: its writer cannot know which
/// are open here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileRef {
    /// A path.
    Path(PathBuf),
    /// A file that was checked and is held open, since its path may lead to another one later. Written as the
    /// path.
    Checked(CheckedFile),
    /// An open descriptor of this process. Use duplicates it; the caller keeps it.
    Fd(RawFd),
    /// The number of a descriptor that a state file, a configuration file or a request named. Never used.
    Untrusted(RawFd),
}

impl FileRef {
    /// Accepts the number of a descriptor that an argument of this process named, since its writer knows
    /// which are open.
    pub fn trust_descriptor(&mut self) {
        if let Self::Untrusted(fd) = self {
            *self = Self::Fd(*fd);
        }
    }

    /// Whether no file is named.
    #[must_use]
    pub fn is_none(&self) -> bool {
        matches!(self, Self::Path(path) if path.as_os_str().is_empty())
    }

    /// Closes the descriptor through which the file was checked.
    pub fn release(&mut self) {
        if let Self::Checked(CheckedFile { path, .. }) = self {
            *self = Self::Path(std::mem::take(path));
        }
    }

    /// Opens the file for reading.
    ///
    /// # Errors
    /// [`Error::File`] names the file and the act.
    pub fn open(&self, what: &'static str) -> Result<File> {
        let opened = match self {
            // O_NONBLOCK: opening a pipe would wait for its writer.
            Self::Path(path) => paths::open(path, OFlags::RDONLY | OFlags::NONBLOCK, 0),
            Self::Checked(file) => paths::reopen(&file.file, OFlags::RDONLY | OFlags::NONBLOCK),
            Self::Fd(fd) => duplicate(*fd),
            Self::Untrusted(_) => Err(untrusted()),
        };
        opened.map_err(|source| Error::file(what, self.to_string(), source))
    }

    /// Opens the file for reading and writing. With `make`, a missing file is created.
    ///
    /// # Errors
    /// [`Error::File`] as for [`FileRef::open`], and for a descriptor that cannot be written.
    pub fn open_writable(&self, what: &'static str, make: bool) -> Result<File> {
        let make = if make { OFlags::CREATE } else { OFlags::empty() };
        let flags = OFlags::RDWR | OFlags::NONBLOCK | make;
        let opened = match self {
            Self::Path(path) => paths::open(path, flags, 0o600),
            Self::Checked(file) => paths::reopen(&file.file, flags),
            Self::Fd(fd) => duplicate(*fd).and_then(|file| {
                let access = rustix::fs::fcntl_getfl(&file)? & rustix::fs::OFlags::RWMODE;
                match access == rustix::fs::OFlags::RDWR {
                    true => Ok(file),
                    false => Err(std::io::Error::other("the descriptor is not open for reading and writing")),
                }
            }),
            Self::Untrusted(_) => Err(untrusted()),
        };
        opened.map_err(|source| Error::file(what, self.to_string(), source))
    }
}

/// The file of [`FileRef::Checked`].
#[derive(Clone, Debug)]
pub struct CheckedFile {
    path: PathBuf,
    /// Opened with `O_PATH`.
    file: Arc<OwnedFd>,
}

impl CheckedFile {
    /// Takes `file`, which was opened at `path` with `O_PATH`.
    #[must_use]
    pub fn new(path: PathBuf, file: OwnedFd) -> Self {
        Self { path, file: Arc::new(file) }
    }

    /// Returns the path at which it was found.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl PartialEq for CheckedFile {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for CheckedFile {}

fn untrusted() -> std::io::Error {
    std::io::Error::other(
        "only the command line and the library may name a descriptor, and not a file or a request; give a \
         path",
    )
}

#[allow(unsafe_code)]
fn duplicate(fd: RawFd) -> std::io::Result<File> {
    if fd < 0 {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the descriptor is only borrowed during the call that duplicates it; if it is not open, the
    // kernel answers EBADF. It cannot be -1, the one value that BorrowedFd excludes.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(File::from(borrowed.try_clone_to_owned()?))
}

/// No file.
impl Default for FileRef {
    fn default() -> Self {
        Self::Path(PathBuf::new())
    }
}

impl fmt::Display for FileRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) | Self::Checked(CheckedFile { path, .. }) => path.display().fmt(f),
            Self::Fd(fd) | Self::Untrusted(fd) => write!(f, "fd:{fd}"),
        }
    }
}

impl FromStr for FileRef {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let descriptor = text.strip_prefix("fd:").and_then(|n| n.parse().ok()).filter(|n| *n >= 0);
        Ok(descriptor.map_or_else(|| Self::Path(text.into()), Self::Fd))
    }
}

impl<P: AsRef<Path> + ?Sized> From<&P> for FileRef {
    fn from(path: &P) -> Self {
        Self::Path(path.as_ref().to_owned())
    }
}

impl From<PathBuf> for FileRef {
    fn from(path: PathBuf) -> Self {
        Self::Path(path)
    }
}

impl Serialize for FileRef {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FileRef {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let Ok(file) = String::deserialize(deserializer)?.parse();
        Ok(match file {
            Self::Fd(fd) => Self::Untrusted(fd),
            file => file,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_sizes_have_units() {
        for (text, mib) in [("512M", 512), ("4G", 4096), ("262144K", 256), ("64", 64), ("1T", 1 << 20)] {
            assert_eq!(parse_memory_mib(text).unwrap(), mib, "{text}");
        }
        for (text, why) in [
            ("0", "needs memory"),
            ("0M", "needs memory"),
            ("5000B", "4 KiB pages"),
            ("4K", "whole number of MiB"),
            ("12X", "unit"),
            ("", "not a number"),
            ("-1", "not a number"),
            ("99999999999999999999G", "not a number"),
            ("9999999999999999G", "too large"),
        ] {
            let error = parse_memory_mib(text).unwrap_err().to_string();
            assert!(error.contains("memory") && error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn invalid_config_is_refused_by_its_field() {
        let good = VmConfig::new("/k");
        good.validate().unwrap();
        for vcpus in [0, 33] {
            let error = VmConfig { vcpus, ..good.clone() }.validate().unwrap_err().to_string();
            assert!(error.contains("vcpus") && error.contains("1 to 32"), "{error}");
        }
        let devices = serde_json::from_str(r#"{"balloon":{"target_mib":129}}"#).unwrap();
        let error = VmConfig { devices, ..good.clone() }.validate().unwrap_err().to_string();
        assert_eq!(error, "balloon target_mib: 129 MiB asked for; the guest has 128");
        for huge_pages in [HugePages::Transparent, HugePages::Hugetlb] {
            let odd = VmConfig { huge_pages, memory_mib: 129, ..good.clone() };
            let error = odd.validate().unwrap_err().to_string();
            assert_eq!(error, "memory: 129 MiB is not a multiple of 2 MiB, the size of a huge page");
            VmConfig { memory_mib: 130, ..odd }.validate().unwrap();
        }
        for memory_mib in [0, u64::MAX] {
            let error = VmConfig { memory_mib, ..good.clone() }.validate().unwrap_err().to_string();
            assert!(error.contains("memory"), "{error}");
        }
    }

    #[test]
    fn config_survives_json_and_refuses_unknown_fields() {
        let text = r#"{"boot":{"kernel":"/k","initrd":"fd:7"},"vcpus":2}"#;
        let config: VmConfig = serde_json::from_str(text).unwrap();
        assert_eq!(config.boot.initrd, Some(FileRef::Untrusted(7)));
        let error =
            crate::error::report(&config.boot.initrd.as_ref().unwrap().open("open initrd").unwrap_err());
        assert!(
            error.contains("initrd fd:7: only the command line and the library may name a descriptor"),
            "{error}"
        );
        assert_eq!("fd:7".parse(), Ok(FileRef::Fd(7)), "as an argument is");
        assert_eq!(config.memory_mib, 128);
        assert_eq!(config.boot.cmdline, DEFAULT_CMDLINE);
        let again: VmConfig = serde_json::from_str(&serde_json::to_string(&config).unwrap()).unwrap();
        assert_eq!(config, again);
        let error = serde_json::from_str::<VmConfig>(r#"{"boot":{"kernel":"/k"},"vcpu":2}"#).unwrap_err();
        assert!(error.to_string().contains("vcpu"), "{error}");
    }

    #[test]
    fn closed_descriptor_is_refused_by_its_number() {
        let error = FileRef::Fd(1_000_000).open("open kernel").unwrap_err().to_string();
        assert_eq!(error, "cannot open kernel fd:1000000");
    }

    #[test]
    fn read_only_descriptor_is_refused_for_writing() {
        let file = File::open("/proc/self/exe").unwrap();
        let given = FileRef::Fd(std::os::fd::AsRawFd::as_raw_fd(&file));
        given.open("open disk").unwrap();
        let error = crate::error::report(&given.open_writable("open disk", false).unwrap_err());
        assert!(error.ends_with("the descriptor is not open for reading and writing"), "{error}");
        FileRef::from("/nonexistent/disk").open_writable("open disk", false).unwrap_err();
    }

    #[test]
    fn devices_on_the_command_line_boot_with_the_kernels_irqchip_only() {
        let mut config = VmConfig::new(PathBuf::from("/k"));
        config.devices.on_cmdline = true;
        let error = config.validate_boot().unwrap_err().to_string();
        assert!(error.starts_with("irqchip: split") && error.ends_with("use kernel"), "{error}");
        config.validate().unwrap();
        config.irqchip = IrqchipKind::Kernel;
        config.validate_boot().unwrap();
    }
}
