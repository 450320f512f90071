//! `volt-vmm run`: boots a kernel.

use std::path::{Path, PathBuf};

use clap::Args;
use volt_vmm::{FileRef, HugePages, IrqchipKind, LentVm, VmConfig, VmShape, parse_memory_mib};

use super::Outcome;
use super::config_file::ConfigFile;
use super::confine::ConfineArgs;
use super::cpu;
use super::devices::DeviceArgs;
use super::image_options::ImageArgs;
use super::log_options::LogArgs;
use super::vms::naming::NamingArgs;
use crate::failure::Failure;
use crate::image_start::ImageStart;
use crate::output::progress;
use crate::process::home;
use crate::process::log;
use crate::process::vm_slot::{DEFAULT_ID, Slot};
use crate::process::{bounds, confinement, start};
use crate::rest::{ApiOptions, Draft};
use crate::run_dir::record::Origin;
use crate::session::Session;

/// Run an image of a container, or boot a Linux kernel whose console is this terminal
///
/// Example: volt-vmm run --name web --kernel vmlinux --disk rootfs.img --memory 512M --vcpus 2
///
/// Example: volt-vmm run --rm -it python:3.12-slim
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Kernel image: an uncompressed vmlinux or a bzImage
    #[arg(long, value_name = "PATH", required_unless_present_any = ["config_file", "image"])]
    pub(super) kernel: Option<FileRef>,

    /// Initial RAM disk
    #[arg(long, value_name = "PATH")]
    pub(super) initrd: Option<FileRef>,

    /// Kernel command line [default: console=ttyS0 reboot=k panic=-1]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(super) cmdline: Option<String>,

    /// Words for the kernel after those of its command line, before a -- there
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    cmdline_append: Option<String>,

    /// Guest memory, such as 512M or 4G [default: 128M]
    #[arg(short, long, value_name = "SIZE")]
    pub(super) memory: Option<String>,

    /// Number of vCPUs, 1 to 32 [default: 1]
    #[arg(long, value_name = "COUNT")]
    vcpus: Option<u32>,

    /// Show each two vCPUs to the guest as threads of one core [default: off]
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    smt: Option<bool>,

    /// Pages of guest memory: none (4 KiB; the host's policy for shared memory may make them huge),
    /// transparent (the same, also in VMs restored from a snapshot) or 2M (huge pages of the host's pool,
    /// /proc/sys/vm/nr_hugepages) [default: none]
    #[arg(long, value_name = "2M|transparent|none")]
    huge_pages: Option<HugePages>,

    /// Interrupt controllers: split (volt-vmm's IOAPIC, for guests that use kvmclock and the TSC-deadline
    /// timer, as Linux does) or kernel (KVM's IOAPIC, PICs and PIT, for guests without ACPI) [default: split]
    #[arg(long, value_name = "KIND")]
    irqchip: Option<IrqchipKind>,

    /// Give the guest another generation id (VMGENID, VMClock) at each restore, fork and rewind, so that its
    /// kernel reseeds its random numbers [default: on]
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    vmgenid: Option<bool>,

    /// Change the CPU that the guest sees by the template in this file, in the form of Firecracker's custom
    /// CPU templates (volt-vmm cpu makes them)
    #[arg(long, value_name = "FILE")]
    cpu_template: Option<PathBuf>,

    #[command(flatten)]
    pub(super) image: ImageArgs,

    // A heading lasts until the next one, or until an option's own.
    #[command(flatten, next_help_heading = "Name and life")]
    pub(super) naming: NamingArgs,

    #[command(flatten, next_help_heading = "Devices and network")]
    devices: DeviceArgs,

    /// Serve the REST API on this unix socket, through which snapshots are taken
    #[arg(long, value_name = "SOCKET", help_heading = "Name and life")]
    pub(super) api_socket: Option<PathBuf>,

    /// Read the VM's configuration from this JSON file; options override the file. Example:
    /// {"boot": {"kernel": "vmlinux", "initrd": "init.cpio"}, "vcpus": 2, "memory_mib": 512}
    #[arg(long, value_name = "PATH", help_heading = None)]
    config_file: Option<PathBuf>,

    /// With --confine strict: let the process open files in this directory while its guest runs, such as
    /// snapshots. Repeatable
    #[arg(long = "allow-path", value_name = "DIR", help_heading = "Log and confinement")]
    allowed: Vec<PathBuf>,

    #[command(flatten, next_help_heading = "Log and confinement")]
    log: LogArgs,

    #[command(flatten)]
    confine: ConfineArgs,
}

