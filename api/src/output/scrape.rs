//! Metrics of many VMs in Prometheus' text format: their sum, or side by side.

use std::collections::HashMap;
use std::fmt;

/// The family of memory that VMs share.
const SHARED_MEMORY: &str = "volt_vmm_memory_base_bytes";

/// Families of metrics, in the order in which VMs first had them.
#[derive(Debug, Default)]
pub(crate) struct Scrape {
    families: Vec<SummedFamily>,
    /// Places of the families by their names, and of their samples by name and labels.
    places: HashMap<String, usize>,
    answered: u64,
    skipped: u64,
}

#[derive(Debug, Default)]
struct SummedFamily {
    /// The lines of help and type.
    head: Vec<String>,
    samples: Vec<(String, f64)>,
    places: HashMap<String, usize>,
}

impl Scrape {
    /// Adds the text of a VM, whose samples get a label `vm` if it has a name. Samples of one name and labels
    /// are summed, except those of memory that VMs share: a sum would count it for each of them.
    pub(crate) fn add(&mut self, text: &str, vm: Option<&str>) {
        self.answered += 1;
        let mut family = None;
        for line in text.lines() {
            if vm.is_none() && line.contains(SHARED_MEMORY) {
                continue;
            }
            if let Some(comment) = line.strip_prefix("# ") {
                let mut words = comment.split(' ');
                let (Some("HELP" | "TYPE"), Some(name)) = (words.next(), words.next()) else { continue };
                let place = self.family(name);
                let head = &mut self.families[place].head;
                if !head.iter().any(|known| known == line) {
                    head.push(line.to_owned());
                }
                family = Some(place);
            } else if let (Some(family), Some((sample, value))) = (family, line.rsplit_once(' '))
                && let Ok(value) = value.parse()
            {
                let sample = vm.map_or_else(|| sample.to_owned(), |vm| labelled(sample, vm));
                self.families[family].add(sample, value);
            }
        }
    }

    /// Counts a VM that does not answer.
    pub(crate) fn skip(&mut self) {
        self.skipped += 1;
    }

    fn family(&mut self, name: &str) -> usize {
        if let Some(place) = self.places.get(name) {
            return *place;
        }
        self.families.push(SummedFamily::default());
        self.places.insert(name.to_owned(), self.families.len() - 1);
        self.families.len() - 1
    }
}

impl SummedFamily {
    fn add(&mut self, sample: String, value: f64) {
        match self.places.get(&sample) {
            Some(place) => self.samples[*place].1 += value,
            None => {
                self.places.insert(sample.clone(), self.samples.len());
                self.samples.push((sample, value));
            }
        }
    }
}

/// Adds the label `vm` to a sample.
fn labelled(sample: &str, vm: &str) -> String {
    let vm = vm.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    match sample.split_once('{') {
        Some((name, labels)) => format!("{name}{{vm=\"{vm}\",{labels}"),
        None => format!("{sample}{{vm=\"{vm}\"}}"),
    }
}

impl fmt::Display for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for SummedFamily { head, samples, .. } in &self.families {
            head.iter().try_for_each(|line| writeln!(f, "{line}"))?;
            samples.iter().try_for_each(|(sample, value)| writeln!(f, "{sample} {value}"))?;
        }
        writeln!(f, "# HELP volt_vmm_scraped_vms VMs that were asked for their metrics.")?;
        writeln!(f, "# TYPE volt_vmm_scraped_vms gauge")?;
        for (outcome, count) in [("answered", self.answered), ("skipped", self.skipped)] {
            writeln!(f, "volt_vmm_scraped_vms{{outcome=\"{outcome}\"}} {count}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_one_name_are_summed_in_their_family() {
        let mut scrape = Scrape::default();
        scrape
            .add("# HELP a A.\n# TYPE a counter\na{x=\"1 2\"} 3\n# HELP b B.\n# TYPE b gauge\nb 0.5\n", None);
        scrape.add("# HELP b B.\n# TYPE b gauge\nb 1\n# HELP a A.\n# TYPE a counter\na{x=\"2\"} 1\n", None);
        scrape.add("# HELP a A.\n# TYPE a counter\na{x=\"1 2\"} 4\nnonsense\n", None);
        scrape.skip();
        let text = scrape.to_string();
        let wanted = "# HELP a A.\n# TYPE a counter\na{x=\"1 2\"} 7\na{x=\"2\"} 1\n\
                      # HELP b B.\n# TYPE b gauge\nb 1.5\n";
        assert!(text.starts_with(wanted), "{text}");
        let shared = format!("# HELP {SHARED_MEMORY} M.\n# TYPE {SHARED_MEMORY} gauge\n{SHARED_MEMORY} 5\n");
        scrape.add(&shared, None);
        assert!(!scrape.to_string().contains(SHARED_MEMORY), "{scrape}");
        scrape.add(&shared, Some("a"));
        assert!(scrape.to_string().contains("volt_vmm_memory_base_bytes{vm=\"a\"} 5\n"), "{scrape}");
        assert!(
            text.ends_with("{outcome=\"answered\"} 3\nvolt_vmm_scraped_vms{outcome=\"skipped\"} 1\n"),
            "{text}"
        );
    }
}
