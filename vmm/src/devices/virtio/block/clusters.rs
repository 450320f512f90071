//! Sets of a layer's clusters.

use std::ops::Range;

use rangemap::RangeSet;

/// A set of clusters, as ranges that do not touch: a discard may cover hundreds of thousands of clusters.
pub type Clusters = RangeSet<u64>;

/// Returns the number of clusters in `ranges`.
pub(super) fn count(ranges: impl Iterator<Item = Range<u64>>) -> u64 {
    ranges.map(|range| range.end - range.start).sum()
}