impl Run {
    pub(crate) fn execute(mut self) -> Outcome {
        let (naming, api_socket) = (std::mem::take(&mut self.naming), self.api_socket.take());
        naming.run(self.origin(), api_socket, |api_socket| self.ready(|_| Ok(()))?.boot(api_socket, None))
    }

    /// Whether the guest shall have no policy.
    pub(super) fn refuses_policy(&self) -> bool {
        self.devices.refuses_policy()
    }

    /// Whether the user chose interfaces on the command line, or none.
    pub(super) fn chooses_network(&self) -> bool {
        self.devices.chooses_network()
    }

    /// The file that says what boots.
    fn origin(&self) -> Origin {
        let file = self.config_file.as_ref().map(|file| file.display().to_string());
        Origin::Kernel(self.kernel.as_ref().map(ToString::to_string).or(file).unwrap_or_default())
    }

    /// Makes the configuration, which `change` completes, and begins to log.
    pub(super) fn ready(
        mut self,
        change: impl FnOnce(&mut VmConfig) -> Result<(), Failure>,
    ) -> Result<Ready, Failure> {
        let (confine, allowed) = (self.confine.clone(), std::mem::take(&mut self.allowed));
        let (log, mut options) = (self.log.clone(), ApiOptions::default());
        let mut config = self.config(&mut options.draft)?;
        change(&mut config)?;
        config.validate()?;
        log.apply(&home::name())?;
        Ok(Ready { config, allowed, confine, options })
    }

    /// Returns the configuration of file and options together, and puts a file of Firecracker into `draft`.
    fn config(self, draft: &mut Draft) -> Result<VmConfig, Failure> {
        let mut config = match (&self.config_file, &self.kernel) {
            (Some(file), _) => match ConfigFile::read(file)? {
                ConfigFile::Own(config) => config,
                ConfigFile::Firecracker(of_file) => {
                    *draft = of_file;
                    draft.config().unwrap_or_else(|| unreachable!("the file has a boot source"))
                }
            },
            (None, Some(kernel)) => VmConfig::new(kernel.clone()),
            (None, None) => unreachable!("clap requires one of the two"),
        };
        if let Some(kernel) = self.kernel {
            config.boot.kernel = kernel;
        }
        if self.initrd.is_some() {
            config.boot.initrd = self.initrd;
        }
        if let Some(cmdline) = self.cmdline {
            config.boot.cmdline = cmdline;
        }
        if let Some(memory) = self.memory {
            config.memory_mib = parse_memory_mib(&memory)?;
        }
        if let Some(vcpus) = self.vcpus {
            // Out of range either way: `validate` refuses it by its name.
            config.vcpus = u8::try_from(vcpus).unwrap_or(u8::MAX);
        }
        config.smt = self.smt.unwrap_or(config.smt);
        config.huge_pages = self.huge_pages.unwrap_or(config.huge_pages);
        config.irqchip = self.irqchip.unwrap_or(config.irqchip);
        config.vmgenid = self.vmgenid.unwrap_or(config.vmgenid);
        if let Some(path) = &self.cpu_template {
            config.cpu_template = Some(Box::new(cpu::read(path)?));
        }
        let has_disk = self.devices.has_disk();
        self.devices.add_to(&mut config.devices)?;
        if has_disk {
            name_root_device(&mut config);
        }
        if let Some(words) = self.cmdline_append {
            config.boot.add_to_cmdline(&words);
        }
        config.validate()?;
        Ok(config)
    }
}

/// A VM that can start.
pub(super) struct Ready {
    pub(super) config: VmConfig,
    pub(super) allowed: Vec<PathBuf>,
    pub(super) confine: ConfineArgs,
    options: ApiOptions,
}

impl Ready {
    /// Boots the VM. One of an image then takes the steps to the start of its main process.
    pub(super) fn boot(self, api_socket: Option<PathBuf>, image: Option<ImageStart>) -> Outcome {
        let Self { config, allowed, confine, options } = self;
        boot(config, &allowed, confine, api_socket.as_deref(), Some(home::name()), options, image)
    }
}

/// Makes the first disk the root file system, unless there is an initrd or the command line names another.
fn name_root_device(config: &mut VmConfig) {
    let VmConfig { boot, devices, .. } = config;
    if let Some(first) = devices.disks.first()
        && boot.initrd.is_none()
        && !boot.names_root()
    {
        boot.add_to_cmdline(if first.read_only { "root=/dev/vda ro" } else { "root=/dev/vda rw" });
    }
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("it is one of on, off".to_owned()),
    }
}

