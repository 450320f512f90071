//! A chart that is Markdown: a block of Mermaid, which the places where Markdown is read draw
//! (`xychart-beta`).

use std::fmt;

/// Colours, and what they are called below the chart, which has no legend of its own.
const COLOURS: [(&str, &str); 4] =
    [("#1f77b4", "blue"), ("#ff7f0e", "orange"), ("#2ca02c", "green"), ("#d62728", "red")];

/// Lines over the same places of an axis.
#[derive(Clone, Debug)]
pub struct Chart {
    title: String,
    along: (String, Vec<String>),
    up: String,
    lines: Vec<(String, Vec<f64>)>,
}

impl Chart {
    /// One with a title, the name of what goes along and its places, and the name of what goes up.
    #[must_use]
    pub fn new(title: &str, along: (&str, Vec<String>), up: &str) -> Self {
        Self { title: title.into(), along: (along.0.into(), along.1), up: up.into(), lines: Vec::new() }
    }

    /// One more line: a value for each place.
    ///
    /// # Panics
    /// There are more lines than colours, or not as many values as places.
    pub fn line(&mut self, name: &str, values: Vec<f64>) {
        assert!(self.lines.len() < COLOURS.len(), "more lines than {}", COLOURS.len());
        assert_eq!(values.len(), self.along.1.len(), "values of {name}");
        self.lines.push((name.into(), values));
    }
}

impl fmt::Display for Chart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = &COLOURS[..self.lines.len()];
        let colours: Vec<_> = used.iter().map(|(colour, _)| *colour).collect();
        let names = used.iter().zip(&self.lines).map(|((_, colour), (name, _))| format!("{colour}: {name}"));
        let top = self.lines.iter().flat_map(|(_, values)| values).copied().fold(0.0, f64::max);
        let (along, places) = &self.along;
        writeln!(f, "```mermaid")?;
        writeln!(
            f,
            "%%{{init: {{\"themeVariables\": {{\"xyChart\": {{\"plotColorPalette\": \"{}\"}}}}}}}}%%",
            colours.join(", ")
        )?;
        writeln!(f, "xychart-beta")?;
        writeln!(f, "    title \"{}\"", self.title)?;
        writeln!(f, "    x-axis \"{along}\" [{}]", places.join(", "))?;
        writeln!(f, "    y-axis \"{}\" 0 --> {:.3}", self.up, top * 1.1)?;
        for (_, values) in &self.lines {
            let values: Vec<_> = values.iter().map(|value| format!("{value:.3}")).collect();
            writeln!(f, "    line [{}]", values.join(", "))?;
        }
        writeln!(f, "```\n")?;
        writeln!(f, "{}.", names.collect::<Vec<_>>().join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chart_is_a_mermaid_block_with_its_legend_below() {
        let mut chart = Chart::new("faults", ("KiB", vec!["4".into(), "8".into()]), "us");
        chart.line("lz4", vec![1.0, 2.5]);
        chart.line("zstd", vec![3.0, 10.0]);
        let text = "```mermaid\n\
            %%{init: {\"themeVariables\": {\"xyChart\": {\"plotColorPalette\": \"#1f77b4, #ff7f0e\"}}}}%%\n\
            xychart-beta\n    title \"faults\"\n    x-axis \"KiB\" [4, 8]\n    \
            y-axis \"us\" 0 --> 11.000\n    \
            line [1.000, 2.500]\n    line [3.000, 10.000]\n```\n\nblue: lz4; orange: zstd.\n";
        assert_eq!(chart.to_string(), text);
    }
}
