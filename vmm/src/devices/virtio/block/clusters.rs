//! Sets of clusters of a layer.

use std::ops::Range;

use rangemap::RangeSet;

/// Clusters, as ranges that do not touch: a discard may be of hundreds of thousands.
pub type Clusters = RangeSet<u64>;

/// How many clusters ranges have.
pub(super) fn count(ranges: impl Iterator<Item = Range<u64>>) -> u64 {
    ranges.map(|range| range.end - range.start).sum()
}
