//! Samples in the text format: name, labels and value.

use std::borrow::Cow;
use std::fmt::Write;

use volt_vmm::Durations;

/// The samples of one family, which are written to a text.
pub(super) struct Samples<'t> {
    text: &'t mut String,
    name: &'static str,
}

/// Labels of a sample, by their names.
pub(super) type Labels<'l> = &'l [(&'static str, &'l str)];

impl<'t> Samples<'t> {
    /// Samples of the family `name`.
    pub(super) fn of(name: &'static str, text: &'t mut String) -> Self {
        Self { text, name }
    }

    /// Writes a sample of a counter or gauge.
    pub(super) fn add(&mut self, labels: Labels<'_>, value: f64) {
        self.line("", labels, None, value);
    }

    /// Writes the samples of a histogram.
    pub(super) fn histogram(&mut self, labels: Labels<'_>, durations: &Durations) {
        let mut below = 0;
        let bounds = Durations::bounds().map(|bound| bound.as_secs_f64().to_string());
        for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(durations.classes) {
            below += count;
            self.line("_bucket", labels, Some(&bound), below as f64);
        }
        self.line("_sum", labels, None, durations.sum.as_secs_f64());
        self.line("_count", labels, None, below as f64);
    }

    fn line(&mut self, suffix: &str, labels: Labels<'_>, bound: Option<&str>, value: f64) {
        let Self { text, name } = self;
        text.push_str(name);
        text.push_str(suffix);
        let labels = labels.iter().copied().chain(bound.map(|bound| ("le", bound)));
        let mut start = '{';
        for (label, content) in labels {
            let _ = write!(text, "{start}{label}=\"{}\"", escaped(content));
            start = ',';
        }
        let end = if start == '{' { "" } else { "}" };
        let _ = writeln!(text, "{end} {value}");
    }
}

/// Escapes a label's value.
fn escaped(content: &str) -> Cow<'_, str> {
    if !content.contains(['\\', '"', '\n']) {
        return content.into();
    }
    content.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn histogram_is_cumulative_and_labels_are_escaped() {
        let mut text = String::new();
        let mut samples = Samples { text: &mut text, name: "x_seconds" };
        let both = Durations::of(Duration::from_millis(3)).with(Durations::of(Duration::from_secs(60)));
        samples.histogram(&[("device", "a\"\\\n")], &both);
        let has = |line: &str| assert!(text.lines().any(|found| found == line), "{line}: {text}");
        has(r#"x_seconds_bucket{device="a\"\\\n",le="0.002"} 0"#);
        has(r#"x_seconds_bucket{device="a\"\\\n",le="0.005"} 1"#);
        has(r#"x_seconds_bucket{device="a\"\\\n",le="10"} 1"#);
        has(r#"x_seconds_bucket{device="a\"\\\n",le="+Inf"} 2"#);
        has(r#"x_seconds_sum{device="a\"\\\n"} 60.003"#);
        has(r#"x_seconds_count{device="a\"\\\n"} 2"#);
    }
}
