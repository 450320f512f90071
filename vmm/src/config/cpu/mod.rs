//! CPU templates: changes of the CPU that a guest sees, as masks over CPUID and MSRs. A template makes CPUs
//! of several models look alike, so that a snapshot moves between their hosts.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

mod mask;
mod number;

pub use mask::{Mask, Mask32, Mask64};
pub use number::Number;

/// Most leaves, and most MSRs, of a template. KVM has 256 of each at most.
const LONGEST: usize = 256;
/// All `KVM_CPUID_FLAG_*`.
const KNOWN_FLAGS: u32 = 0b111;
/// MSRs of the clock, which a restore sets anew.
const OF_THE_CLOCK: [(u32, &str); 3] = [(0x10, "tsc"), (0x3b, "tsc_adjust"), (0x6e0, "tsc_deadline")];

/// A CPU template.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(not(feature = "internal"), non_exhaustive)]
pub struct CpuTemplate {
    /// Its name, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The CPUs that it was made for; none for any. A guest boots on these alone, and bits that the template
    /// sets are not compared with them: its author vouches for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<CpuModel>,
    /// KVM capabilities that the host must have, by their numbers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kvm_capabilities: Vec<u32>,
    /// Masks over the leaves of CPUID.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpuid: Vec<LeafMask>,
    /// Masks over MSRs, set at the boot. A snapshot has their values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub msrs: Vec<MsrMask>,
}

/// Masks over a leaf of CPUID. A leaf that the host lacks has zeros.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeafMask {
    /// Number of the leaf, as in EAX.
    pub leaf: Number,
    /// Number of the subleaf, as in ECX.
    #[serde(default)]
    pub subleaf: Number,
    /// `KVM_CPUID_FLAG_*`; 1 if the leaf has subleaves.
    #[serde(default)]
    pub flags: u32,
    /// EAX.
    #[serde(default, skip_serializing_if = "Mask::is_empty")]
    pub eax: Mask32,
    /// EBX.
    #[serde(default, skip_serializing_if = "Mask::is_empty")]
    pub ebx: Mask32,
    /// ECX.
    #[serde(default, skip_serializing_if = "Mask::is_empty")]
    pub ecx: Mask32,
    /// EDX.
    #[serde(default, skip_serializing_if = "Mask::is_empty")]
    pub edx: Mask32,
}

/// A mask over an MSR.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MsrMask {
    /// Number of the register, as for RDMSR.
    pub index: Number,
    /// The bits.
    pub bits: Mask64,
}

/// A model of a CPU.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuModel {
    /// `GenuineIntel`, `AuthenticAMD`.
    pub vendor: String,
    /// Family, model and stepping, as in EAX of CPUID leaf 1.
    pub signature: Number,
}

impl LeafMask {
    /// Leaf and subleaf.
    #[must_use]
    pub fn key(&self) -> (u32, u32) {
        (self.leaf.0, self.subleaf.0)
    }
}

/// Writes vendor, family, model and stepping, such as `AuthenticAMD 25/1/1` (Intel SDM volume 2, CPUID leaf
/// 1).
impl fmt::Display for CpuModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vendor, signature: Number(signature) } = self;
        let bits = |first: u32, len: u32| signature >> first & ((1 << len) - 1);
        let family = if bits(8, 4) == 0xf { 0xf + bits(20, 8) } else { bits(8, 4) };
        let model = if matches!(bits(8, 4), 6 | 0xf) { bits(16, 4) << 4 | bits(4, 4) } else { bits(4, 4) };
        write!(f, "{vendor} {family}/{model}/{}", bits(0, 4))
    }
}

