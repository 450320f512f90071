//! `--prewarm`: the shape of a VM that is made before its snapshot is known.

use serde::Deserialize;
use volt_vmm::{IrqchipKind, VmConfig, VmShape, parse_memory_mib, report};

use super::key_values;
use super::key_values::OptionKey;

const SHAPE: &[OptionKey] = &[
    OptionKey::plain("vcpus", "COUNT", &["vcpus"]),
    OptionKey::plain("irqchip", "kernel|split", &["irqchip"]),
];

/// The rest of a shape: fields of [`VmConfig`].
#[derive(Debug, Deserialize)]
struct ShapeRest {
    vcpus: Option<u8>,
    irqchip: Option<IrqchipKind>,
}

/// Parses a shape: `SIZE[,vcpus=COUNT][,irqchip=kernel|split]`.
pub(super) fn parse(text: &str) -> Result<VmShape, String> {
    let (memory, rest) = text.split_once(',').unwrap_or((text, ""));
    let mut config = VmConfig::new("");
    config.memory_mib = parse_memory_mib(memory).map_err(|error| report(&error))?;
    let ShapeRest { vcpus, irqchip } = key_values::parse(SHAPE, rest)?;
    config.vcpus = vcpus.unwrap_or(config.vcpus);
    config.irqchip = irqchip.unwrap_or(config.irqchip);
    config.validate().map_err(|error| report(&error))?;
    Ok(VmShape::of(&config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Arguments;
    use crate::cli::key_values::tests::help_names_every_key;

    #[test]
    fn shape_is_memory_and_defaults_otherwise() {
        let usual = IrqchipKind::default();
        for (text, mib, vcpus, irqchip) in [
            ("256M", 256, 1, usual),
            ("1G,vcpus=4", 1024, 4, usual),
            ("64M,irqchip=split,vcpus=2", 64, 2, IrqchipKind::Split),
        ] {
            assert_eq!(parse(text).unwrap(), VmShape::new(mib << 20, vcpus).irqchip(irqchip), "{text}");
        }
    }

    #[test]
    fn help_has_the_keys() {
        help_names_every_key::<Arguments>("prewarm", SHAPE, |_| true);
    }

    #[test]
    fn impossible_shape_is_refused_by_its_key() {
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
