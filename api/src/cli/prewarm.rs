//! `--prewarm`: the shape of a VM that is made before anyone knows what will run in it.

use volt_vmm::{VmConfig, VmShape, parse_memory_mib, report};

use super::words::Words;

/// A shape from `MEMORY[,vcpus=N][,irqchip=KIND]`.
pub(super) fn parse(text: &str) -> Result<VmShape, String> {
    let (memory, rest) = text.split_once(',').unwrap_or((text, ""));
    let mut config = VmConfig::new("");
    config.memory_mib = parse_memory_mib(memory).map_err(|error| report(&error))?;
    let mut words = Words::of(rest);
    config.vcpus = words.number("vcpus")?.unwrap_or(config.vcpus);
    if let Some(kind) = words.value("irqchip") {
        config.irqchip = kind.parse().map_err(|problem| format!("irqchip={kind}: {problem}"))?;
    }
    words.end()?;
    config.validate().map_err(|error| report(&error))?;
    Ok(VmShape::of(&config))
}

#[cfg(test)]
mod tests {
    use volt_vmm::IrqchipKind;

    use super::*;

    #[test]
    fn a_shape_is_memory_and_what_is_not_as_usual() {
        let usual = IrqchipKind::default();
        for (text, mib, vcpus, irqchip) in [
            ("256M", 256, 1, usual),
            ("1G,vcpus=4", 1024, 4, usual),
            ("64M,irqchip=split,vcpus=2", 64, 2, IrqchipKind::Split),
        ] {
            assert_eq!(
                parse(text).unwrap(),
                VmShape { memory_bytes: mib << 20, vcpus, irqchip, logs_writes: false },
                "{text}"
            );
        }
    }

    #[test]
    fn what_no_vm_has_is_refused_by_its_word() {
        for (text, words) in [
            ("", "not a number"),
            ("vcpus=2", "memory"),
            ("0", "needs memory"),
            ("64M,vcpus=0", "1 to 32"),
            ("64M,vcpus=x", "vcpus=x"),
            ("64M,irqchip=none", "irqchip=none: it is one of kernel, split"),
            ("64M,cpus=2", "\"cpus=2\""),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
