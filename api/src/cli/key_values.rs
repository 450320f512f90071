//! Values of options such as `--disk path=/root.img,ro`: keys and values with commas between them,
//! deserialized into the type that the configuration file has too. A table says which field a key spells. The
//! type says which fields exist, which are required, and what they hold.

use std::fmt;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use volt_vmm::parse_size;

use super::limits;

/// A key of an option's value, and the field that it spells.
#[derive(Debug)]
pub(super) struct OptionKey {
    name: &'static str,
    /// Placeholder of its value in help texts; empty for a flag.
    value: &'static str,
    /// Field of the type, then of that field's type. An enum's field is its variant.
    path: &'static [&'static str],
    syntax: Syntax,
    /// The explanation in `volt-vmm help devices`. Empty for an old spelling, which no help text has.
    about: &'static str,
}

/// How a key's value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Syntax {
    /// No value: the key alone means yes.
    Flag,
    /// As the field's type reads it: a text, a number, one of a few names, or `on` and `off`.
    Plain,
    /// `512M`
    Size,
    /// `10M/100+64M`
    Rate,
    /// As [`Syntax::Plain`], and the key may be repeated.
    Repeated,
    /// `8080:80`, and the key may be repeated.
    Ports,
}

impl OptionKey {
    pub(super) const fn flag(name: &'static str, path: &'static [&'static str]) -> Self {
        Self { name, value: "", path, syntax: Syntax::Flag, about: "" }
    }

    /// Adds an explanation.
    pub(super) const fn about(self, about: &'static str) -> Self {
        Self { about, ..self }
    }

    pub(super) const fn plain(
        name: &'static str,
        value: &'static str,
        path: &'static [&'static str],
    ) -> Self {
        Self { name, value, path, syntax: Syntax::Plain, about: "" }
    }

    pub(super) const fn repeated(
        name: &'static str,
        value: &'static str,
        path: &'static [&'static str],
    ) -> Self {
        Self { name, value, path, syntax: Syntax::Repeated, about: "" }
    }

    pub(super) const fn size(name: &'static str, path: &'static [&'static str]) -> Self {
        Self { name, value: "SIZE", path, syntax: Syntax::Size, about: "" }
    }

    pub(super) const fn rate(name: &'static str, path: &'static [&'static str]) -> Self {
        Self { name, value: "LIMIT", path, syntax: Syntax::Rate, about: "" }
    }

    pub(super) const fn ports(name: &'static str, path: &'static [&'static str]) -> Self {
        Self { name, value: "HOSTPORT:GUESTPORT", path, syntax: Syntax::Ports, about: "" }
    }
}

/// Formats the key as help texts have it: `tap=NAME`, `passt`.
impl fmt::Display for OptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.syntax {
            Syntax::Flag => f.write_str(self.name),
            _ => write!(f, "{}={}", self.name, self.value),
        }
    }
}

/// Whether the first word of an option's value is a key, or a key and a value.
pub(super) fn begins_with_key(keys: &[OptionKey], text: &str) -> bool {
    let word = text.split(',').next().unwrap_or_default();
    word.contains('=') || keys.iter().any(|key| key.name == word)
}

/// Explains keys, one a line.
pub(super) fn explain(keys: &[OptionKey]) -> String {
    let explained = || keys.iter().filter(|key| !key.about.is_empty());
    let width = explained().map(|key| key.to_string().len()).max().unwrap_or(0);
    explained().map(|key| format!("  {:<width$}  {}\n", key.to_string(), key.about)).collect()
}

/// Parses an option's value.
pub(super) fn parse<T: DeserializeOwned>(keys: &'static [OptionKey], text: &str) -> Result<T, String> {
    deserialize(keys, read(keys, text)?)
}

/// Parses an option's value in which the key `optional` may be missing; its value is empty then.
pub(super) fn parse_without<T: DeserializeOwned>(
    optional: &str,
    keys: &'static [OptionKey],
    text: &str,
) -> Result<T, String> {
    let mut given = read(keys, text)?;
    if let Some(key) = keys.iter().find(|key| key.name == optional)
        && given.iter().all(|other| other.key.name != key.name)
    {
        given.push(Given { key, text: "" });
    }
    deserialize(keys, given)
}

fn deserialize<T: DeserializeOwned>(keys: &[OptionKey], given: Vec<Given<'_>>) -> Result<T, String> {
    T::deserialize(Group { given, depth: 0 }).map_err(|refusal| match refusal {
        Refusal::Missing(field) => missing(keys, field),
        Refusal::Value(problem) | Refusal::Whole(problem) => problem,
    })
}

