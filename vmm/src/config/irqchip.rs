//! Location of a machine's interrupt controllers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Location of the interrupt controllers, except for the local APICs, which are always KVM's. A guest's
/// drivers find the same lines in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum IrqchipKind {
    /// In KVM: an IOAPIC, two PICs and the PIT, for guests without ACPI or with a need for a PIT.
    Kernel,
    /// In volt-vmm: an IOAPIC, without PIC and PIT, for guests that use kvmclock and the TSC-deadline timer,
    /// as Linux does. It is the default because such a VM is created a little faster and closed much faster
    /// (`cargo bench --locked -p volt-benches --bench irqchip`).
    #[default]
    Split,
}

impl IrqchipKind {
    const ALL: [Self; 2] = [Self::Kernel, Self::Split];
}

impl FromStr for IrqchipKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.to_string() == text);
        found.ok_or_else(|| format!("it is one of {}", Self::ALL.map(|kind| kind.to_string()).join(", ")))
    }
}

/// Writes the name that serde uses.
impl fmt::Display for IrqchipKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn irqchip_has_one_spelling_everywhere() {
        for (kind, name) in [(IrqchipKind::Kernel, "kernel"), (IrqchipKind::Split, "split")] {
            assert_eq!(kind.to_string(), name);
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
        }
        assert!("Split".parse::<IrqchipKind>().unwrap_err().contains("kernel, split"));
    }
}
