//! The controller's registers and commands. Nothing here knows ports or interrupt lines.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{COMMAND_RESET, keyboard};

/// Most bytes that wait for the guest. A guest that sends commands and reads nothing loses the later answers.
const MOST_OUTPUT: usize = 32;

/// Bits of the status register: a byte waits, the self-test passed, the keyboard is unlocked.
mod status {
    pub const OUTPUT_FULL: u8 = 1;
    pub const SYSTEM: u8 = 1 << 2;
    pub const UNLOCKED: u8 = 1 << 4;
}

/// Bits of the configuration: interrupts of the keyboard, the self-test passed, keyboard and mouse are
/// off, scan codes are translated to set 1.
mod config {
    pub const INTERRUPT: u8 = 1;
    pub const SYSTEM: u8 = 1 << 2;
    pub const KEYBOARD_OFF: u8 = 1 << 4;
    pub const MOUSE_OFF: u8 = 1 << 5;
    pub const TRANSLATE: u8 = 1 << 6;
    /// Before a driver changes it.
    pub const INITIAL: u8 = SYSTEM | KEYBOARD_OFF | MOUSE_OFF | TRANSLATE;
}

/// The registers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KeyboardState {
    #[serde(skip_serializing_if = "is_initial")]
    config: u8,
    /// A command whose argument comes next.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<u8>,
    /// Bytes for the guest, the oldest first.
    #[serde(skip_serializing_if = "VecDeque::is_empty")]
    output: VecDeque<u8>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference
fn is_initial(config: &u8) -> bool {
    *config == config::INITIAL
}

/// The registers that no driver has touched. It is written as an empty object, as older snapshots have it.
impl Default for KeyboardState {
    fn default() -> Self {
        Self { config: config::INITIAL, command: None, output: VecDeque::new() }
    }
}

/// The consequence of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Nothing,
    Reset,
}

impl KeyboardState {
    /// Whether a driver listens to the keyboard.
    pub(super) fn is_driven(&self) -> bool {
        self.config & (config::INTERRUPT | config::KEYBOARD_OFF) == config::INTERRUPT
    }

    /// Whether the guest wants an interrupt for the byte that waits.
    pub(super) fn interrupts(&self) -> bool {
        self.config & config::INTERRUPT != 0 && !self.output.is_empty()
    }

    /// Whether no guest can have brought about these registers.
    pub(super) fn is_impossible(&self) -> bool {
        self.output.len() > MOST_OUTPUT
    }

    /// Presses and releases Ctrl, Alt and Del. Returns false, and presses nothing, if not all of it fits.
    pub(super) fn press_ctrl_alt_del(&mut self) -> bool {
        let codes = keyboard::ctrl_alt_del(self.config & config::TRANSLATE != 0);
        let fits = self.output.len() + codes.len() <= MOST_OUTPUT;
        if fits {
            self.put(codes);
        }
        fits
    }

    pub(super) fn status(&self) -> u8 {
        let full = if self.output.is_empty() { 0 } else { status::OUTPUT_FULL };
        let system = if self.config & config::SYSTEM == 0 { 0 } else { status::SYSTEM };
        status::UNLOCKED | system | full
    }

    /// Takes the oldest byte for the guest; 0 without one.
    pub(super) fn next_byte(&mut self) -> u8 {
        self.output.pop_front().unwrap_or(0)
    }

    /// Executes a command of the controller, or keeps it for its argument.
    pub(super) fn command(&mut self, command: u8) -> Effect {
        match command {
            READ_CONFIG => self.put(&[self.config]),
            READ_OUTPUT_PORT => self.put(&[OUTPUT_PORT]),
            SELF_TEST => self.put(&[SELF_TEST_PASSED]),
            TEST_KEYBOARD => self.put(&[0]),
            // The clock line is stuck: there is no mouse.
            TEST_MOUSE => self.put(&[1]),
            KEYBOARD_OFF => self.config |= config::KEYBOARD_OFF,
            KEYBOARD_ON => self.config &= !config::KEYBOARD_OFF,
            MOUSE_OFF => self.config |= config::MOUSE_OFF,
            MOUSE_ON => self.config &= !config::MOUSE_OFF,
            WRITE_CONFIG | WRITE_OUTPUT_PORT | LOOP_KEYBOARD | LOOP_MOUSE | TO_MOUSE => {
                self.command = Some(command);
            }
            COMMAND_RESET => return Effect::Reset,
            _ => {}
        }
        Effect::Nothing
    }

    /// Takes a byte for the keyboard, or the argument of the last command.
    pub(super) fn data(&mut self, byte: u8) -> Effect {
        match self.command.take() {
            None => {
                // A command turns the keyboard on.
                self.config &= !config::KEYBOARD_OFF;
                self.put(keyboard::answer(byte));
            }
            Some(WRITE_CONFIG) => self.config = byte,
            // A 0 in the lowest bit pulls the reset line.
            Some(WRITE_OUTPUT_PORT) if byte & 1 == 0 => return Effect::Reset,
            // The status would have a bit for a byte of the mouse. A driver sees by its absence that there is
            // no mouse.
            Some(LOOP_KEYBOARD | LOOP_MOUSE) => self.put(&[byte]),
            Some(_) => {}
        }
        Effect::Nothing
    }

    fn put(&mut self, bytes: &[u8]) {
        let room = MOST_OUTPUT.saturating_sub(self.output.len());
        self.output.extend(&bytes[..bytes.len().min(room)]);
    }
}

