//! Names of a machine and its boot source, and of acts on it.

use serde::{Deserialize, Serialize};
use volt_vmm::{BootConfig, CpuTemplate, FileRef, HugePages, IrqchipKind, VmConfig};

use super::static_cpu;
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
#[derive(Debug, Serialize)]
pub(crate) struct MachineConfig {
    #[serde(flatten)]
    machine: Machine,
    /// The static template. A custom one has no name, as in Firecracker.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_template: Option<&'static str>,
}

impl MachineConfig {
    /// Describes a machine whose guest sees its CPU under this template.
    pub(crate) fn of(machine: Machine, cpu: Option<&CpuTemplate>) -> Self {
        Self { machine, cpu_template: cpu.and_then(static_cpu::name_of) }
    }
}

/// A machine, apart from its CPU template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Machine {
    pub(crate) vcpu_count: u8,
    pub(crate) mem_size_mib: u64,
    pub(crate) smt: bool,
    pub(crate) track_dirty_pages: bool,
    pub(crate) huge_pages: PageKind,
    /// volt-vmm's own.
    pub(crate) irqchip: IrqchipKind,
    /// volt-vmm's own: Firecracker's machines always have the device.
    pub(crate) vmgenid: bool,
}

/// Firecracker's names of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PageKind {
    #[default]
    None,
    Transparent,
    #[serde(rename = "2M")]
    Hugetlb,
}

impl From<PageKind> for HugePages {
    fn from(kind: PageKind) -> Self {
        match kind {
            PageKind::None => Self::None,
            PageKind::Transparent => Self::Transparent,
            PageKind::Hugetlb => Self::Hugetlb,
        }
    }
}

impl From<HugePages> for PageKind {
    fn from(pages: HugePages) -> Self {
        match pages {
            HugePages::None => Self::None,
            HugePages::Transparent => Self::Transparent,
            HugePages::Hugetlb => Self::Hugetlb,
        }
    }
}

impl Machine {
    /// Returns the configuration of a machine without devices that boots from `boot`.
    pub(crate) fn config(self, boot: BootSource) -> VmConfig {
        let Self { vcpu_count: vcpus, mem_size_mib: memory_mib, smt, irqchip, vmgenid, .. } = self;
        let machine = VmConfig { vcpus, smt, memory_mib, irqchip, vmgenid, ..VmConfig::new("") };
        VmConfig { boot: boot.into(), huge_pages: self.huge_pages.into(), ..machine }
    }
}

impl From<&VmConfig> for Machine {
    fn from(config: &VmConfig) -> Self {
        Self {
            vcpu_count: config.vcpus,
            mem_size_mib: config.memory_mib,
            smt: config.smt,
            track_dirty_pages: false,
            huge_pages: config.huge_pages.into(),
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
    pub(crate) smt: Option<bool>,
    /// Remembered without effect: every VM supports diffs.
    pub(crate) track_dirty_pages: Option<bool>,
    pub(crate) cpu_template: Option<String>,
    pub(crate) huge_pages: Option<PageKind>,
    pub(crate) irqchip: Option<IrqchipKind>,
    pub(crate) vmgenid: Option<bool>,
}

impl MachineChange {
    /// Replaces the CPU template, if the change names one.
    ///
    /// # Errors
    /// The name is unknown, or volt-vmm lacks its template.
    pub(crate) fn apply_to_cpu(&self, cpu: &mut Option<Box<CpuTemplate>>) -> Result<(), Fault> {
        if let Some(name) = &self.cpu_template {
            *cpu = static_cpu::named(name)?.map(Box::new);
        }
        Ok(())
    }

    /// Applies the change to `from`.
    ///
    /// # Errors
    /// It asks for a feature that volt-vmm lacks, or the machine is invalid.
    pub(crate) fn apply(&self, from: Machine) -> Result<Machine, Fault> {
        let machine = Machine {
            vcpu_count: self.vcpu_count.unwrap_or(from.vcpu_count),
            mem_size_mib: self.mem_size_mib.unwrap_or(from.mem_size_mib),
            smt: self.smt.unwrap_or(from.smt),
            track_dirty_pages: self.track_dirty_pages.unwrap_or(from.track_dirty_pages),
            huge_pages: self.huge_pages.unwrap_or(from.huge_pages),
            irqchip: self.irqchip.unwrap_or(from.irqchip),
            vmgenid: self.vmgenid.unwrap_or(from.vmgenid),
        };
        machine.config(BootSource::from(VmConfig::new("").boot)).validate()?;
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
            cores in 1_u8..=16,
            half_mib in 1_u64..=1 << 25,
            pages in 0..3_usize,
            is_split: bool,
            vmgenid: bool,
            smt: bool,
            track_dirty_pages: bool,
        ) {
            let vcpus = if smt { 2 * cores } else { cores };
            let irqchip = if is_split { IrqchipKind::Split } else { IrqchipKind::Kernel };
            let boot = BootConfig { kernel: FileRef::from(&kernel), initrd, cmdline };
            let huge_pages = [HugePages::None, HugePages::Transparent, HugePages::Hugetlb][pages];
            let machine = VmConfig { vcpus, smt, memory_mib: 2 * half_mib, huge_pages, ..VmConfig::new("") };
            let config = VmConfig { boot, irqchip, vmgenid, ..machine };
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