impl CpuTemplate {
    /// Checks what can be checked without a host.
    ///
    /// # Errors
    /// [`Error::Config`] names the leaf or MSR and the rule.
    pub fn validate(&self) -> Result<()> {
        let refused = |problem: String| Err(Error::config("cpu_template", problem));
        for (kind, len) in [("leaves", self.cpuid.len()), ("MSRs", self.msrs.len())] {
            if len > LONGEST {
                return refused(format!("{len} {kind} are too many; a template has at most {LONGEST}"));
            }
        }
        let mut keys = BTreeSet::new();
        for mask in &self.cpuid {
            let LeafMask { leaf, subleaf, flags, .. } = mask;
            if !keys.insert(mask.key()) {
                return refused(format!("leaf {leaf} subleaf {subleaf} is given twice"));
            }
            if flags & !KNOWN_FLAGS != 0 {
                return refused(format!("flags {flags} of leaf {leaf}: KVM knows 0 to {KNOWN_FLAGS}"));
            }
        }
        let mut indices = BTreeSet::new();
        for MsrMask { index, bits: _ } in &self.msrs {
            if !indices.insert(index) {
                return refused(format!("MSR {index} is given twice"));
            }
            if let Some((_, name)) = OF_THE_CLOCK.iter().find(|(number, _)| number == &index.0) {
                return refused(format!("MSR {index} ({name}) belongs to the guest's clock; leave it out"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str, words: &str) {
        let read = serde_json::from_str::<CpuTemplate>(text).map_err(|error| error.to_string());
        let error = read.and_then(|read| read.validate().map_err(|error| error.to_string())).unwrap_err();
        assert!(error.contains(words), "{text}: {error}");
    }

    #[test]
    fn template_survives_json_without_empty_parts() {
        let models = r#""models":[{"vendor":"AuthenticAMD","signature":"0xa00f11"}]"#;
        let (ebx, bits) = (format!("0b0{}", "x".repeat(31)), format!("0b{}1", "x".repeat(63)));
        let cpuid = format!(r#""cpuid":[{{"leaf":"0x7","subleaf":"0x0","flags":1,"ebx":"{ebx}"}}]"#);
        let msrs = format!(r#""msrs":[{{"index":"0x10a","bits":"{bits}"}}]"#);
        let text = format!(r#"{{{models},"kvm_capabilities":[55],{cpuid},{msrs}}}"#);
        let template: CpuTemplate = serde_json::from_str(&text).unwrap();
        template.validate().unwrap();
        assert_eq!(serde_json::to_string(&template).unwrap(), text);
        assert_eq!(serde_json::to_string(&CpuTemplate::default()).unwrap(), "{}");
    }

    #[test]
    fn model_is_named_by_family_model_and_stepping() {
        let name = |vendor: &str, signature| {
            CpuModel { vendor: vendor.to_owned(), signature: Number(signature) }.to_string()
        };
        assert_eq!(name("GenuineIntel", 0x0005_0654), "GenuineIntel 6/85/4");
        assert_eq!(name("AuthenticAMD", 0x00a0_0f11), "AuthenticAMD 25/1/1");
    }

    #[test]
    fn impossible_template_is_refused_by_its_part() {
        let leaf = r#"{"leaf":"0x7","flags":1}"#;
        refused(&format!(r#"{{"cpuid":[{leaf},{leaf}]}}"#), "leaf 0x7 subleaf 0x0 is given twice");
        refused(r#"{"cpuid":[{"leaf":"0x7","flags":8}]}"#, "flags 8 of leaf 0x7");
        refused(r#"{"cpuid":[{"leaf":"seven"}]}"#, "seven");
        refused(r#"{"cpuid":[{"leaf":"0x7","ebx":"0b2"}]}"#, "bitmap");
        refused(r#"{"cpuid":[{"leaf":"0x7","efx":"0b1"}]}"#, "unknown field `efx`");
        let msr = r#"{"index":"0x10a","bits":"0b0"}"#;
        refused(&format!(r#"{{"msrs":[{msr},{msr}]}}"#), "MSR 0x10a is given twice");
        refused(r#"{"msrs":[{"index":"0x10","bits":"0b0"}]}"#, "MSR 0x10 (tsc)");
        refused(r#"{"msr":[]}"#, "unknown field `msr`");
        let many: Vec<_> = (0..257).map(|leaf| format!(r#"{{"leaf":"{leaf}"}}"#)).collect();
        refused(&format!(r#"{{"cpuid":[{}]}}"#, many.join(",")), "257 leaves are too many");
    }
}
