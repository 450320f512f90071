//! CPU templates of hosts: dumps, their common denominator, and whether a host fits one.

use crate::config::CpuTemplate;
use crate::config::cpu::{LeafMask, MsrMask};
use crate::error::{Error, Result, report};
use crate::kvm;
use crate::kvm::cpuid::intersection as leaves;
use crate::kvm::msr::abilities;
use crate::kvm::template;
use crate::kvm::template::OfferedCpu;

/// Returns the CPU that this host's KVM offers guests, as a template that fixes all of it. Features that a
/// snapshot cannot restore are absent.
///
/// # Errors
/// KVM refuses to tell.
pub fn dump() -> Result<CpuTemplate> {
    let kvm = kvm::open()?;
    OfferedCpu::of(&kvm)?.dump(kvm)
}

/// Returns the template of all that several dumps have in common. A snapshot that is taken under it restores
/// on each of their hosts.
///
/// # Errors
/// [`Error::Config`] names dumps that do not go together, by their numbers from 1.
pub fn intersect(dumps: &[CpuTemplate]) -> Result<CpuTemplate> {
    let cpuid: Vec<&[LeafMask]> = dumps.iter().map(|dump| &dump.cpuid[..]).collect();
    let msrs: Vec<&[MsrMask]> = dumps.iter().map(|dump| &dump.msrs[..]).collect();
    let cpuid = leaves::intersection(&cpuid).map_err(|problem| Error::config("dumps", problem))?;
    Ok(CpuTemplate { cpuid, msrs: abilities::intersection(&msrs), ..CpuTemplate::default() })
}

/// Names the parts of a template that do not fit this host; none if a guest boots under it here.
///
/// # Errors
/// The template is invalid whatever the host, or KVM refuses to tell.
pub fn misfits(of: &CpuTemplate) -> Result<Vec<String>> {
    of.validate()?;
    let mut misfits = template::lacking(&kvm::open()?, of)?;
    if misfits.is_empty()
        && let Err(error) = template::try_on_vcpu(of)
    {
        misfits.push(report(&error));
    }
    Ok(misfits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dump_of_this_host_fits_it_and_is_its_own_intersection() {
        if kvm::open().is_err() {
            return crate::testing::skip("no KVM here");
        }
        let here = dump().unwrap();
        assert_eq!(misfits(&here).unwrap(), [] as [&str; 0]);
        assert_eq!(intersect(&[here.clone(), here.clone()]).unwrap(), here);
        let unknown = r#"{"msrs":[{"index":"0x12345","bits":"0b1"}]}"#;
        let misfits = misfits(&serde_json::from_str(unknown).unwrap()).unwrap();
        assert!(misfits.len() == 1 && misfits[0].contains("MSR 0x12345"), "{misfits:?}");
    }

    #[test]
    fn template_that_is_no_dump_has_no_intersection() {
        let error = intersect(&[CpuTemplate::default()]).unwrap_err().to_string();
        assert!(error.starts_with("dumps: number 1 has no CPUID leaf 0x0"), "{error}");
    }
}
