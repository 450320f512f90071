//! The sleep registers of hardware-reduced ACPI (ACPI 6.5 section 4.8.3.7). The DSDT and the VMM's power
//! device share these numbers.

/// The `SLP_TYP` value of S5, soft off, as `\_S5` in the DSDT gives it.
pub const S5_SLEEP_TYPE: u8 = 5;
/// Sleep control register: lowest bit of `SLP_TYP`.
pub const SLEEP_TYPE_SHIFT: u8 = 2;
/// Sleep control register: the three bits of `SLP_TYP`.
pub const SLEEP_TYPE_MASK: u8 = 0b111 << SLEEP_TYPE_SHIFT;
/// Sleep control register: `SLP_EN`, which enters the state of `SLP_TYP`.
pub const SLEEP_ENABLE: u8 = 1 << 5;
/// Sleep status register: `WAK_STS`, written as 1 to clear.
pub const WAKE_STATUS: u8 = 1 << 7;

const _: () = assert!(S5_SLEEP_TYPE << SLEEP_TYPE_SHIFT & !SLEEP_TYPE_MASK == 0);

/// Returns whether writing this byte to the sleep control register turns the machine off.
#[must_use]
pub const fn is_power_off(sleep_control: u8) -> bool {
    let sleep_type = (sleep_control & SLEEP_TYPE_MASK) >> SLEEP_TYPE_SHIFT;
    sleep_control & SLEEP_ENABLE != 0 && sleep_type == S5_SLEEP_TYPE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_enabled_s5_powers_off() {
        assert!(is_power_off(0x34), "what Linux writes");
        assert!(!is_power_off(0x14), "S5 without SLP_EN");
        assert!(!is_power_off(0x2c), "S3");
        assert!(!is_power_off(0));
    }
}