/// Says which key spells the missing `field`.
fn missing(keys: &[OptionKey], field: &str) -> String {
    let is_explained = keys.iter().any(|key| !key.about.is_empty());
    let is_known = |key: &OptionKey| !key.about.is_empty() || !is_explained;
    let spells = |key: &&OptionKey| key.path[0] == field && key.path.len() <= 2 && is_known(key);
    match &keys.iter().filter(spells).collect::<Vec<_>>()[..] {
        [] => format!("{field} is missing"),
        [key] => format!("{}=... is missing", key.name),
        several => {
            let names: Vec<_> = several.iter().map(ToString::to_string).collect();
            format!("exactly one of {} is needed", names.join(" or "))
        }
    }
}

/// A key as the user gave it.
#[derive(Clone, Copy)]
struct Given<'a> {
    key: &'static OptionKey,
    /// Empty for a flag.
    text: &'a str,
}

/// Formats it as the user wrote it.
impl fmt::Display for Given<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key.syntax {
            Syntax::Flag => f.write_str(self.key.name),
            _ => write!(f, "{}={}", self.key.name, self.text),
        }
    }
}

fn read<'a>(keys: &'static [OptionKey], text: &'a str) -> Result<Vec<Given<'a>>, String> {
    let mut all: Vec<Given<'a>> = Vec::new();
    for word in text.split(',').filter(|word| !word.is_empty()) {
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let key = keys.iter().find(|key| key.name == name).ok_or_else(|| unknown(word))?;
        match (key.syntax, value) {
            (Syntax::Flag, Some(_)) => return Err(format!("{word:?}: {name} takes no value")),
            (Syntax::Flag, None) | (_, Some(_)) => {}
            (_, None) => return Err(format!("{word:?} needs a value: {key}")),
        }
        let may_repeat = matches!(key.syntax, Syntax::Repeated | Syntax::Ports);
        if !may_repeat && all.iter().any(|other| other.key.name == name) {
            return Err(format!("{word:?}: {name} is given twice"));
        }
        all.push(Given { key, text: value.unwrap_or_default() });
    }
    Ok(all)
}

fn unknown(word: &str) -> String {
    format!("{word:?} is unknown to this option")
}

