//! Where a machine's interrupt controllers are.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Who has the interrupt controllers beside the local APICs, which are always KVM's. A guest's drivers find the same lines
/// either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IrqchipKind {
    /// KVM: an IOAPIC, two PICs, and the PIT. For guests that know of no ACPI, or want a PIT.
    Kernel,
    /// volt-vmm: an IOAPIC, and neither PIC nor PIT. For guests that live on kvmclock and the TSC-deadline timer, as Linux does. Such a
    /// VM is made a little sooner and closed much sooner (`cargo bench -p volt-benches --bench irqchip`), hence the default.
    #[default]
    Split,
}

impl FromStr for IrqchipKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "kernel" => Ok(Self::Kernel),
            "split" => Ok(Self::Split),
            _ => Err("it is one of kernel, split".to_owned()),
        }
    }
}

impl fmt::Display for IrqchipKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "kernel",
            Self::Split => "split",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spelling_everywhere() {
        for kind in [IrqchipKind::Kernel, IrqchipKind::Split] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
        }
        assert!("Split".parse::<IrqchipKind>().unwrap_err().contains("kernel, split"));
    }
}
