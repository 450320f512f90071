//! Cases: each call of an act with each of its faults, or a sample of them.

use std::fmt;

use super::fault::Fault;
use super::{Call, Caller, Kind};

/// Cases of an act that run where nothing else is asked.
const SAMPLE: usize = 8;
/// Chooses the sample: each number chooses another.
const SEED: &str = "VOLT_FAULT_SEED";
/// `all`, or another number of cases of each act.
const CASES: &str = "VOLT_FAULTS";

/// One fault of one call.
#[derive(Clone, Debug)]
pub struct Case {
    pub(super) kind: Kind,
    /// The number of the call among those of its kind, from 0.
    pub(super) nth: usize,
    /// The number of the call in the recorded act, from 0.
    call: usize,
    /// Its fault.
    pub fault: Fault,
    expected: String,
}

/// The cases of an act that run.
#[derive(Debug)]
pub struct Sample {
    cases: Vec<Case>,
}

impl Sample {
    /// Chooses cases for an act with these calls, and prints their number. With `kills` the process is also
    /// killed before each call, and the VM before each call of a process beside it.
    ///
    /// # Panics
    /// The environment asks for no number.
    #[must_use]
    pub fn of(act: &str, calls: &[Call], kills: bool) -> Self {
        let all: Vec<Case> = (0..calls.len()).flat_map(|number| cases_of(calls, number, kills)).collect();
        let wanted = match std::env::var(CASES).as_deref() {
            Ok("all") => all.len(),
            Ok(number) => number.parse().expect("VOLT_FAULTS is a number or \"all\""),
            Err(_) => SAMPLE,
        };
        let seed: usize =
            std::env::var(SEED).map_or(0, |seed| seed.parse().expect("VOLT_FAULT_SEED is a number"));
        let number = all.len();
        let shares = number.div_ceil(wanted.max(1)).max(1);
        let mut cases: Vec<_> = shuffled(all).into_iter().skip(seed % shares).step_by(shares).collect();
        cases.sort_by_key(|case| case.call);
        let of = |caller| calls.iter().filter(|call| call.caller == caller).count();
        println!(
            "faults: {act}: {} calls ({} of an opener, {} of a starter), {number} cases, {} run: share {} of \
             {shares} by {SEED}={seed}",
            calls.len(),
            of(Caller::Opener),
            of(Caller::Starter),
            cases.len(),
            seed % shares + 1,
        );
        Self { cases }
    }
}

impl IntoIterator for Sample {
    type Item = Case;
    type IntoIter = std::vec::IntoIter<Case>;

    fn into_iter(self) -> Self::IntoIter {
        self.cases.into_iter()
    }
}

/// Orders the cases so that each share has all kinds of calls and faults, and each case is in one share.
fn shuffled(all: Vec<Case>) -> Vec<Case> {
    let mut ranked: Vec<_> = (1_u64..).zip(all).collect();
    ranked.sort_by_key(|(number, _)| number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    ranked.into_iter().map(|(_, case)| case).collect()
}

fn cases_of(calls: &[Call], number: usize, kills: bool) -> Vec<Case> {
    let call = &calls[number];
    let nth = calls[..number].iter().filter(|earlier| earlier.kind() == call.kind()).count();
    let kill = kills.then_some(Fault::Kill);
    let kill_vm = (kills && call.caller != Caller::Other).then_some(Fault::KillVm);
    let faults = call.faults.list().into_iter().chain(kill).chain(kill_vm);
    faults
        .map(|fault| Case { kind: call.kind(), nth, call: number, fault, expected: call.to_string() })
        .collect()
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at call {} ({})", self.fault, self.call, self.expected)
    }
}