const READ_CONFIG: u8 = 0x20;
const WRITE_CONFIG: u8 = 0x60;
const MOUSE_OFF: u8 = 0xa7;
const MOUSE_ON: u8 = 0xa8;
const TEST_MOUSE: u8 = 0xa9;
const SELF_TEST: u8 = 0xaa;
const TEST_KEYBOARD: u8 = 0xab;
const KEYBOARD_OFF: u8 = 0xad;
const KEYBOARD_ON: u8 = 0xae;
const READ_OUTPUT_PORT: u8 = 0xd0;
const WRITE_OUTPUT_PORT: u8 = 0xd1;
const LOOP_KEYBOARD: u8 = 0xd2;
const LOOP_MOUSE: u8 = 0xd3;
const TO_MOUSE: u8 = 0xd4;
const SELF_TEST_PASSED: u8 = 0x55;
/// No reset, address line 20 open.
const OUTPUT_PORT: u8 = 0b11;

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(state: &mut KeyboardState) -> Vec<u8> {
        let mut bytes = Vec::new();
        while state.status() & status::OUTPUT_FULL != 0 {
            bytes.push(state.next_byte());
        }
        bytes
    }

    /// Does as Linux's driver at its start.
    fn driven(config: u8) -> KeyboardState {
        let mut state = KeyboardState::default();
        state.command(WRITE_CONFIG);
        state.data(config);
        state
    }

    #[test]
    fn controller_answers_a_driver_at_once() {
        let mut state = KeyboardState::default();
        for (command, answer) in [
            (READ_CONFIG, config::INITIAL),
            (SELF_TEST, SELF_TEST_PASSED),
            (TEST_KEYBOARD, 0),
            (TEST_MOUSE, 1),
            (READ_OUTPUT_PORT, OUTPUT_PORT),
        ] {
            assert_eq!(state.command(command), Effect::Nothing);
            assert_eq!(read_all(&mut state), [answer], "{command:#x}");
        }
        state.command(LOOP_MOUSE);
        state.data(0x5a);
        assert_eq!(read_all(&mut state), [0x5a]);
        for (byte, answer) in
            [(0xf2, &[0xfa, 0xab, 0x83][..]), (0xff, &[0xfa, 0xaa]), (0xed, &[0xfa]), (0xee, &[0xee])]
        {
            state.data(byte);
            assert_eq!(read_all(&mut state), answer, "{byte:#x}");
        }
    }

    #[test]
    fn two_ways_lead_to_a_reset_and_others_do_not() {
        let mut state = KeyboardState::default();
        assert_eq!(state.command(COMMAND_RESET), Effect::Reset);
        state.command(WRITE_OUTPUT_PORT);
        assert_eq!(state.data(0b11), Effect::Nothing);
        state.command(WRITE_OUTPUT_PORT);
        assert_eq!(state.data(0b10), Effect::Reset);
        assert_eq!(state.data(0b10), Effect::Nothing, "a byte for the keyboard");
    }

    #[test]
    fn keys_come_in_the_drivers_set_of_scan_codes() {
        let set_1 = [0x1d, 0x38, 0xe0, 0x53, 0xe0, 0xd3, 0xb8, 0x9d];
        let set_2 = [0x14, 0x11, 0xe0, 0x71, 0xe0, 0xf0, 0x71, 0xf0, 0x11, 0xf0, 0x14];
        for (config, codes) in
            [(config::INTERRUPT | config::TRANSLATE, &set_1[..]), (config::INTERRUPT, &set_2)]
        {
            let mut state = driven(config);
            assert!(state.is_driven());
            assert!(state.press_ctrl_alt_del());
            assert!(state.interrupts());
            assert_eq!(read_all(&mut state), codes);
            assert!(!state.interrupts());
        }
    }

    #[test]
    fn keyboard_is_driven_only_while_it_interrupts() {
        assert!(!KeyboardState::default().is_driven());
        assert!(!driven(config::INTERRUPT | config::KEYBOARD_OFF).is_driven());
        let mut state = driven(config::INTERRUPT);
        state.command(KEYBOARD_OFF);
        assert!(!state.is_driven());
        state.command(KEYBOARD_ON);
        assert!(state.is_driven());
    }

    #[test]
    fn keys_are_pressed_whole_or_not_at_all() {
        let mut state = driven(config::INTERRUPT | config::TRANSLATE);
        for _ in 0..MOST_OUTPUT / 8 {
            assert!(state.press_ctrl_alt_del());
        }
        state.next_byte();
        assert!(!state.press_ctrl_alt_del());
        assert_eq!(read_all(&mut state).len(), MOST_OUTPUT - 1);
        assert!(state.press_ctrl_alt_del());
    }

    #[test]
    fn guest_that_reads_nothing_fills_no_memory() {
        let mut state = KeyboardState::default();
        for _ in 0..1000 {
            state.command(SELF_TEST);
        }
        assert_eq!(read_all(&mut state).len(), MOST_OUTPUT);
    }

    #[test]
    fn state_survives_json_and_is_empty_unless_a_driver_touched_it() {
        assert_eq!(serde_json::to_string(&KeyboardState::default()).unwrap(), "{}");
        let mut state = driven(config::INTERRUPT);
        assert!(state.press_ctrl_alt_del());
        state.command(WRITE_CONFIG);
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<KeyboardState>(&text).unwrap(), state);
    }
}
