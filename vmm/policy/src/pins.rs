//! Addresses that names were resolved to. A rule about a name holds for its pinned addresses alone.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::name::Name;

/// Most pinned addresses, and most names of one address.
const MOST_ADDRESSES: usize = 4096;
const MOST_NAMES: usize = 16;
/// Least time of a pin. Programs keep addresses for a while, whatever the answer says.
const LEAST: Duration = Duration::from_secs(60);
/// Time beyond that of the answer: a guest counts from when it has the answer.
const SLACK: Duration = Duration::from_secs(10);

/// A pin as snapshots keep it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SavedPin {
    /// The name.
    pub name: Name,
    /// An address that it had.
    pub address: IpAddr,
}

#[derive(Clone, Debug)]
struct Pin {
    name: Name,
    until: Instant,
}

/// The pins of one interface.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    by_address: HashMap<IpAddr, Vec<Pin>>,
}

impl Pins {
    /// Pins an address to a name for `seconds`, and for [`LEAST`] at least.
    pub fn add(&mut self, name: &Name, address: IpAddr, seconds: u32, now: Instant) {
        let until = now + LEAST.max(Duration::from_secs(seconds.into())) + SLACK;
        self.pin(Pin { name: name.clone(), until }, address);
    }

    fn pin(&mut self, pin: Pin, address: IpAddr) {
        if self.by_address.len() >= MOST_ADDRESSES && !self.by_address.contains_key(&address) {
            // The one that ends first gives way. A guest that asks for so many names has asked for it long
            // ago.
            let ends = |pins: &Vec<Pin>| pins.iter().map(|pin| pin.until).max();
            let first = self.by_address.iter().min_by_key(|(_, pins)| ends(pins));
            let first = first.map(|(address, _)| *address);
            first.and_then(|first| self.by_address.remove(&first));
        }
        let pins = self.by_address.entry(address).or_default();
        match pins.iter_mut().find(|other| other.name == pin.name) {
            Some(other) => other.until = other.until.max(pin.until),
            None => {
                if pins.len() >= MOST_NAMES {
                    let first = (0..pins.len()).min_by_key(|at| pins[*at].until).unwrap_or_default();
                    pins.swap_remove(first);
                }
                pins.push(pin);
            }
        }
    }

    /// The names of an address. Pins whose time is over hold while the address `is_in_use`.
    pub fn names(&mut self, address: IpAddr, now: Instant, is_in_use: impl FnOnce() -> bool) -> Vec<Name> {
        let Some(pins) = self.by_address.get_mut(&address) else { return Vec::new() };
        if pins.iter().any(|pin| pin.until <= now) && !is_in_use() {
            pins.retain(|pin| pin.until > now);
        }
        let names = pins.iter().map(|pin| pin.name.clone()).collect();
        if pins.is_empty() {
            self.by_address.remove(&address);
        }
        names
    }

    /// The pins that hold, for a snapshot. Those whose time is over hold while their address `is_in_use`.
    pub fn save(&self, now: Instant, is_in_use: impl Fn(IpAddr) -> bool) -> Vec<SavedPin> {
        let of_address = |(address, pins): (&IpAddr, &Vec<Pin>)| {
            let address = *address;
            let holds = |pin: &&Pin| now < pin.until || is_in_use(address);
            let saved = |pin: &Pin| SavedPin { name: pin.name.clone(), address };
            pins.iter().filter(holds).map(saved).collect::<Vec<_>>()
        };
        let mut saved: Vec<_> = self.by_address.iter().flat_map(of_address).collect();
        saved.sort_unstable_by(|a, b| (&a.name, a.address).cmp(&(&b.name, b.address)));
        saved
    }

