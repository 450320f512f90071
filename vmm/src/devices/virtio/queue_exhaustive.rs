//! All short programs of a small queue whose indices wrap, against two lists of chains.

use std::collections::VecDeque;

use super::properties::Pair;

/// Steps of a program.
const STEPS: u32 = 6;

#[derive(Clone, Copy, Debug)]
enum Step {
    Offer,
    Pop,
    Unpop,
    Put,
}

const ALL: [Step; 4] = [Step::Offer, Step::Pop, Step::Unpop, Step::Put];

fn run(size: u16, start: u64, program: u32) {
    let mut pair = Pair::new(size, start, false);
    let (mut waiting, mut taken, mut next) = (VecDeque::new(), VecDeque::new(), start);
    for place in 0..STEPS {
        let step = ALL[(program / 4_u32.pow(place)) as usize % 4];
        match step {
            Step::Offer if waiting.len() + taken.len() < size.into() => {
                waiting.push_back((next % u64::from(size)) as u16 ^ (size - 1));
                next += 1;
                pair.offer();
            }
            Step::Pop => {
                let head = waiting.pop_front();
                assert_eq!(pair.pop(), head, "size {size}, start {start:#x}, program {program:x}");
                taken.extend(head);
            }
            Step::Unpop => {
                if let Some(head) = taken.pop_back() {
                    pair.queue.unpop();
                    waiting.push_front(head);
                }
            }
            Step::Put => {
                if let Some(head) = taken.pop_front() {
                    pair.queue.put(&pair.memory, head, 1).unwrap();
                }
            }
            Step::Offer => {}
        }
        assert_eq!(usize::from(pair.queue.under_way()), taken.len(), "{size} {start:#x} {program:x}");
        pair.reload();
    }
}

#[test]
fn all_short_programs_keep_the_order_of_chains() {
    for size in [1, 2, 4] {
        // Both indices wrap within the program.
        for start in [0, 0xfffe, 0x1_0000 - u64::from(size)] {
            (0..4_u32.pow(STEPS)).for_each(|program| run(size, start, program));
        }
    }
}
