//! Tests of the families as a whole, and of a process without a VM.

use crate::rest::testing::Serving;

use super::families::{FAMILIES, Kind};

/// The table of docs/metrics.md has a row for each family, and none for another.
#[test]
fn every_family_is_in_the_documentation() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows: Vec<(String, String)> = text
        .lines()
        .filter(|line| line.starts_with("| `volt_vmm_"))
        .map(|line| {
            let mut cells = line.split('|').map(|cell| cell.trim().trim_matches('`').to_owned());
            (cells.nth(1).unwrap(), cells.next().unwrap())
        })
        .collect();
    let families: Vec<(String, String)> =
        FAMILIES.iter().map(|family| (family.name.to_owned(), family.kind.name().to_owned())).collect();
    assert_eq!(rows, families);
}

#[test]
fn names_follow_the_conventions_of_prometheus() {
    for family in FAMILIES {
        let is_total = family.name.ends_with("_total");
        assert_eq!(is_total, family.kind == Kind::Counter, "{}", family.name);
        assert!(family.kind != Kind::Histogram || family.name.ends_with("_seconds"), "{}", family.name);
        assert!(family.help.ends_with('.'), "{}", family.name);
    }
}

#[test]
fn process_without_a_vm_tells_its_state_and_requests() {
    let api = Serving::start();
    api.ask("GET", "/nowhere", "");
    api.ask("PUT", "/drives/a", "{}");
    let (status, text) = api.ask("GET", "/metrics", "");
    assert_eq!(status, 200);
    for line in [
        r#"volt_vmm_vms{state="not started"} 1"#,
        r#"volt_vmm_api_requests_total{method="PUT",path="/drives/{id}",outcome="refused"} 1"#,
        r#"volt_vmm_api_requests_total{method="other",path="other",outcome="refused"} 1"#,
        "volt_vmm_metrics_lines_lost_total 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    assert!(!text.contains("volt_vmm_vcpu_exits_total"), "{text}");
}
