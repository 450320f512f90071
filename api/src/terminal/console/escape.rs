//! Splits terminal input into volt-vmm's keys, which Ctrl-A or Ctrl-P introduces, and bytes for the guest.

/// Ctrl-A.
const CONTROL_A: u8 = 0x01;
/// Ctrl-P.
const CONTROL_P: u8 = 0x10;
/// Ctrl-Q.
const CONTROL_Q: u8 = 0x11;

/// A part of the terminal's input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// Bytes for the guest.
    Guest(Vec<u8>),
    /// Ctrl-A X.
    EndVm,
    /// Ctrl-A D, or Ctrl-P Ctrl-Q.
    Detach,
    /// Ctrl-A H.
    ListKeys,
}

/// The keys that are volt-vmm's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Keys {
    /// Ctrl-A and a letter.
    #[default]
    ControlA,
    /// Ctrl-P Ctrl-Q alone, as docker has it.
    ControlPQ,
}

/// The parser of terminal input.
#[derive(Debug, Default)]
pub(crate) struct EscapeParser {
    keys: Keys,
    /// Whether the last byte introduced a key, which comes with a later read.
    escaped: bool,
    /// Whether there is a key to leave the VM.
    detaches: bool,
}

impl EscapeParser {
    /// A parser for a terminal that can leave its VM.
    pub(crate) fn detaching(keys: Keys) -> Self {
        Self { keys, detaches: true, ..Self::default() }
    }

    /// Parses the next bytes. An introduction before an unknown key goes to the guest with that key.
    pub(crate) fn parse(&mut self, bytes: &[u8]) -> Vec<Input> {
        let introduction = match self.keys {
            Keys::ControlA => CONTROL_A,
            Keys::ControlPQ => CONTROL_P,
        };
        let mut inputs = Vec::new();
        let mut typed = Vec::new();
        for &byte in bytes {
            if !std::mem::take(&mut self.escaped) {
                match byte {
                    _ if byte == introduction => self.escaped = true,
                    _ => typed.push(byte),
                }
                continue;
            }
            let input = match (self.keys, byte) {
                (Keys::ControlA, b'x' | b'X') => Input::EndVm,
                (Keys::ControlA, b'd' | b'D') if self.detaches => Input::Detach,
                (Keys::ControlA, b'h' | b'H' | b'?') => Input::ListKeys,
                (Keys::ControlA, b'a' | b'A' | CONTROL_A) => {
                    typed.push(CONTROL_A);
                    continue;
                }
                (Keys::ControlPQ, CONTROL_Q) if self.detaches => Input::Detach,
                (Keys::ControlPQ, CONTROL_P) => {
                    typed.push(CONTROL_P);
                    self.escaped = true;
                    continue;
                }
                _ => {
                    typed.extend([introduction, byte]);
                    continue;
                }
            };
            flush(&mut typed, &mut inputs);
            inputs.push(input);
        }
        flush(&mut typed, &mut inputs);
        inputs
    }
}

fn flush(typed: &mut Vec<u8>, inputs: &mut Vec<Input>) {
    if !typed.is_empty() {
        inputs.push(Input::Guest(std::mem::take(typed)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(text: &str) -> Input {
        Input::Guest(text.into())
    }

    #[test]
    fn plain_keys_and_control_c_go_to_the_guest() {
        assert_eq!(EscapeParser::default().parse(b"ls\r\x03x"), [typed("ls\r\x03x")]);
        assert_eq!(EscapeParser::default().parse(b""), []);
    }

    #[test]
    fn control_a_introduces_keys_for_volt_vmm() {
        for (typed_keys, expected) in [
            ("\x01x", Input::EndVm),
            ("\x01X", Input::EndVm),
            ("\x01h", Input::ListKeys),
            ("\x01?", Input::ListKeys),
        ] {
            assert_eq!(EscapeParser::default().parse(typed_keys.as_bytes()), [expected], "{typed_keys:?}");
        }
        assert_eq!(
            EscapeParser::default().parse(b"a\x01hb\x01x"),
            [typed("a"), Input::ListKeys, typed("b"), Input::EndVm]
        );
    }

    #[test]
    fn control_a_d_detaches_where_it_can() {
        assert_eq!(
            EscapeParser::detaching(Keys::ControlA).parse(b"a\x01db"),
            [typed("a"), Input::Detach, typed("b")]
        );
        assert_eq!(EscapeParser::default().parse(b"\x01d"), [typed("\x01d")]);
    }

    #[test]
    fn control_a_twice_sends_one() {
        for input in ["\x01\x01", "\x01a", "\x01A"] {
            assert_eq!(EscapeParser::default().parse(input.as_bytes()), [typed("\x01")], "{input:?}");
        }
        assert_eq!(EscapeParser::default().parse(b"\x01\x01x"), [typed("\x01x")]);
    }

    #[test]
    fn control_p_control_q_detaches_alone() {
        let parse = |bytes: &[u8]| EscapeParser::detaching(Keys::ControlPQ).parse(bytes);
        assert_eq!(parse(b"a\x10\x11b"), [typed("a"), Input::Detach, typed("b")]);
        assert_eq!(parse(b"\x10\x10\x11"), [typed("\x10"), Input::Detach]);
        assert_eq!(parse(b"\x01d\x10x"), [typed("\x01d\x10x")]);
    }

    #[test]
    fn unknown_key_goes_to_the_guest_with_its_control_a() {
        assert_eq!(EscapeParser::default().parse(b"\x01z"), [typed("\x01z")]);
    }

    #[test]
    fn key_after_control_a_may_come_with_a_later_read() {
        let mut parser = EscapeParser::default();
        assert_eq!(parser.parse(b"a\x01"), [typed("a")]);
        assert_eq!(parser.parse(b"x"), [Input::EndVm]);
        assert_eq!(parser.parse(b"x"), [typed("x")]);
    }
}
