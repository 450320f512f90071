//! An order that no cache foresees.

/// Puts things into such an order: the same every time.
pub fn shuffle<T>(order: &mut [T]) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..order.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(last, (state % (last as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn shuffle_keeps_all_items() {
        let mut order: Vec<u32> = (0..1000).collect();
        super::shuffle(&mut order);
        assert!(!order.is_sorted());
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
    }
}
