//! Guests that count: `count 1`, `count 2`, …

/// The numbers of all whole lines `name N` in `text`, in their order.
#[must_use]
pub fn numbers(text: &str, name: &str) -> Vec<u64> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let number = |line: &str| line.trim_end().strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    whole.lines().filter_map(number).collect()
}

/// The last number that a guest counted to, after a check that none is missing, twice there, or garbled:
/// `text` must be all output since the guest started, over any number of snapshots and restores, each taken
/// while it was paused.
///
/// # Panics
/// One is.
pub fn consecutive(text: &str, name: &str) -> u64 {
    let found = numbers(text, name);
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines().filter(|line| line.trim_end() != "ready").count();
    assert_eq!(lines, found.len(), "a line that is no `{name} N`:\n{text}");
    assert!((1..).zip(&found).all(|(right, &number)| right == number), "not 1, 2, 3, …:\n{text}");
    found.len() as u64
}
