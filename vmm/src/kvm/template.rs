//! CPU templates and this host: the CPU that a guest gets under one, and the parts that do not fit.

use std::sync::Arc;

use kvm_ioctls::Kvm;

use super::cpuid;
use super::cpuid::{CpuidEntry, Topology, template};
use super::msr;
use super::msr::{Msr, abilities};
use super::vcpu::Vcpu;
use super::vm::VmHandle;
use crate::config::CpuTemplate;
use crate::config::cpu::MsrMask;
use crate::error::{Error, Invalid, Result};

/// The topology of a vCPU that is tried alone.
const LONE: Topology = Topology { vcpus: 1, smt: false };

/// The CPU that a host's KVM offers guests.
#[derive(Debug)]
pub struct OfferedCpu {
    /// Leaves of CPUID, without the features that a snapshot cannot restore.
    cpuid: Vec<CpuidEntry>,
    /// Feature MSRs that guests have.
    msrs: Vec<Msr>,
}

impl OfferedCpu {
    /// Asks this host's KVM.
    ///
    /// # Errors
    /// KVM refuses to tell.
    pub fn of(kvm: &Kvm) -> Result<Self> {
        let cpuid = cpuid::restorable(&cpuid::supported(kvm)?);
        let mut msrs = msr::features(kvm)?;
        msrs.retain(|msr| template::has_msr(&cpuid, msr.index));
        Ok(Self { cpuid, msrs })
    }

    /// Returns all of it as a template. The MSRs are those of a vCPU: kvm_pvm reports one that it refuses.
    ///
    /// # Errors
    /// KVM refuses a vCPU.
    pub fn dump(&self, kvm: Kvm) -> Result<CpuTemplate> {
        let kvm = Arc::new(kvm);
        let mut vcpu = Vcpu::create(&kvm, &VmHandle::create(&kvm)?, 0)?;
        let indices: Vec<_> = self.msrs.iter().map(|msr| msr.index).collect();
        let msrs = abilities::dump(&vcpu.fresh_msrs(&cpuid::for_vcpu(&self.cpuid, 0, LONE), &indices)?);
        Ok(CpuTemplate { cpuid: cpuid::dump::dump(&self.cpuid), msrs, ..CpuTemplate::default() })
    }

    /// Names the parts of a template that do not fit, except for capabilities of KVM.
    fn lacking(&self, of: &CpuTemplate) -> Vec<String> {
        let mut lacking = Vec::new();
        let is_made_for = template::is_made_for(of, &self.cpuid);
        if !of.models.is_empty() && !is_made_for {
            let models: Vec<_> = of.models.iter().map(ToString::to_string).collect();
            let here = template::model(&self.cpuid);
            lacking.push(format!("CPU {} (this one is {here})", models.join(" or ")));
        }
        lacking.extend(template::lacking(of, &self.cpuid));
        let vouched_for: &[MsrMask] = if is_made_for { &of.msrs } else { &[] };
        lacking.extend(abilities::missing(&self.masked_msrs(&of.msrs), &self.msrs, vouched_for));
        lacking
    }

    /// The feature MSRs under the masks.
    fn masked_msrs(&self, masks: &[MsrMask]) -> Vec<Msr> {
        let held = |index| self.msrs.iter().find(|msr| msr.index == index).and_then(|msr| msr.value);
        let masked = |mask: &MsrMask| {
            let value = mask.bits.apply(held(mask.index.0).unwrap_or(0));
            Msr { index: mask.index.0, value: Some(value) }
        };
        masks.iter().map(masked).collect()
    }
}

/// Names the parts of a template that do not fit this host.
///
/// # Errors
/// KVM refuses to tell.
pub fn lacking(kvm: &Kvm, of: &CpuTemplate) -> Result<Vec<String>> {
    lacking_in(kvm, of, &OfferedCpu::of(kvm)?)
}

fn lacking_in(kvm: &Kvm, of: &CpuTemplate, offered: &OfferedCpu) -> Result<Vec<String>> {
    let mut lacking = offered.lacking(of);
    let absent = of.kvm_capabilities.iter().filter(|number| !has_capability(kvm, **number));
    lacking.extend(absent.map(|number| format!("KVM capability {number}")));
    Ok(lacking)
}

fn has_capability(kvm: &Kvm, number: u32) -> bool {
    kvm.check_extension_raw(number.into()) > 0
}

/// Returns the leaves of a guest that boots under a template.
///
/// # Errors
/// [`Error::Config`] names the parts of the template that do not fit this host.
pub fn leaves(kvm: &Kvm, of: &CpuTemplate) -> Result<Vec<CpuidEntry>> {
    let offered = OfferedCpu::of(kvm)?;
    let lacking = lacking_in(kvm, of, &offered)?;
    if !lacking.is_empty() {
        let template = of.name.as_deref().map_or_else(String::new, |name| format!("template {name} "));
        let problem =
            Invalid::TemplateNeeds { template: template.into(), lacking: lacking.join(", ").into() };
        return Err(Error::config("cpu_template", problem));
    }
    Ok(cpuid::restorable(&template::masked(of, &offered.cpuid)))
}

