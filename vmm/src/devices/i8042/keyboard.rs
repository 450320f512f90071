//! The keyboard behind the controller: it answers the commands of a driver, and its one use is to press
//! Ctrl-Alt-Del.

/// Answer to a command that the keyboard takes.
const ACKNOWLEDGED: u8 = 0xfa;
const TEST_PASSED: u8 = 0xaa;

/// Returns the answer to a byte that the driver sends, a command or its argument (IBM PS/2 Hardware
/// Interface Technical Reference, Keyboards, "Commands to the Keyboard"). LEDs, rates and scan code sets have
/// no effect.
pub(super) fn answer(byte: u8) -> &'static [u8] {
    const ECHO: u8 = 0xee;
    const IDENTIFY: u8 = 0xf2;
    const RESET: u8 = 0xff;
    match byte {
        ECHO => &[ECHO],
        IDENTIFY => &[ACKNOWLEDGED, 0xab, 0x83],
        RESET => &[ACKNOWLEDGED, TEST_PASSED],
        _ => &[ACKNOWLEDGED],
    }
}

/// Returns the scan codes of Ctrl-Alt-Del, each key pressed and released: of set 1 if the controller
/// translates, otherwise of set 2.
pub(super) fn ctrl_alt_del(translated: bool) -> &'static [u8] {
    if translated {
        &[0x1d, 0x38, 0xe0, 0x53, 0xe0, 0xd3, 0xb8, 0x9d]
    } else {
        &[0x14, 0x11, 0xe0, 0x71, 0xe0, 0xf0, 0x71, 0xf0, 0x11, 0xf0, 0x14]
    }
}