/// Why a type could not be made.
#[derive(Debug)]
enum Refusal {
    /// No key spells this required field.
    Missing(&'static str),
    /// A problem of a value; the key goes before it.
    Value(String),
    /// The whole text.
    Whole(String),
}

impl Refusal {
    /// Adds the key and value whose problem it is.
    fn of(self, given: Option<&Given<'_>>) -> Self {
        match (self, given) {
            (Self::Value(problem), Some(given)) => Self::Whole(format!("{given}: {problem}")),
            (refusal, _) => refusal,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(text) => f.write_str(text),
            Self::Value(text) | Self::Whole(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Refusal {}

impl de::Error for Refusal {
    fn custom<T: fmt::Display>(problem: T) -> Self {
        Self::Value(problem.to_string())
    }

    fn missing_field(field: &'static str) -> Self {
        Self::Missing(field)
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Self::Value(format!("it is one of {}", expected.join(", ")))
    }
}

/// All keys whose fields are the same down to `depth`: of a value, those of one field.
struct Group<'a> {
    given: Vec<Given<'a>>,
    depth: usize,
}

impl<'a> Group<'a> {
    /// The key that spells this very field.
    fn own(&self) -> Option<Given<'a>> {
        self.given.iter().find(|given| given.key.path.len() == self.depth).copied()
    }

    /// The groups of the fields below, in the order of their first keys.
    fn below(&self) -> Vec<(&'static str, Self)> {
        let mut groups: Vec<(&'static str, Self)> = Vec::new();
        for given in &self.given {
            let Some(field) = given.key.path.get(self.depth) else { continue };
            match groups.iter_mut().find(|(other, _)| other == field) {
                Some((_, group)) => group.given.push(*given),
                None => groups.push((field, Self { given: vec![*given], depth: self.depth + 1 })),
            }
        }
        groups
    }

    fn fields(&self) -> Fields<'a> {
        let mut groups = self.below();
        groups.reverse();
        Fields { groups, current: None }
    }

    fn number<T: std::str::FromStr>(&self) -> Result<T, Refusal> {
        let text = self.own().map(|given| given.text).unwrap_or_default();
        text.parse().map_err(|_| Refusal::Value("not a number, or a number that is too large".to_owned()))
    }
}

impl<'de> Deserializer<'de> for Group<'_> {
    type Error = Refusal;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        let Some(given) = self.own() else { return visitor.visit_map(self.fields()) };
        let wrong = |write: &str| Refusal::Value(format!("write {write}"));
        match given.key.syntax {
            Syntax::Flag => visitor.visit_bool(true),
            Syntax::Plain => visitor.visit_str(given.text),
            Syntax::Size => {
                let size = parse_size(given.text, 1);
                visitor.visit_u64(size.map_err(|why| Refusal::Value(why.to_owned()))?)
            }
            Syntax::Rate => {
                let bucket = limits::bucket(given.text).ok_or_else(|| wrong(limits::SYNTAX))?;
                let fields = [
                    ("size", bucket.size),
                    ("refill_time", bucket.refill_time),
                    ("one_time_burst", bucket.one_time_burst),
                ];
                visitor.visit_map(MapDeserializer::new(fields.into_iter()))
            }
            Syntax::Repeated => {
                visitor.visit_seq(SeqDeserializer::new(self.given.iter().map(|given| given.text)))
            }
            Syntax::Ports => {
                let pair = |given: &Given<'_>| {
                    let (host, guest) = given.text.split_once(':')?;
                    Some(vec![host.parse::<u16>().ok()?, guest.parse().ok()?])
                };
                let wrong = |given: &Given<'_>| wrong(given.key.value).of(Some(given));
                let pairs = self.given.iter().map(|given| pair(given).ok_or_else(|| wrong(given)));
                let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
                visitor.visit_seq(SeqDeserializer::new(pairs.into_iter()))
            }
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match self.own() {
            Some(Given { key: OptionKey { syntax: Syntax::Plain, .. }, text }) => match text {
                "on" => visitor.visit_bool(true),
                "off" => visitor.visit_bool(false),
                _ => Err(Refusal::Value("it is one of on, off".to_owned())),
            },
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        visitor.visit_u8(self.number()?)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        visitor.visit_u16(self.number()?)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        visitor.visit_u32(self.number()?)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match self.own().map(|given| given.key.syntax) {
            Some(Syntax::Plain) => visitor.visit_u64(self.number()?),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        let is_unknown =
            |given: &&Given<'_>| given.key.path.get(self.depth).is_some_and(|field| !fields.contains(field));
        match self.given.iter().find(is_unknown) {
            Some(given) => Err(Refusal::Whole(unknown(&given.to_string()))),
            None => self.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        match self.own() {
            Some(given) => visitor.visit_enum(given.text.into_deserializer()),
            None => visitor.visit_enum(self),
        }
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

/// The fields of a struct, last first.
struct Fields<'a> {
    groups: Vec<(&'static str, Group<'a>)>,
    current: Option<Group<'a>>,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Refusal;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Refusal> {
        let Some((field, group)) = self.groups.pop() else { return Ok(None) };
        self.current = Some(group);
        seed.deserialize(field.into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refusal> {
        let group = self.current.take().unwrap_or(Group { given: Vec::new(), depth: 0 });
        let given = group.own();
        seed.deserialize(group).map_err(|refusal| refusal.of(given.as_ref()))
    }
}

/// An enum whose variants have keys of their own.
impl<'de> EnumAccess<'de> for Group<'_> {
    type Error = Refusal;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Refusal> {
        let mut variants = self.below();
        if let Some((variant, group)) = variants.iter().find(|(_, group)| group.own().is_none()) {
            let name = group.given[0].key.name;
            return Err(Refusal::Whole(format!("{name}=... is for {variant}")));
        }
        match (variants.pop(), variants.is_empty()) {
            (Some((variant, group)), true) => Ok((seed.deserialize(variant.into_deserializer())?, group)),
            _ => Err(Refusal::Missing(self.given[0].key.path[self.depth - 1])),
        }
    }
}

impl<'de> VariantAccess<'de> for Group<'_> {
    type Error = Refusal;

    fn unit_variant(self) -> Result<(), Refusal> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Refusal> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Refusal> {
        self.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        visitor.visit_map(self.fields())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;

    use clap::{Args, Command};

    use super::*;

    /// Asserts that the help of each option names every key of its table that the option takes.
    pub(in crate::cli) fn help_names_every_key<A: Args>(
        option: &str,
        keys: &[OptionKey],
        is_taken: impl Fn(&OptionKey) -> bool,
    ) {
        let command = A::augment_args(Command::new("test"));
        let argument = command.get_arguments().find(|argument| argument.get_long() == Some(option)).unwrap();
        let help = argument.get_long_help().or(argument.get_help()).unwrap().to_string();
        let missing: BTreeSet<_> = keys.iter().filter(|key| is_taken(key)).map(ToString::to_string).collect();
        let missing: Vec<_> = missing.iter().filter(|key| !help.contains(*key)).collect();
        assert!(missing.is_empty(), "--{option} does not explain {missing:?}: {help}");
    }
}
