//! A parser of Prometheus' text format that shares no code with volt-vmm, and checks what `promtool check
//! metrics` checks: names, help and type before the samples, families in one piece, whole histograms.

use std::collections::{BTreeMap, BTreeSet};

/// Samples by name and labels, as the text has them.
#[derive(Debug)]
pub struct Exposition {
    samples: BTreeMap<String, f64>,
}

/// A family while it is read.
#[derive(Debug, Default)]
struct ReadFamily {
    name: String,
    kind: String,
}

impl Exposition {
    /// Parses a text.
    ///
    /// # Panics
    /// The text breaks a rule of the format or a convention of names.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        assert!(text.ends_with('\n'), "the last line has no end");
        let (mut samples, mut family, mut known) = (BTreeMap::new(), ReadFamily::default(), BTreeSet::new());
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, words) = help.split_once(' ').expect("help has words");
                assert!(!words.is_empty() && known.insert(name.to_owned()), "{name}: a second or empty help");
                family = ReadFamily { name: name.to_owned(), kind: String::new() };
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("a type has a name");
                assert!(name == family.name && family.kind.is_empty(), "{line}: not after its help");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                family.kind = kind.to_owned();
            } else {
                let (sample, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?}"));
                let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line:?}"));
                assert!(value >= 0.0 && value.is_finite(), "{line}");
                family.owns(sample);
                assert!(samples.insert(sample.to_owned(), value).is_none(), "{sample}: twice");
            }
        }
        let parsed = Self { samples };
        parsed.check_histograms();
        parsed
    }

    /// A sample, such as `volt_vmm_vms{state="running"}`; 0 if there is none.
    #[must_use]
    pub fn get(&self, sample: &str) -> f64 {
        self.samples.get(sample).copied().unwrap_or(0.0)
    }

    /// Whether there is a sample of a family.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.samples.keys().any(|sample| split(sample).0 == name)
    }

    /// Sum of all samples of a name.
    #[must_use]
    pub fn sum(&self, name: &str) -> f64 {
        self.samples.iter().filter(|(sample, _)| split(sample).0 == name).map(|(_, value)| value).sum()
    }

    /// Classes of a histogram are cumulative, and the last has all of its durations.
    fn check_histograms(&self) {
        for (sample, count) in &self.samples {
            let (name, labels) = split(sample);
            let Some(name) = name.strip_suffix("_count") else { continue };
            let mut classes: Vec<(f64, f64)> = Vec::new();
            for (bucket, below) in &self.samples {
                let (of, of_labels) = split(bucket);
                let mut rest = of_labels.clone();
                let Some(bound) = rest.remove("le").filter(|_| of.strip_suffix("_bucket") == Some(name))
                else {
                    continue;
                };
                if rest == labels {
                    let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().expect("a bound") };
                    classes.push((bound, *below));
                }
            }
            classes.sort_by(|one, other| one.0.total_cmp(&other.0));
            assert!(
                classes.is_sorted_by(|one, next| one.0 < next.0 && one.1 <= next.1),
                "{sample}: {classes:?}"
            );
            assert_eq!(classes.last(), Some(&(f64::INFINITY, *count)), "{sample}");
            let sum = sample.replacen("_count", "_sum", 1);
            assert!(self.samples.contains_key(&sum), "{sum} is missing");
        }
    }
}

impl ReadFamily {
    fn owns(&self, sample: &str) {
        let (name, labels) = split(sample);
        let is_name = |name: &str| {
            let is_valid = |c: char| c.is_ascii_alphanumeric() || c == '_';
            !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(is_valid)
        };
        assert!(is_name(&name) && labels.keys().all(|label| is_name(label)), "{sample}");
        let suffixes: &[&str] = match self.kind.as_str() {
            "histogram" => &["_bucket", "_sum", "_count"],
            "" => &[],
            _ => &[""],
        };
        let has_suffix = |suffix: &&str| name.strip_suffix(*suffix) == Some(self.name.as_str());
        assert!(suffixes.iter().any(has_suffix), "{sample} is not of {self:?}");
        assert_eq!(labels.contains_key("le"), name.ends_with("_bucket"), "{sample}");
    }
}

/// Name and labels of a sample.
fn split(sample: &str) -> (String, BTreeMap<String, String>) {
    let Some((name, rest)) = sample.split_once('{') else { return (sample.to_owned(), BTreeMap::new()) };
    let mut rest = rest.strip_suffix('}').unwrap_or_else(|| panic!("{sample}: no end of its labels"));
    let mut labels = BTreeMap::new();
    while let Some((label, more)) = rest.split_once("=\"") {
        let mut is_escaped = false;
        let end = more.find(|c| {
            let is_end = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            is_end
        });
        let end = end.unwrap_or_else(|| panic!("{sample}: no end of {label}"));
        assert!(labels.insert(label.to_owned(), more[..end].to_owned()).is_none(), "{sample}: {label} twice");
        rest = more[end + 1..].strip_prefix(',').unwrap_or(&more[end + 1..]);
    }
    assert!(rest.is_empty(), "{sample}: {rest}");
    (name.to_owned(), labels)
}
