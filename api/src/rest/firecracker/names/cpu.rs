//! Names of a custom CPU template: `PUT /cpu-config`, and files of this form. Keys of aarch64 are refused by
//! name.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use volt_vmm::CpuTemplate;
use volt_vmm::config::cpu::{LeafMask, Mask32, Mask64, MsrMask, Number};

use crate::rest::error::Fault;

/// `PUT /cpu-config`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CpuConfig {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kvm_capabilities: Vec<String>,
    cpuid_modifiers: Vec<LeafModifier>,
    msr_modifiers: Vec<MsrModifier>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reg_modifiers: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vcpu_features: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeafModifier {
    leaf: Number,
    subleaf: Number,
    flags: u32,
    modifiers: Vec<RegisterModifier>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RegisterModifier {
    register: Register,
    bitmap: Mask32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Register {
    Eax,
    Ebx,
    Ecx,
    Edx,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MsrModifier {
    addr: Number,
    bitmap: Mask64,
}

impl CpuConfig {
    /// Reads the text of a template.
    ///
    /// # Errors
    /// The text is no template, or a part of it is invalid.
    pub(crate) fn template_of(text: &[u8]) -> Result<CpuTemplate, Fault> {
        let config: Self = serde_json::from_slice(text).map_err(|error| Fault::refused(error.to_string()))?;
        config.try_into()
    }
}

impl TryFrom<CpuConfig> for CpuTemplate {
    type Error = Fault;

    /// Makes the library's template.
    ///
    /// # Errors
    /// A part is invalid, or is for aarch64.
    fn try_from(config: CpuConfig) -> Result<Self, Fault> {
        let CpuConfig { kvm_capabilities, cpuid_modifiers, msr_modifiers, reg_modifiers, vcpu_features } =
            config;
        for (key, given) in [("reg_modifiers", reg_modifiers), ("vcpu_features", vcpu_features)] {
            if given.is_some() {
                return Err(Fault::refused(format!(
                    "{key}: for aarch64 only, and this is x86_64; leave it out"
                )));
            }
        }
        let capabilities = kvm_capabilities.iter().map(|text| required_capability(text));
        let template = Self {
            kvm_capabilities: capabilities.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect(),
            cpuid: cpuid_modifiers.into_iter().map(LeafMask::try_from).collect::<Result<_, _>>()?,
            msrs: msr_modifiers
                .into_iter()
                .map(|MsrModifier { addr, bitmap }| MsrMask { index: addr, bits: bitmap })
                .collect(),
            ..Self::default()
        };
        template.validate()?;
        Ok(template)
    }
}

/// Returns the capability that a text requires. With `!`, the text removes a check of Firecracker's start,
/// which volt-vmm does not make.
fn required_capability(text: &str) -> Result<Option<u32>, Fault> {
    let digits = text.strip_prefix('!').unwrap_or(text);
    let number = u32::from_str(digits).ok().filter(|_| !digits.starts_with('+'));
    let number = number.ok_or_else(|| {
        Fault::refused(format!("kvm_capabilities: {text:?} is no number, such as \"55\" or \"!55\""))
    })?;
    Ok((digits == text).then_some(number))
}

impl TryFrom<LeafModifier> for LeafMask {
    type Error = Fault;

    fn try_from(modifier: LeafModifier) -> Result<Self, Fault> {
        let LeafModifier { leaf, subleaf, flags, modifiers } = modifier;
        let mut mask = Self { leaf, subleaf, flags, ..Self::default() };
        let mut given = Vec::new();
        for RegisterModifier { register, bitmap } in modifiers {
            if given.contains(&register) {
                let problem = format!("leaf {leaf} subleaf {subleaf} has two bitmaps for {register:?}");
                return Err(Fault::refused(format!("cpuid_modifiers: {problem}")));
            }
            given.push(register);
            let to = match register {
                Register::Eax => &mut mask.eax,
                Register::Ebx => &mut mask.ebx,
                Register::Ecx => &mut mask.ecx,
                Register::Edx => &mut mask.edx,
            };
            *to = bitmap;
        }
        Ok(mask)
    }
}

impl From<&CpuTemplate> for CpuConfig {
    fn from(template: &CpuTemplate) -> Self {
        Self {
            kvm_capabilities: template.kvm_capabilities.iter().map(ToString::to_string).collect(),
            cpuid_modifiers: template.cpuid.iter().map(LeafModifier::from).collect(),
            msr_modifiers: template
                .msrs
                .iter()
                .map(|MsrMask { index, bits }| MsrModifier { addr: *index, bitmap: *bits })
                .collect(),
            reg_modifiers: None,
            vcpu_features: None,
        }
    }
}

impl From<&LeafMask> for LeafModifier {
    fn from(mask: &LeafMask) -> Self {
        let LeafMask { leaf, subleaf, flags, eax, ebx, ecx, edx } = *mask;
        let registers =
            [(Register::Eax, eax), (Register::Ebx, ebx), (Register::Ecx, ecx), (Register::Edx, edx)];
        let modifiers = registers.into_iter().filter(|(_, bitmap)| !bitmap.is_empty());
        let modifiers = modifiers.map(|(register, bitmap)| RegisterModifier { register, bitmap }).collect();
        Self { leaf, subleaf, flags, modifiers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Firecracker's documentation (docs/cpu_templates/cpu-templates.md).
    const EXAMPLE: &str = r#"{
        "kvm_capabilities": ["!56", "55"],
        "cpuid_modifiers": [{"leaf": "0x1", "subleaf": "0x0", "flags": 0, "modifiers": [
            {"register": "eax", "bitmap": "0bxxxx000000000011xx00011011110010"}]}],
        "msr_modifiers": [{"addr": "0x10a",
            "bitmap": "0b0000000000000000000000000000000000000000000000000000000000000000"}]}"#;

    #[test]
    fn documented_example_becomes_masks_and_back() {
        let template = CpuConfig::template_of(EXAMPLE.as_bytes()).unwrap();
        assert_eq!(template.kvm_capabilities, [55], "a check that volt-vmm lacks cannot be removed");
        let eax = template.cpuid[0].eax;
        assert_eq!((template.cpuid[0].key(), eax.fixed(), eax.value()), ((1, 0), 0x0fff_3fff, 0x0003_06f2));
        assert_eq!((template.msrs[0].index.0, template.msrs[0].bits.fixed()), (0x10a, u64::MAX));
        let text = serde_json::to_string(&CpuConfig::from(&template)).unwrap();
        assert_eq!(CpuConfig::template_of(text.as_bytes()).unwrap(), template);
        assert_eq!(CpuConfig::template_of(b"{}").unwrap(), CpuTemplate::default());
    }

    #[test]
    fn invalid_template_is_refused_by_its_part() {
        let leaf = |modifiers: &str| {
            let leaf = r#""leaf":"0x7","subleaf":"0x0","flags":1"#;
            format!(r#"{{"cpuid_modifiers":[{{{leaf},"modifiers":[{modifiers}]}}]}}"#)
        };
        let register = |bitmap: &str| leaf(&format!(r#"{{"register":"ebx","bitmap":"{bitmap}"}}"#));
        let twice = leaf(r#"{"register":"ebx","bitmap":"0b1"},{"register":"ebx","bitmap":"0b0"}"#);
        let one = r#"{"leaf":"0x7","subleaf":"0x0","flags":1,"modifiers":[]}"#;
        for (text, words) in [
            (register(&"0".repeat(33)), "more than 32 bits"),
            (register("0b12"), "'2'"),
            (register(""), "empty"),
            (twice, "leaf 0x7 subleaf 0x0 has two bitmaps for Ebx"),
            (format!(r#"{{"cpuid_modifiers":[{one},{one}]}}"#), "leaf 0x7 subleaf 0x0 is given twice"),
            (leaf(r#"{"register":"ekx","bitmap":"0b1"}"#), "unknown variant `ekx`"),
            (leaf(r#"{"register":"ebx"}"#), "missing field `bitmap`"),
            (leaf(r#"{"register":"ebx","bitmap":"0b1","x":1}"#), "unknown field `x`"),
            (r#"{"msr_modifiers":[{"addr":"0jj0","bitmap":"0b0"}]}"#.to_owned(), "0jj0"),
            (r#"{"msr_modifiers":[{"addr":"0x10","bitmap":"0b0"}]}"#.to_owned(), "clock"),
            (r#"{"msr_modifiers":[{"addr":266,"bitmap":"0b0"}]}"#.to_owned(), "invalid type"),
            (r#"{"kvm_capabilities":["!x"]}"#.to_owned(), "kvm_capabilities: \"!x\""),
            (r#"{"kvm_capabilities":["+5"]}"#.to_owned(), "kvm_capabilities"),
            (r#"{"reg_modifiers":[]}"#.to_owned(), "reg_modifiers: for aarch64 only"),
            (r#"{"vcpu_features":[{"index":0,"bitmap":"0b1"}]}"#.to_owned(), "vcpu_features: for aarch64"),
            (r#"{"cpuid_modifier":[]}"#.to_owned(), "unknown field `cpuid_modifier`"),
            ("[1]".to_owned(), "invalid"),
            ("{".to_owned(), "EOF"),
        ] {
            let error = CpuConfig::template_of(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