/// Sets up a vCPU under a template as a boot does, and drops it.
///
/// # Errors
/// [`Error::Config`] names an MSR that KVM refuses; or KVM refuses the vCPU.
pub fn try_on_vcpu(of: &CpuTemplate) -> Result<()> {
    let kvm = Arc::new(super::open()?);
    let vm = VmHandle::create(&kvm)?;
    vm.split_irqchip()?;
    let leaves = leaves(&kvm, of)?;
    Vcpu::create(&kvm, &vm, 0)?.prepare_cpu(&cpuid::for_vcpu(&leaves, 0, LONE), &of.msrs)
}

/// Names the features that vCPUs of a snapshot have, taken under a template if there is one, and that this
/// host lacks.
///
/// # Errors
/// KVM refuses to tell.
pub fn missing<'a>(
    of: Option<&CpuTemplate>,
    vcpus: impl Iterator<Item = (&'a [CpuidEntry], &'a [Msr])>,
) -> Result<Vec<String>> {
    let kvm = super::open()?;
    let mut supported = cpuid::supported(&kvm)?;
    let features = if of.is_some() { msr::features(&kvm)? } else { Vec::new() };
    let vouching = of.filter(|of| template::is_made_for(of, &supported));
    if let Some(of) = vouching {
        template::vouch(of, &mut supported);
    }
    let vouched_for: &[MsrMask] = vouching.map_or(&[], |of| &of.msrs);
    let mut missing = Vec::new();
    for (leaves, msrs) in vcpus {
        missing.extend(cpuid::missing(leaves, &supported));
        if of.is_some() && template::has_msr(leaves, abilities::ARCH_CAPABILITIES) {
            missing.extend(abilities::missing(msrs, &features, vouched_for));
        }
        // vCPUs have the same features.
        missing.sort();
        missing.dedup();
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::cpu::{CpuModel, Mask64, Number};

    fn offered() -> OfferedCpu {
        let leaf = |function| CpuidEntry { function, ..Default::default() };
        let four = |at: usize| u32::from_le_bytes(b"GenuineIntel"[at..at + 4].try_into().unwrap());
        let (ebx, edx, ecx) = (four(0), four(4), four(8));
        let cpuid = vec![
            CpuidEntry { eax: 0xd, ebx, ecx, edx, ..leaf(0) },
            CpuidEntry { eax: 0x0005_0657, ..leaf(1) },
            CpuidEntry { flags: 1, edx: 1 << 29, ..leaf(7) },
        ];
        OfferedCpu { cpuid, msrs: vec![Msr { index: 0x10a, value: Some(0b1) }] }
    }

    #[test]
    fn template_of_other_models_is_refused_with_both_names() {
        let model = CpuModel { vendor: "GenuineIntel".to_owned(), signature: Number(0x0005_0654) };
        let template = CpuTemplate { models: vec![model], ..CpuTemplate::default() };
        let lacking = offered().lacking(&template);
        assert_eq!(lacking, ["CPU GenuineIntel 6/85/4 (this one is GenuineIntel 6/85/7)"]);
    }

    #[test]
    fn ability_that_the_template_sets_is_named_unless_it_vouches_for_it() {
        let bits = Mask64::new(u64::MAX, 1 << 8);
        let msrs = vec![MsrMask { index: Number(0x10a), bits }];
        let mut template = CpuTemplate { msrs, ..CpuTemplate::default() };
        assert_eq!(offered().lacking(&template), ["taa_no (MSR 0x10a bit 8)"]);
        template.models = vec![template::model(&offered().cpuid)];
        assert_eq!(offered().lacking(&template), [] as [&str; 0]);
    }

    #[test]
    fn dump_of_this_host_fits_it() {
        let Ok(kvm) = crate::kvm::open() else { return crate::testing::skip("no KVM here") };
        let mut dump = OfferedCpu::of(&kvm).unwrap().dump(crate::kvm::open().unwrap()).unwrap();
        dump.validate().unwrap();
        assert!(dump.cpuid.iter().any(|mask| mask.key() == (0, 0)));
        assert_eq!(lacking(&kvm, &dump).unwrap(), [] as [&str; 0]);
        try_on_vcpu(&dump).unwrap();
        dump.kvm_capabilities = vec![9999];
        assert_eq!(lacking(&kvm, &dump).unwrap(), ["KVM capability 9999"]);
        let error = try_on_vcpu(&dump).unwrap_err().to_string();
        assert!(error.starts_with("cpu_template: ") && error.contains("KVM capability 9999"), "{error}");
    }
}
