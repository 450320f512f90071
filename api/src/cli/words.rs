//! A device as words with commas between them, such as `path=/root.img,ro`.

use std::str::FromStr;

/// Words, taken one by one; none may be left over.
pub(super) struct Words<'a>(Vec<&'a str>);

impl<'a> Words<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        Self(text.split(',').filter(|word| !word.is_empty()).collect())
    }

    pub(super) fn value(&mut self, name: &str) -> Option<&'a str> {
        let start = |word: &&str| word.split_once('=').is_some_and(|(key, _)| key == name);
        let at = self.0.iter().position(start)?;
        self.0.remove(at).split_once('=').map(|(_, value)| value)
    }

    pub(super) fn required(&mut self, name: &str) -> Result<&'a str, String> {
        self.value(name).ok_or_else(|| format!("{name}=... is missing"))
    }

    pub(super) fn number<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, String> {
        let number = |text: &str| text.parse().map_err(|_| format!("{name}={text}: not a number that fits"));
        self.value(name).map(number).transpose()
    }

    /// One of a few values.
    pub(super) fn one_of<T: Copy>(&mut self, name: &str, values: &[(&str, T)]) -> Result<Option<T>, String> {
        let Some(given) = self.value(name) else { return Ok(None) };
        let found = values.iter().find(|(word, _)| *word == given).map(|(_, value)| *value);
        let words: Vec<_> = values.iter().map(|(word, _)| *word).collect();
        found.map(Some).ok_or_else(|| format!("{name}={given}: it is one of {}", words.join(", ")))
    }

    pub(super) fn flag(&mut self, name: &str) -> bool {
        let at = self.0.iter().position(|word| *word == name);
        at.map(|at| self.0.remove(at)).is_some()
    }

    pub(super) fn end(self) -> Result<(), String> {
        self.0.first().map_or(Ok(()), |word| Err(format!("{word:?} is unknown here, or there twice")))
    }
}
