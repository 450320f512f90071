//! Masks of a CPU template over the MSRs of a vCPU that boots.

use super::{Msr, MsrReader, MsrWriter, names, read, write};
use crate::config::cpu::MsrMask;
use crate::error::{Error, Result, report};

/// Sets the bits that the masks fix. `saved` are the MSRs that a snapshot has.
///
/// # Errors
/// [`Error::Config`] names an MSR that KVM lacks, refuses, changes, or that a snapshot would lose.
pub(in crate::kvm) fn apply(vcpu: &impl MsrWriter, masks: &[MsrMask], saved: &[u32]) -> Result<()> {
    for mask in masks {
        let index = mask.index.0;
        let Some(held) = value(vcpu, index)? else {
            // An MSR that KVM lacks reads as zeros.
            if mask.bits.value() == 0 {
                continue;
            }
            return refused(index, "this host's KVM has no such MSR");
        };
        let wanted = mask.bits.apply(held);
        if wanted == held {
            continue;
        }
        if !saved.contains(&index) {
            return refused(index, "KVM does not list it, so a snapshot would lose its value");
        }
        if let Err(error) = write(vcpu, [Msr { index, value: Some(wanted) }]) {
            return refused(index, &report(&error));
        }
        let kept = value(vcpu, index)?.unwrap_or(0);
        if kept != wanted {
            return refused(index, &format!("KVM was given {wanted:#x} and keeps {kept:#x}"));
        }
    }
    Ok(())
}

fn value(vcpu: &impl MsrReader, index: u32) -> Result<Option<u64>> {
    Ok(read(vcpu, &[index])?[0].value)
}

fn refused(index: u32, problem: &str) -> Result<()> {
    let name = names::name(index).map_or_else(String::new, |name| format!(" ({name})"));
    let problem = format!("cannot set MSR {index:#x}{name}: {problem}; leave it out of the template");
    Err(Error::config("cpu_template", problem))
}

#[cfg(test)]
mod tests {
    use super::super::tests::OlderKernel;
    use super::*;

    fn masks(text: &str) -> Vec<MsrMask> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn fixed_bits_are_set_and_others_kept() {
        let vcpu = OlderKernel::with([(0x10a, 0b1100), (0x1a0, 1)], &[0x1a0]);
        // The last two hold their values already, so a read-only MSR and a missing one do no harm.
        let masks = masks(
            r#"[{"index":"0x10a","bits":"0b01x"},{"index":"0x1a0","bits":"0b1"},
                {"index":"0x345","bits":"0b0"}]"#,
        );
        apply(&vcpu, &masks, &[0x10a]).unwrap();
        assert_eq!(vcpu.values.into_inner(), [(0x10a, 0b1010), (0x1a0, 1)].into());
    }

    #[test]
    fn msr_that_cannot_be_set_is_named() {
        let vcpu = || OlderKernel::with([(0x10a, 0), (0x1a0, 1)], &[0x1a0]);
        for (text, saved, words) in [
            (
                r#"[{"index":"0x345","bits":"0b1"}]"#,
                vec![0x345],
                "MSR 0x345 (perf_capabilities): this host's KVM has no",
            ),
            (
                r#"[{"index":"0x10a","bits":"0b1"}]"#,
                vec![],
                "MSR 0x10a (arch_capabilities): KVM does not list it",
            ),
            (r#"[{"index":"0x1a0","bits":"0b0"}]"#, vec![0x1a0], "MSR 0x1a0 = 0x0"),
        ] {
            let error = apply(&vcpu(), &masks(text), &saved).unwrap_err().to_string();
            assert!(error.contains(words) && error.starts_with("cpu_template: "), "{error}");
        }
    }
}