/// Boots a VM with this configuration and runs it to its end, with the name `id`, or the default one. `image`
/// follows the boot.
pub(super) fn boot(
    config: VmConfig,
    allowed: &[PathBuf],
    confine: ConfineArgs,
    api_socket: Option<&Path>,
    id: Option<String>,
    mut options: ApiOptions,
    image: Option<ImageStart>,
) -> Outcome {
    options.open_metrics()?;
    if let Some(logger) = options.draft.logger.clone() {
        log::change(id.as_deref().unwrap_or(DEFAULT_ID), logger.into())?;
    }
    let console = options.draft.serial_output().open()?;
    let mut choice = confine.choice(|| bounds::of(allowed, Some(&config.devices), None));
    api_socket.into_iter().for_each(|socket| choice.add_socket(socket));
    confinement::apply(choice, Some(VmShape::of(&config)))?;
    let slot = id.map_or_else(Slot::new, Slot::with_id);
    let mut session = Session::with_slot(slot, api_socket)?.serving(options).starting_image(image);
    session.watch_signals()?;
    session.run("boot a VM", || {
        progress::during("starting the VM", || start::boot(config, console)).map(LentVm::from)
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use volt_vmm::report;

    use super::*;
    use crate::rest::testing::Dir;

    #[derive(Debug, Parser)]
    struct RunLine {
        #[command(flatten)]
        run: Run,
    }

    fn config(line: &[&str]) -> Result<VmConfig, String> {
        let line = RunLine::try_parse_from([&["run"], line].concat()).map_err(|error| error.to_string())?;
        line.run.config(&mut Draft::default()).map_err(|failure| report(&failure))
    }

    #[test]
    fn options_without_a_file_make_the_config() {
        let made =
            config(&["--kernel", "/k", "--memory", "1G", "--vcpus", "2", "--cmdline", "-x y"]).unwrap();
        assert_eq!((made.memory_mib, made.vcpus, made.boot.cmdline.as_str()), (1024, 2, "-x y"));
        assert_eq!(made.irqchip, IrqchipKind::default());
        for (value, kind) in [("kernel", IrqchipKind::Kernel), ("split", IrqchipKind::Split)] {
            assert_eq!(config(&["--kernel", "/k", "--irqchip", value]).unwrap().irqchip, kind);
        }
        for (value, kind) in
            [("none", HugePages::None), ("transparent", HugePages::Transparent), ("2M", HugePages::Hugetlb)]
        {
            assert_eq!(config(&["--kernel", "/k", "--huge-pages", value]).unwrap().huge_pages, kind);
        }
        let error = config(&["--kernel", "/k", "--huge-pages", "1G"]).unwrap_err();
        assert!(error.contains("--huge-pages") && error.contains("none, transparent, 2M"), "{error}");
        let error = config(&["--kernel", "/k", "--irqchip", "none"]).unwrap_err();
        assert!(error.contains("--irqchip") && error.contains("kernel, split"), "{error}");
    }

    #[test]
    fn first_disk_is_the_root_file_system_unless_something_else_is() {
        let cmdline =
            |options: &[&str]| config(&[&["--kernel", "/k"], options].concat()).unwrap().boot.cmdline;
        let default = "console=ttyS0 reboot=k panic=-1";
        assert_eq!(cmdline(&[]), default);
        assert_eq!(cmdline(&["--disk", "/r"]), format!("{default} root=/dev/vda rw"));
        assert_eq!(cmdline(&["--disk", "/r,ro", "--cmdline", "quiet"]), "quiet root=/dev/vda ro");
        assert_eq!(cmdline(&["--disk", "/r", "--initrd", "/i"]), default);
        assert_eq!(cmdline(&["--disk", "/r", "--cmdline", "root=/dev/vdb"]), "root=/dev/vdb");
        assert_eq!(
            cmdline(&["--disk", "/r", "--cmdline-append", "init=/bin/sh -x"]),
            format!("{default} root=/dev/vda rw init=/bin/sh -x")
        );
        assert_eq!(cmdline(&["--cmdline", "", "--cmdline-append", "a"]), "a");
        assert_eq!(
            cmdline(&["--disk", "/r", "--cmdline", "quiet -- root=x", "--cmdline-append", "a=1"]),
            "quiet root=/dev/vda rw a=1 -- root=x"
        );
    }

    #[test]
    fn generation_id_is_on_unless_an_option_or_the_file_says_off() {
        let vmgenid = |options: &[&str]| config(&[&["--kernel", "/k"], options].concat()).unwrap().vmgenid;
        assert!(vmgenid(&[]) && vmgenid(&["--vmgenid", "on"]) && !vmgenid(&["--vmgenid", "off"]));
        let error = config(&["--kernel", "/k", "--vmgenid", "no"]).unwrap_err();
        assert!(error.contains("--vmgenid") && error.contains("on, off"), "{error}");
        let dir = Dir::new();
        let file = dir.path("vm.json");
        std::fs::write(&file, r#"{"boot":{"kernel":"/k"},"vmgenid":false}"#).unwrap();
        let of_file = ["--config-file", file.to_str().unwrap()];
        assert!(!vmgenid(&of_file) && vmgenid(&[&of_file[..], &["--vmgenid", "on"]].concat()));
    }

    #[test]
    fn options_override_the_file() {
        let dir = Dir::new();
        let file = dir.path("vm.json");
        let path = file.to_str().unwrap();
        let text = r#"{"boot":{"kernel":"/k","initrd":"/i"},"vcpus":2,"memory_mib":512,"irqchip":"split"}"#;
        std::fs::write(&file, text).unwrap();
        let from_file = config(&["--config-file", path]).unwrap();
        assert_eq!((from_file.vcpus, from_file.memory_mib), (2, 512));
        assert_eq!(from_file.irqchip, IrqchipKind::Split);
        let both = config(&["--config-file", path, "--vcpus", "4", "--kernel", "/l"]).unwrap();
        assert_eq!((both.vcpus, both.memory_mib), (4, 512));
        assert_eq!((both.boot.kernel, both.boot.initrd), (FileRef::from("/l"), Some(FileRef::from("/i"))));
        std::fs::write(&file, r#"{"boot":{"kernel":"/k"},"vcpu":2}"#).unwrap();
        let error = config(&["--config-file", path]).unwrap_err();
        assert!(error.contains(path) && error.contains("unknown field `vcpu`"), "{error}");
        let error = config(&["--config-file", "/no/such"]).unwrap_err();
        assert!(error.starts_with("cannot read config file /no/such: "), "{error}");
    }

    #[test]
    fn cpu_template_comes_from_the_option_or_from_a_file_of_firecracker() {
        let dir = Dir::new();
        let (file, one, other) = (dir.path("vm.json"), dir.path("one.json"), dir.path("other.json"));
        let msr = |index| format!(r#"{{"msr_modifiers":[{{"addr":"{index}","bitmap":"0b0"}}]}}"#);
        std::fs::write(&one, msr("0x10a")).unwrap();
        std::fs::write(&other, msr("0x345")).unwrap();
        let text = |more: &str| {
            format!(r#"{{"boot-source":{{"kernel_image_path":"/k"}},"cpu-config":{one:?}{more}}}"#)
        };
        let path = file.to_str().unwrap();
        let index = |options: &[&str]| {
            config(options).map(|config| config.cpu_template.unwrap().msrs[0].index.to_string())
        };
        std::fs::write(&file, text("")).unwrap();
        assert_eq!(index(&["--config-file", path]).unwrap(), "0x10a");
        let options = ["--config-file", path, "--cpu-template", other.to_str().unwrap()];
        assert_eq!(index(&options).unwrap(), "0x345");
        let static_too = r#","machine-config":{"vcpu_count":1,"mem_size_mib":64,"cpu_template":"T2"}"#;
        std::fs::write(&file, text(static_too)).unwrap();
        assert_eq!(index(&["--config-file", path]).unwrap(), "0x10a", "the custom template counts");
        std::fs::write(&one, "[1]").unwrap();
        let error = index(&["--config-file", path]).unwrap_err();
        assert!(error.starts_with("CPU template ") && error.contains("one.json: invalid"), "{error}");
        std::fs::remove_file(&one).unwrap();
        let error = index(&["--kernel", "/k", "--cpu-template", one.to_str().unwrap()]).unwrap_err();
        assert!(error.starts_with("cannot read CPU template "), "{error}");
    }

    #[test]
    fn invalid_machine_is_refused_by_its_field() {
        for (option, value, words) in [
            ("--vcpus", "0", "vcpus"),
            ("--vcpus", "1000", "vcpus"),
            ("--memory", "0", "memory"),
            ("--memory", "1000001B", "memory"),
        ] {
            let error = config(&["--kernel", "/k", option, value]).unwrap_err();
            assert!(error.starts_with(words), "{error}");
        }
    }
}
