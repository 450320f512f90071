//! Numbers of guests that count: `count 1`, `count 2`, …

/// Returns the numbers of all whole lines `name N` in `text`, in order.
#[must_use]
pub fn numbers(text: &str, name: &str) -> Vec<u64> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let number = |line: &str| line.trim_end().strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    whole.lines().filter_map(number).collect()
}

/// Returns the last number of a guest that counts from 1, and checks that no number is missing, repeated or
/// garbled. `text` is all output since the guest's start, over any number of snapshots taken while the guest
/// was paused.
///
/// # Panics
/// A number is missing, repeated or garbled.
pub fn consecutive(text: &str, name: &str) -> u64 {
    let found = numbers(text, name);
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines().filter(|line| line.trim_end() != "ready").count();
    assert_eq!(lines, found.len(), "a line that is no `{name} N`:\n{text}");
    assert!((1..).zip(&found).all(|(right, &number)| right == number), "not 1, 2, 3, …:\n{text}");
    found.len() as u64
}
