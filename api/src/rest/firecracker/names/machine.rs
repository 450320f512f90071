//! Names of a machine and its boot source, and of acts on it.

use serde::{Deserialize, Serialize};
use volt_vmm::{BootConfig, FileRef, IrqchipKind, VmConfig};

use super::null_as_default;
use crate::rest::error::Fault;

/// `PUT /boot-source`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BootSource {
    pub(crate) kernel_image_path: FileRef,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) initrd_path: Option<FileRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) boot_args: Option<String>,
}

impl From<BootSource> for BootConfig {
    fn from(BootSource { kernel_image_path, initrd_path, boot_args }: BootSource) -> Self {
        let default = VmConfig::new(kernel_image_path).boot;
        Self { initrd: initrd_path, cmdline: boot_args.unwrap_or(default.cmdline), ..default }
    }
}

impl From<BootConfig> for BootSource {
    fn from(BootConfig { kernel, initrd, cmdline }: BootConfig) -> Self {
        Self { kernel_image_path: kernel, initrd_path: initrd, boot_args: Some(cmdline) }
    }
}

/// Answer to `GET /machine-config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Machine {
    pub(crate) vcpu_count: u8,
    pub(crate) mem_size_mib: u64,
    pub(crate) smt: bool,
    pub(crate) track_dirty_pages: bool,
    pub(crate) huge_pages: &'static str,
    /// volt-vmm's own.
    pub(crate) irqchip: IrqchipKind,
    /// volt-vmm's own: Firecracker's machines always have the device.
    pub(crate) vmgenid: bool,
}

impl Machine {
    /// Returns the configuration of a machine without devices that boots from `boot`.
    pub(crate) fn config(self, boot: BootSource) -> VmConfig {
        let Self { vcpu_count: vcpus, mem_size_mib: memory_mib, irqchip, vmgenid, .. } = self;
        VmConfig { boot: boot.into(), vcpus, memory_mib, irqchip, vmgenid, ..VmConfig::new("") }
    }
}

impl From<&VmConfig> for Machine {
    fn from(config: &VmConfig) -> Self {
        Self {
            vcpu_count: config.vcpus,
            mem_size_mib: config.memory_mib,
            smt: false,
            track_dirty_pages: false,
            huge_pages: "None",
            irqchip: config.irqchip,
            vmgenid: config.vmgenid,
        }
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::from(&VmConfig::new(""))
    }
}

impl TryFrom<&MachineChange> for Machine {
    type Error = Fault;

    /// Makes a machine of a whole description.
    ///
    /// # Errors
    /// A field that Firecracker requires is missing; otherwise as [`MachineChange::apply`].
    fn try_from(whole: &MachineChange) -> Result<Self, Fault> {
        for (field, given) in
            [("vcpu_count", whole.vcpu_count.is_some()), ("mem_size_mib", whole.mem_size_mib.is_some())]
        {
            if !given {
                return Err(Fault::refused(format!("missing field `{field}`")));
            }
        }
        whole.apply(Self::default())
    }
}

/// `PUT` or `PATCH /machine-config`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MachineChange {
    pub(crate) vcpu_count: Option<u8>,
    pub(crate) mem_size_mib: Option<u64>,
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) smt: bool,
    /// Remembered without effect: every VM supports diffs.
    pub(crate) track_dirty_pages: Option<bool>,
    pub(crate) cpu_template: Option<String>,
    pub(crate) huge_pages: Option<String>,
    pub(crate) irqchip: Option<IrqchipKind>,
    pub(crate) vmgenid: Option<bool>,
}

impl MachineChange {
    /// Applies the change to `from`.
    ///
    /// # Errors
    /// It asks for a feature that volt-vmm lacks, or the machine is invalid.
    pub(crate) fn apply(&self, from: Machine) -> Result<Machine, Fault> {
        let named = |value: &Option<String>| value.as_ref().is_some_and(|value| value != "None");
        for (field, given) in [
            ("smt", self.smt),
            ("cpu_template", named(&self.cpu_template)),
            ("huge_pages", named(&self.huge_pages)),
        ] {
            if given {
                return Err(Fault::refused(format!("{field}: not supported; leave it out")));
            }
        }
        let machine = Machine {
            vcpu_count: self.vcpu_count.unwrap_or(from.vcpu_count),
            mem_size_mib: self.mem_size_mib.unwrap_or(from.mem_size_mib),
            track_dirty_pages: self.track_dirty_pages.unwrap_or(from.track_dirty_pages),
            irqchip: self.irqchip.unwrap_or(from.irqchip),
            vmgenid: self.vmgenid.unwrap_or(from.vmgenid),
            ..from
        };
        VmConfig { vcpus: machine.vcpu_count, memory_mib: machine.mem_size_mib, ..VmConfig::new("") }
            .validate()?;
        Ok(machine)
    }
}

/// `PATCH /vm`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SetState {
    pub(crate) state: WantedState,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) enum WantedState {
    Paused,
    Resumed,
}

/// `PUT /actions`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Action {
    pub(crate) action_type: ActionType,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) enum ActionType {
    InstanceStart,
    SendCtrlAltDel,
    FlushMetrics,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::*;
    use crate::rest::firecracker::names::testing::{files, through_a_body};

    proptest! {
        #[test]
        fn a_machine_and_its_boot_source_survive_firecrackers_names(
            kernel in "/[a-z]{1,8}",
            initrd in files(),
            cmdline in "[a-z= ]{0,16}",
            vcpus in 1_u8..=32,
            memory_mib in 1_u64..=1 << 26,
            is_split: bool,
            vmgenid: bool,
            track_dirty_pages: bool,
        ) {
            let irqchip = if is_split { IrqchipKind::Split } else { IrqchipKind::Kernel };
            let boot = BootConfig { kernel: FileRef::from(&kernel), initrd, cmdline };
            let config = VmConfig { boot, vcpus, memory_mib, irqchip, vmgenid, ..VmConfig::new("") };
            let machine = Machine { track_dirty_pages, ..Machine::from(&config) };
            // An answer to GET is a body for PUT.
            let body = serde_json::to_string(&machine).unwrap();
            let put: MachineChange = serde_json::from_str(&body).unwrap();
            let read = put.apply(Machine::default()).unwrap();
            prop_assert_eq!(read, machine);
            prop_assert_eq!(read.config(through_a_body(&config.boot)), config);
        }
    }
}
