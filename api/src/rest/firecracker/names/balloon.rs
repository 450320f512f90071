//! Names of the balloon, its statistics and its hints.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use volt_vmm::config::devices::BalloonConfig;
use volt_vmm::{BalloonStatistics as Statistics, BalloonStatus};

/// The balloon: `PUT /balloon`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Balloon {
    amount_mib: u64,
    deflate_on_oom: bool,
    #[serde(default)]
    stats_polling_interval_s: u16,
    #[serde(default)]
    free_page_hinting: bool,
    #[serde(default)]
    free_page_reporting: bool,
}

impl From<Balloon> for BalloonConfig {
    fn from(balloon: Balloon) -> Self {
        Self {
            target_mib: balloon.amount_mib,
            deflate_on_oom: balloon.deflate_on_oom,
            statistics_interval: balloon.stats_polling_interval_s,
            reporting: balloon.free_page_reporting,
            hinting: balloon.free_page_hinting,
        }
    }
}

impl From<BalloonConfig> for Balloon {
    fn from(balloon: BalloonConfig) -> Self {
        let BalloonConfig { target_mib, deflate_on_oom, statistics_interval, reporting, hinting } = balloon;
        Self {
            amount_mib: target_mib,
            deflate_on_oom,
            stats_polling_interval_s: statistics_interval,
            free_page_hinting: hinting,
            free_page_reporting: reporting,
        }
    }
}

/// Statistics of the balloon: `GET /balloon/statistics`. Those that the guest did not send are left out.
#[derive(Debug, Serialize)]
pub(crate) struct BalloonStatistics {
    target_pages: u64,
    actual_pages: u64,
    target_mib: u64,
    actual_mib: u64,
    /// volt-vmm's own, as is the next one.
    returned_pages: u64,
    ignored_pages: u64,
    #[serde(flatten)]
    of_guest: BTreeMap<&'static str, u64>,
}

impl From<BalloonStatus> for BalloonStatistics {
    fn from(status: BalloonStatus) -> Self {
        let BalloonStatus { target_mib, actual_mib, returned_pages, ignored_pages, statistics, .. } = status;
        let pages = |mib| mib * (1 << 20) / 4096;
        Self {
            target_pages: pages(target_mib),
            actual_pages: pages(actual_mib),
            target_mib,
            actual_mib,
            returned_pages,
            ignored_pages,
            of_guest: named(statistics.unwrap_or_default()),
        }
    }
}

/// The statistics that a guest sent, by their names.
pub(crate) fn named(found: Statistics) -> BTreeMap<&'static str, u64> {
    let all = [
        ("swap_in", found.swap_in),
        ("swap_out", found.swap_out),
        ("major_faults", found.major_faults),
        ("minor_faults", found.minor_faults),
        ("free_memory", found.free_memory),
        ("total_memory", found.total_memory),
        ("available_memory", found.available_memory),
        ("disk_caches", found.disk_caches),
        ("hugetlb_allocations", found.hugetlb_allocations),
        ("hugetlb_failures", found.hugetlb_failures),
        ("oom_kill", found.oom_kills),
        ("alloc_stall", found.allocation_stalls),
        ("async_scan", found.async_scans),
        ("direct_scan", found.direct_scans),
        ("async_reclaim", found.async_reclaims),
        ("direct_reclaim", found.direct_reclaims),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// A change of the balloon: `PATCH /balloon`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BalloonChange {
    pub(crate) amount_mib: u64,
}

/// A change of the balloon's statistics: `PATCH /balloon/statistics`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StatisticsChange {
    pub(crate) stats_polling_interval_s: u16,
}

/// A start of free page hinting: `PATCH /balloon/hinting/start`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HintingStart {
    /// Whether the guest may reuse its pages as soon as it has no more of them.
    pub(crate) acknowledge_on_stop: bool,
}

impl Default for HintingStart {
    fn default() -> Self {
        Self { acknowledge_on_stop: true }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn statistics_have_firecrackers_names() {
        let mut found = Statistics::default();
        let fields = [
            &mut found.swap_in,
            &mut found.swap_out,
            &mut found.major_faults,
            &mut found.minor_faults,
            &mut found.free_memory,
            &mut found.total_memory,
            &mut found.available_memory,
            &mut found.disk_caches,
            &mut found.hugetlb_allocations,
            &mut found.hugetlb_failures,
            &mut found.oom_kills,
            &mut found.allocation_stalls,
            &mut found.async_scans,
            &mut found.direct_scans,
            &mut found.async_reclaims,
            &mut found.direct_reclaims,
        ];
        fields.into_iter().zip(1..).for_each(|(field, number)| *field = Some(number));
        let status = |statistics| BalloonStatus {
            target_mib: 2,
            actual_mib: 1,
            returned_pages: 5,
            ignored_pages: 6,
            statistics,
        };
        let described =
            |statistics| serde_json::to_value(BalloonStatistics::from(status(statistics))).unwrap();
        let size = json!({"target_pages": 512, "actual_pages": 256, "target_mib": 2, "actual_mib": 1,
                          "returned_pages": 5, "ignored_pages": 6});
        assert_eq!(described(None), size);
        let mut all = json!({
            "swap_in": 1, "swap_out": 2, "major_faults": 3, "minor_faults": 4, "free_memory": 5,
            "total_memory": 6, "available_memory": 7, "disk_caches": 8, "hugetlb_allocations": 9,
            "hugetlb_failures": 10, "oom_kill": 11, "alloc_stall": 12, "async_scan": 13, "direct_scan": 14,
            "async_reclaim": 15, "direct_reclaim": 16,
        });
        let Value::Object(size) = size else { panic!() };
        all.as_object_mut().unwrap().extend(size);
        assert_eq!(described(Some(found)), all);
    }

    #[test]
    fn hinting_is_acknowledged_unless_the_request_says_otherwise() {
        for (body, acknowledges) in [
            ("{}", true),
            (r#"{"acknowledge_on_stop":true}"#, true),
            (r#"{"acknowledge_on_stop":false}"#, false),
        ] {
            let start: HintingStart = serde_json::from_str(body).unwrap();
            assert_eq!(start.acknowledge_on_stop, acknowledges, "{body}");
        }
    }
}
