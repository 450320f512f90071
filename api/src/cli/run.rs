//! `volt-vmm run`: boots a kernel.

use std::path::{Path, PathBuf};

use clap::Args;
use volt_vmm::{FileRef, IrqchipKind, LentVm, VmConfig, VmShape, parse_memory_mib};

use super::Outcome;
use super::config_file::ConfigFile;
use super::confine::ConfineArgs;
use super::devices::DeviceArgs;
use crate::failure::Failure;
use crate::output::progress;
use crate::process::log;
use crate::process::vm_slot::{DEFAULT_ID, Slot};
use crate::process::{bounds, confinement, start};
use crate::rest::{ApiOptions, Draft};
use crate::session::Session;

/// Boot a Linux kernel; its console is this terminal
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Kernel image: an uncompressed vmlinux or a bzImage
    #[arg(long, value_name = "PATH", required_unless_present = "config_file")]
    kernel: Option<FileRef>,

    /// Initial RAM disk
    #[arg(long, value_name = "PATH")]
    initrd: Option<FileRef>,

    /// Kernel command line [default: console=ttyS0 reboot=k panic=-1]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    cmdline: Option<String>,

    /// Guest memory, such as 512M or 4G [default: 128M]
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,

    /// Number of vCPUs, 1 to 32 [default: 1]
    #[arg(long, value_name = "COUNT")]
    vcpus: Option<u32>,

    /// Interrupt controllers: split (volt-vmm's IOAPIC, for guests that use kvmclock and the TSC-deadline
    /// timer, as Linux does) or kernel (KVM's IOAPIC, PICs and PIT, for guests without ACPI) [default: split]
    #[arg(long, value_name = "KIND")]
    irqchip: Option<IrqchipKind>,

    /// Give the guest another generation id (VMGENID, VMClock) at each restore, fork and rewind, so that its
    /// kernel reseeds its random numbers [default: on]
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    vmgenid: Option<bool>,

    #[command(flatten)]
    devices: DeviceArgs,

    /// Serve the REST API on this unix socket, through which snapshots are taken
    #[arg(long, value_name = "SOCKET")]
    api_socket: Option<PathBuf>,

    /// Read the VM's configuration from this JSON file; options override the file. Example:
    /// {"boot": {"kernel": "vmlinux", "initrd": "init.cpio"}, "vcpus": 2, "memory_mib": 512}
    #[arg(long, value_name = "PATH")]
    config_file: Option<PathBuf>,

    /// With --confine strict: let the process open files in this directory while its guest runs, such as
    /// snapshots. Repeatable
    #[arg(long = "allow-path", value_name = "DIR")]
    allowed: Vec<PathBuf>,

    #[command(flatten)]
    confine: ConfineArgs,
}

impl Run {
    pub(crate) fn execute(mut self) -> Outcome {
        let api_socket = self.api_socket.take();
        let (confine, allowed) = (self.confine.clone(), std::mem::take(&mut self.allowed));
        let mut options = ApiOptions::default();
        let config = self.config(&mut options.draft)?;
        boot(config, &allowed, confine, api_socket.as_deref(), None, options)
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
        config.irqchip = self.irqchip.unwrap_or(config.irqchip);
        config.vmgenid = self.vmgenid.unwrap_or(config.vmgenid);
        self.devices.add_to(&mut config.devices);
        config.validate()?;
        Ok(config)
    }
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("it is one of on, off".to_owned()),
    }
}

/// Boots a VM with this configuration and runs it to its end, with the name `id`, or the default one.
pub(super) fn boot(
    config: VmConfig,
    allowed: &[PathBuf],
    confine: ConfineArgs,
    api_socket: Option<&Path>,
    id: Option<String>,
    options: ApiOptions,
) -> Outcome {
    if let Some(logger) = options.draft.logger.clone() {
        log::change(id.as_deref().unwrap_or(DEFAULT_ID), logger.into())?;
    }
    let mut choice = confine.choice(|| bounds::of(allowed, Some(&config.devices), None));
    api_socket.into_iter().for_each(|socket| choice.add_socket(socket));
    confinement::apply(choice, Some(VmShape::of(&config)))?;
    let slot = id.map_or_else(Slot::new, Slot::with_id);
    let mut session = Session::with_slot(slot, api_socket)?.serving(options);
    session.watch_signals()?;
    session.run("boot a VM", || progress::during("starting the VM", || start::boot(config)).map(LentVm::from))
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
        let error = config(&["--kernel", "/k", "--irqchip", "none"]).unwrap_err();
        assert!(error.contains("--irqchip") && error.contains("kernel, split"), "{error}");
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
