//! Acts that are compared with each other, each run in turn.

use std::thread;
use std::time::Duration;

use crate::Result;
use crate::shuffle::Shuffle;
use crate::stats::Times;

/// An act that is compared with others.
pub struct Contender<'a> {
    /// Its name in the table.
    name: String,
    act: Box<dyn FnMut() -> Result<Duration> + 'a>,
}

impl<'a> Contender<'a> {
    /// An act that times itself.
    pub fn new(name: &str, act: impl FnMut() -> Result<Duration> + 'a) -> Self {
        Self { name: name.to_owned(), act: Box::new(act) }
    }
}

/// Results of acts that took turns.
pub type Results = Vec<(String, Times)>;

/// Runs all of them so often, with a pause after each run.
///
/// # Errors
/// One of them fails.
pub fn in_turn(mut contenders: Vec<Contender<'_>>, runs: usize, pause: Duration) -> Result<Results> {
    for contender in &mut contenders {
        // Once for the page cache, and not counted.
        (contender.act)()?;
    }
    let mut all = vec![Vec::with_capacity(runs); contenders.len()];
    let mut order: Vec<usize> = (0..contenders.len()).collect();
    let mut shuffle = Shuffle::default();
    for _ in 0..runs {
        // Not always behind the same one, whose end may still cost time.
        shuffle.next(&mut order);
        for &number in &order {
            all[number].push((contenders[number].act)()?);
            thread::sleep(pause);
        }
    }
    let named = contenders.into_iter().map(|contender| contender.name);
    Ok(named.zip(all.into_iter().map(Times::from_iter)).collect())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn all_acts_run_once_in_each_round_after_a_first_one_that_does_not_count() {
        let order = RefCell::new(Vec::new());
        let act = |name: &'static str, millis| {
            let order = &order;
            Contender::new(name, move || {
                order.borrow_mut().push(name);
                Ok(Duration::from_millis(millis))
            })
        };
        let results = in_turn(vec![act("a", 1), act("b", 2)], 3, Duration::ZERO).unwrap();
        let found: Vec<_> =
            results.iter().map(|(name, times)| (&**name, times.len(), times.min().as_millis())).collect();
        assert_eq!(found, [("a", 3, 1), ("b", 3, 2)]);
        for round in order.borrow().chunks(2) {
            assert!(round.contains(&"a") && round.contains(&"b"), "{round:?}");
        }
    }

    #[test]
    fn failed_act_ends_the_comparison() {
        let acts = vec![Contender::new("a", || Err("made to fail".to_owned()))];
        assert_eq!(in_turn(acts, 1, Duration::ZERO).unwrap_err(), "made to fail");
    }
}