    /// Takes the pins of a snapshot, for [`LEAST`], in place of all others. Returns the name and the version
    /// of IP of each, true for IPv6.
    pub fn restore(&mut self, saved: &[SavedPin], now: Instant) -> HashSet<(Name, bool)> {
        self.by_address.clear();
        for SavedPin { name, address } in saved {
            self.pin(Pin { name: name.clone(), until: now + LEAST }, *address);
        }
        saved.iter().map(|pin| (pin.name.clone(), pin.address.is_ipv6())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::parse(text).unwrap()
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn pin_holds_as_long_as_the_answer_and_a_minute_at_least() {
        let start = Instant::now();
        for (ttl, lasts) in [(0, 70), (60, 70), (300, 310), (3600, 3610)] {
            let mut pins = Pins::default();
            pins.add(&name("a.test"), address("192.0.2.1"), ttl, start);
            let mut names = |seconds| pins.names(address("192.0.2.1"), after(start, seconds), || false);
            assert_eq!(names(lasts - 1), [name("a.test")], "{ttl}");
            assert!(names(lasts).is_empty(), "{ttl}");
            assert!(names(0).is_empty(), "it is forgotten");
        }
    }

    #[test]
    fn pin_holds_while_a_connection_lasts() {
        let start = Instant::now();
        let mut pins = Pins::default();
        pins.add(&name("a.test"), address("192.0.2.1"), 0, start);
        assert_eq!(pins.names(address("192.0.2.1"), after(start, 5000), || true).len(), 1);
        assert!(pins.names(address("192.0.2.1"), after(start, 5001), || false).is_empty());
    }

    #[test]
    fn later_answer_extends_a_pin_and_never_shortens_it() {
        let start = Instant::now();
        let mut pins = Pins::default();
        pins.add(&name("a.test"), address("192.0.2.1"), 600, start);
        pins.add(&name("a.test"), address("192.0.2.1"), 0, after(start, 1));
        pins.add(&name("b.test"), address("192.0.2.1"), 0, start);
        let names = pins.names(address("192.0.2.1"), after(start, 605), || false);
        assert_eq!(names, [name("a.test")]);
    }

    #[test]
    fn pins_are_bounded_and_those_that_end_first_give_way() {
        let start = Instant::now();
        let mut pins = Pins::default();
        pins.add(&name("kept.test"), address("192.0.2.1"), 3600, start);
        for number in 0..10_000_u32 {
            let address = std::net::Ipv4Addr::from_bits(0x0800_0000 + number).into();
            pins.add(&name("a.test"), address, 0, start);
        }
        assert_eq!(pins.by_address.len(), MOST_ADDRESSES);
        for number in 0..100 {
            pins.add(&name(&format!("n{number}.test")), address("192.0.2.1"), 0, start);
        }
        let names = pins.names(address("192.0.2.1"), start, || false);
        assert_eq!((names.len(), names.contains(&name("kept.test"))), (MOST_NAMES, true));
    }

    #[test]
    fn saved_pins_hold_a_minute_after_a_restore() {
        let start = Instant::now();
        let mut pins = Pins::default();
        pins.add(&name("b.test"), address("2001:db8::1"), 3600, start);
        pins.add(&name("a.test"), address("192.0.2.1"), 3600, start);
        let saved = pins.save(after(start, 3609), |_| false);
        assert!(pins.save(after(start, 3610), |_| false).is_empty());
        assert_eq!(pins.save(after(start, 3610), |_| true), saved);
        assert_eq!(
            serde_json::to_string(&saved).unwrap(),
            r#"[{"name":"a.test","address":"192.0.2.1"},{"name":"b.test","address":"2001:db8::1"}]"#
        );
        let mut restored = Pins::default();
        restored.add(&name("other.test"), address("192.0.2.9"), 3600, start);
        let asked = restored.restore(&saved, start);
        assert_eq!(asked, HashSet::from([(name("a.test"), false), (name("b.test"), true)]));
        assert!(restored.names(address("192.0.2.9"), start, || false).is_empty());
        assert_eq!(restored.names(address("192.0.2.1"), after(start, 59), || false).len(), 1);
        assert_eq!(restored.names(address("192.0.2.1"), after(start, 60), || false).len(), 0);
    }
}
