//! Finds volt-vmm's own keys, introduced by Ctrl-A, in what is typed on a terminal.

/// Ctrl-A.
const ESCAPE: u8 = 0x01;

/// What a stretch of typing means.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// Goes to the guest.
    Typed(Vec<u8>),
    /// Ctrl-A X.
    End,
    /// Ctrl-A H.
    Help,
}

/// The parser; its state is whether a Ctrl-A is waiting for its key, which may come with a later read.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    escaped: bool,
}

impl Keys {
    /// Takes in `bytes`. A Ctrl-A before a key that means nothing goes to the guest with that key.
    pub(crate) fn parse(&mut self, bytes: &[u8]) -> Vec<Key> {
        let mut keys = Vec::new();
        let mut typed = Vec::new();
        for &byte in bytes {
            if !std::mem::take(&mut self.escaped) {
                match byte {
                    ESCAPE => self.escaped = true,
                    _ => typed.push(byte),
                }
                continue;
            }
            let key = match byte {
                b'x' | b'X' => Key::End,
                b'h' | b'H' | b'?' => Key::Help,
                b'a' | b'A' | ESCAPE => {
                    typed.push(ESCAPE);
                    continue;
                }
                _ => {
                    typed.extend([ESCAPE, byte]);
                    continue;
                }
            };
            flush(&mut typed, &mut keys);
            keys.push(key);
        }
        flush(&mut typed, &mut keys);
        keys
    }
}

fn flush(typed: &mut Vec<u8>, keys: &mut Vec<Key>) {
    if !typed.is_empty() {
        keys.push(Key::Typed(std::mem::take(typed)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(text: &str) -> Key {
        Key::Typed(text.into())
    }

    #[test]
    fn plain_typing_and_control_c_go_to_the_guest() {
        assert_eq!(Keys::default().parse(b"ls\r\x03x"), [typed("ls\r\x03x")]);
        assert_eq!(Keys::default().parse(b""), []);
    }

    #[test]
    fn keys_of_volt_vmm() {
        for (input, key) in
            [("\x01x", Key::End), ("\x01X", Key::End), ("\x01h", Key::Help), ("\x01?", Key::Help)]
        {
            assert_eq!(Keys::default().parse(input.as_bytes()), [key], "{input:?}");
        }
        assert_eq!(Keys::default().parse(b"a\x01hb\x01x"), [typed("a"), Key::Help, typed("b"), Key::End]);
    }

    #[test]
    fn control_a_twice_sends_one() {
        for input in ["\x01\x01", "\x01a", "\x01A"] {
            assert_eq!(Keys::default().parse(input.as_bytes()), [typed("\x01")], "{input:?}");
        }
        assert_eq!(Keys::default().parse(b"\x01\x01x"), [typed("\x01x")]);
    }

    #[test]
    fn an_unknown_key_loses_nothing() {
        assert_eq!(Keys::default().parse(b"\x01z"), [typed("\x01z")]);
    }

    #[test]
    fn a_key_may_come_with_a_later_read() {
        let mut keys = Keys::default();
        assert_eq!(keys.parse(b"a\x01"), [typed("a")]);
        assert_eq!(keys.parse(b"x"), [Key::End]);
        assert_eq!(keys.parse(b"x"), [typed("x")]);
    }
}
