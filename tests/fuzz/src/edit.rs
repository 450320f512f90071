//! Changes of JSON documents, as the author of a snapshot or a client may make them: most change one value,
//! so that the rest remains valid.

use arbitrary::Arbitrary;
use serde_json::Value;

/// A change of one value of a document.
#[derive(Debug, Arbitrary)]
pub struct Edit {
    /// Number of the value in the order of the document.
    at: u16,
    change: Change,
}

#[derive(Debug, Arbitrary)]
enum Change {
    Number(u64),
    /// Adds to a number.
    Add(i8),
    /// A number at a power of two.
    Power(u8, bool),
    Negative(u32),
    Flag(bool),
    Text(String),
    /// Replaces a letter of a text.
    Letter(u16, char),
    Null,
    /// Removes the first or last item.
    Shorten(bool),
    /// Repeats the last item of a list.
    Repeat(u8),
    /// Adds a field.
    Field(String),
}

impl Edit {
    /// Applies the change.
    pub fn apply(self, document: &mut Value) {
        let count = count(document).max(1);
        let mut left = usize::from(self.at) % count;
        if let Some(value) = find(document, &mut left) {
            self.change.apply(value);
        }
    }
}

impl Change {
    fn apply(self, value: &mut Value) {
        match (self, value) {
            (Self::Number(number), value) => *value = number.into(),
            (Self::Add(by), Value::Number(number)) => {
                let sum = number.as_u64().unwrap_or(0).wrapping_add_signed(by.into());
                *number = sum.into();
            }
            (Self::Power(shift, less), value) => {
                *value = (1_u64 << (shift % 64)).wrapping_sub(less.into()).into();
            }
            (Self::Negative(number), value) => *value = (-i64::from(number)).into(),
            (Self::Flag(flag), value) => *value = flag.into(),
            (Self::Letter(at, letter), Value::String(text)) => {
                let mut letters: Vec<_> = text.chars().collect();
                let count = letters.len().max(1);
                letters.get_mut(usize::from(at) % count).into_iter().for_each(|old| *old = letter);
                *text = letters.into_iter().collect();
            }
            (Self::Text(text), value) => *value = text.into(),
            (Self::Null, value) => *value = Value::Null,
            (Self::Shorten(first), Value::Array(items)) if !items.is_empty() => {
                items.remove(if first { 0 } else { items.len() - 1 });
            }
            (Self::Shorten(first), Value::Object(fields)) => {
                let name = if first { fields.keys().next() } else { fields.keys().next_back() };
                if let Some(name) = name.cloned() {
                    fields.remove(&name);
                }
            }
            (Self::Repeat(times), Value::Array(items)) => {
                let last = items.last().cloned();
                items.extend(last.into_iter().cycle().take(times.into()));
            }
            (Self::Field(name), Value::Object(fields)) => drop(fields.insert(name, Value::Null)),
            _ => {}
        }
    }
}

/// Applies all changes to a text of JSON.
#[must_use]
pub fn edited(text: &str, edits: impl IntoIterator<Item = Edit>) -> String {
    let Ok(mut document) = serde_json::from_str(text) else { return text.to_owned() };
    edits.into_iter().for_each(|edit| edit.apply(&mut document));
    document.to_string()
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum::<usize>(),
        _ => 0,
    }
}

/// Finds the value with the number `left`.
fn find<'v>(value: &'v mut Value, left: &mut usize) -> Option<&'v mut Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    match value {
        Value::Array(items) => items.iter_mut().find_map(|item| find(item, left)),
        Value::Object(fields) => fields.values_mut().find_map(|field| find(field, left)),
        _ => None,
    }
}
