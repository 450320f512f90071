//! An order that no cache foresees.

/// A series of such orders: the same series every time.
#[derive(Debug)]
pub struct Shuffle(u64);

impl Default for Shuffle {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Shuffle {
    /// Puts things into the next order.
    pub fn next<T>(&mut self, order: &mut [T]) {
        let state = &mut self.0;
        for last in (1..order.len()).rev() {
            *state ^= *state << 13;
            *state ^= *state >> 7;
            *state ^= *state << 17;
            order.swap(last, (*state % (last as u64 + 1)) as usize);
        }
    }
}

/// Puts things into one such order.
pub fn shuffle<T>(order: &mut [T]) {
    Shuffle::default().next(order);
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_thing_comes_after_several_others_in_the_orders_of_a_series() {
        for things in [3, 4] {
            let mut shuffle = super::Shuffle::default();
            let mut order: Vec<usize> = (0..things).collect();
            let mut followed = vec![std::collections::BTreeSet::new(); things];
            for _ in 0..60 {
                shuffle.next(&mut order);
                for pair in order.windows(2) {
                    followed[pair[1]].insert(pair[0]);
                }
            }
            assert!(followed.iter().all(|before| before.len() == things - 1), "{followed:?}");
        }
    }

    #[test]
    fn shuffle_keeps_all_items() {
        let mut order: Vec<u32> = (0..1000).collect();
        super::shuffle(&mut order);
        assert!(!order.is_sorted());
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
    }
}
