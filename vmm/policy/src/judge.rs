//! Verdicts of a policy.
//!
//! ```text
//!  address:  allowing networks ──> denying networks ──> closed ranges ──> default
//!  name:     allowing names    ──> denying names    ──────────────────> default
//!  address of a name: closed ranges, that a network opens ──> as its name, unless a network allows it
//! ```

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::client_hello::ClientHello;
use crate::error::Result;
use crate::hold::MOST_HELD;
use crate::host::HostNetwork;
use crate::name::{Name, NamePattern};
use crate::nets::Nets;
use crate::policy::{Action, Denial, Ech, Policy};
use crate::rule::{Protocol, Rule, Target};
use crate::special::{RANGES, Range, RangeKind, forms};

/// The cause of a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The rule with this text.
    Rule(String),
    /// The address lies in a range that is closed by default.
    Range(RangeKind),
    /// No rule is about it.
    Default,
    /// Names decide, and this connection hides them: QUIC, or questions for names in TLS.
    Hidden,
    /// It is not the protocol of its port, or could be read in two ways.
    Unclear(&'static str),
    /// It hides a name behind another one (ECH), which the policy refuses.
    Encrypted,
    /// The host has no default route of this version of IP.
    NoRoute,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => write!(f, "rule {rule}"),
            Self::Range(kind) => write!(f, "{kind}"),
            Self::Default => f.write_str("no rule"),
            Self::Hidden => f.write_str("it hides the name, and rules are about names"),
            Self::Unclear(why) => f.write_str(why),
            Self::Encrypted => f.write_str("it encrypts its name (ECH)"),
            Self::NoRoute => f.write_str("the host has no default route of this version of IP"),
        }
    }
}

/// Whether something passes, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passes.
    Allow(Reason),
    /// It does not.
    Deny(Reason),
}

impl Verdict {
    /// Whether it passes.
    #[must_use]
    pub fn is_allow(&self) -> bool {
        matches!(self, Self::Allow(_))
    }
}

/// How a connection that the guest begins is let through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It passes.
    Open,
    /// It does not.
    Closed(Reason),
    /// Its beginning tells the name that is judged: TLS on port 443, HTTP on port 80.
    Named,
}

/// Ports whose connections begin with a name, and the one of DNS over TLS and QUIC (RFC 7858, RFC 9250).
pub(crate) const TLS: u16 = 443;
pub(crate) const HTTP: u16 = 80;
const DNS_OVER_TLS: u16 = 853;
/// The port of resolvers.
pub(crate) const DNS: u16 = 53;

/// Rules of one list, to be looked up.
#[derive(Clone, Debug, Default)]
struct List {
    rules: Vec<Rule>,
    nets: Nets,
    /// Rules about any address.
    any: Vec<usize>,
    /// Rules about questions for any name: those about any address, about all of IPv4, and about all of IPv6
    /// if they allow.
    any_question: Vec<usize>,
    exact: HashMap<Name, Vec<usize>>,
    below: HashMap<Name, Vec<usize>>,
}

impl List {
    /// Rules that allow, or that deny.
    fn new(rules: &[Rule], allows: bool) -> Self {
        let mut list = Self { rules: rules.to_vec(), ..Self::default() };
        for (number, rule) in rules.iter().enumerate() {
            match &rule.target {
                Target::Any => {
                    list.any.push(number);
                    list.any_question.push(number);
                }
                Target::Net(net) => {
                    list.nets.add(*net, number);
                    // A policy that denies IPv6 does not deny names.
                    if net.prefix_len() == 0 && (allows || matches!(net, IpNet::V4(_))) {
                        list.any_question.push(number);
                    }
                }
                Target::Names(NamePattern::Exact(name)) => {
                    list.exact.entry(name.clone()).or_default().push(number);
                }
                Target::Names(NamePattern::Below(name)) => {
                    list.below.entry(name.clone()).or_default().push(number);
                }
            }
        }
        list
    }

    /// Whether a rule is about names.
    fn has_names(&self) -> bool {
        !self.exact.is_empty() || !self.below.is_empty()
    }

    /// The rules about an address, the narrowest first.
    fn about_address(&self, address: IpAddr) -> impl Iterator<Item = &Rule> {
        self.nets.with(address).chain(self.any.iter().copied()).map(|number| &self.rules[number])
    }

    /// The rules about a name, the narrowest first, and then those about any address, or any question.
    fn about_name(&self, name: &Name, is_question: bool) -> impl Iterator<Item = &Rule> {
        let others = if is_question { &self.any_question } else { &self.any };
        let below = name.with_parents().skip(1).filter_map(|above| self.below.get(above)).flatten();
        let numbers = self.exact.get(name).into_iter().flatten().chain(below).chain(others);
        numbers.map(|number| &self.rules[*number])
    }
}

/// A policy that is ready to judge.
#[derive(Clone, Debug)]
pub struct Judge {
    default: Action,
    /// The answer to denied packets.
    pub denial: Denial,
    /// The fate of connections of TLS that encrypt their name.
    pub ech: Ech,
    allow: Arc<List>,
    deny: Arc<List>,
    closed: Nets,
    ranges: Vec<Range>,
    /// Whether the host routes IPv4 and IPv6. Absent if nothing is known of the host.
    routes: Option<(bool, bool)>,
    /// Most bytes that each interface holds until a name is known.
    most_held: usize,
}

impl Judge {
    /// Makes a policy ready. The addresses of the host are closed, too.
    ///
    /// # Errors
    /// As [`Policy::check`].
    pub fn new(policy: &Policy, of_host: impl IntoIterator<Item = IpNet>) -> Result<Self> {
        let addresses = of_host.into_iter().collect();
        let network = HostNetwork { addresses, routes_v4: true, routes_v6: true };
        Ok(Self::without_host(policy)?.with_host(&network))
    }

    /// Makes a policy ready, but for the host: [`Self::with_host`] comes before the first verdict.
    ///
    /// # Errors
    /// As [`Policy::check`].
    pub fn without_host(policy: &Policy) -> Result<Self> {
        policy.check()?;
        let (allow, deny) = (List::new(&policy.allow, true), List::new(&policy.deny, false));
        let Policy { default, denial, ech, .. } = *policy;
        let (closed, ranges) = (Nets::default(), Vec::new());
        let (allow, deny) = (allow.into(), deny.into());
        let (routes, most_held) = (None, MOST_HELD);
        Ok(Self { default, denial, ech, allow, deny, closed, ranges, routes, most_held })
    }

    /// The judge of a VM without a policy, which allows everything.
    #[must_use]
    pub fn open() -> Self {
        let Policy { default, denial, ech, .. } = Policy::default();
        let none = |is_allow| Arc::new(List::new(&[], is_allow));
        let (closed, ranges) = (Nets::default(), Vec::new());
        let (allow, deny, routes, most_held) = (none(true), none(false), None, MOST_HELD);
        Self { default, denial, ech, allow, deny, closed, ranges, routes, most_held }
    }

    /// The same policy for a VM with so many interfaces, which share the room for what is held.
    #[must_use]
    pub fn for_interfaces(self, count: usize) -> Self {
        Self { most_held: MOST_HELD / count.max(1), ..self }
    }

    /// Most bytes that each interface holds until a name is known.
    pub(crate) fn most_held(&self) -> usize {
        self.most_held
    }

    /// Whether the network of the host is known.
    #[must_use]
    pub fn knows_host(&self) -> bool {
        self.routes.is_some()
    }

    /// The same policy on a host with this network.
    #[must_use]
    pub fn with_host(&self, network: &HostNetwork) -> Self {
        let of_host = network.addresses.iter().map(|net| Range { net: *net, kind: RangeKind::Host });
        let ranges: Vec<_> = RANGES.into_iter().chain(of_host).collect();
        let mut closed = Nets::default();
        ranges.iter().enumerate().for_each(|(number, range)| closed.add(range.net, number));
        let routes = Some((network.routes_v4, network.routes_v6));
        Self { closed, ranges, routes, ..self.clone() }
    }

    /// Whether both are on a host with the same network.
    #[must_use]
    pub fn is_on_same_host(&self, other: &Self) -> bool {
        let of_host = |judge: &Self| -> Vec<IpNet> {
            let ranges = judge.ranges.iter().filter(|range| range.kind == RangeKind::Host);
            ranges.map(|range| range.net).collect()
        };
        self.routes == other.routes && of_host(self) == of_host(other)
    }

    /// Whether the host has a default route of IPv4 and one of IPv6, if its network is known.
    #[must_use]
    pub fn routes(&self) -> Option<(bool, bool)> {
        self.routes
    }

    /// The same policy on a host with these default routes.
    #[must_use]
    pub fn with_routes(&self, v4: bool, v6: bool) -> Self {
        Self { routes: Some((v4, v6)), ..self.clone() }
    }

    /// Whether the host has a default route of an address's version of IP.
    #[must_use]
    pub fn is_routed(&self, address: IpAddr) -> bool {
        self.routes.is_some_and(|(v4, v6)| if address.is_ipv4() { v4 } else { v6 })
    }

    /// Judges a packet to an address. `port` is that of the far side; ICMP has none. An address of IPv6 that
    /// leads to one of IPv4 passes if both do.
    #[must_use]
    pub fn address(&self, protocol: Protocol, address: IpAddr, port: u16) -> Verdict {
        let mut verdicts = forms(address).map(|form| self.form(protocol, form, port));
        let first = verdicts.next().unwrap_or(Verdict::Deny(Reason::Default));
        match verdicts.next() {
            Some(second) if first.is_allow() => second,
            _ => first,
        }
    }

    fn form(&self, protocol: Protocol, address: IpAddr, port: u16) -> Verdict {
        let is_about = |rule: &&Rule| rule.is_about(protocol, port);
        let closed = self.closed_ranges(address);
        let opens = |rule: &&Rule| closed.iter().all(|range| lies_in(rule, range));
        if let Some(rule) = self.allow.about_address(address).filter(is_about).find(opens) {
            return Verdict::Allow(Reason::Rule(rule.to_string()));
        }
        if let Some(rule) = self.deny.about_address(address).find(is_about) {
            return Verdict::Deny(Reason::Rule(rule.to_string()));
        }
        match closed.first() {
            Some(range) => Verdict::Deny(Reason::Range(range.kind)),
            None => self.by_default(),
        }
    }

    /// Whether an address lies in a closed range of which no allowing network opens this part.
    #[must_use]
    pub fn is_closed(&self, address: IpAddr) -> bool {
        self.is_closed_to(address, |_| true)
    }

    /// As [`Self::is_closed`], with these rules alone.
    fn is_closed_to(&self, address: IpAddr, counts: impl Fn(&Rule) -> bool) -> bool {
        forms(address).any(|form| {
            let closed = self.closed_ranges(form);
            let opens = |rule: &Rule| counts(rule) && closed.iter().all(|range| lies_in(rule, range));
            !closed.is_empty() && !self.allow.about_address(form).any(opens)
        })
    }

    /// Whether no guest has an address: it is the host's, or one that means no machine, or the guest itself.
    #[must_use]
    pub fn is_foreign(&self, address: IpAddr) -> bool {
        use RangeKind::{Cloud, Host, Loopback, Multicast, Reserved};
        let kinds = [Cloud, Host, Loopback, Multicast, Reserved];
        self.closed.with(address).any(|number| kinds.contains(&self.ranges[number].kind))
    }

    /// Judges a connection to a port of a name.
    #[must_use]
    pub fn name(&self, protocol: Protocol, name: &Name, port: u16) -> Verdict {
        let is_about = |rule: &&Rule| rule.is_about(protocol, port);
        self.by_name(name, false, is_about, is_about)
    }

    /// Judges a question for a name: it is allowed if a connection to any port may be. A rule about port 53
    /// denies questions alone.
    #[must_use]
    pub fn question(&self, name: &Name) -> Verdict {
        let denies = |rule: &&Rule| match rule.ports.is_any() {
            true => rule.protocol.is_none(),
            false => rule.is_about(Protocol::Udp, DNS),
        };
        self.by_name(name, true, |_| true, denies)
    }

    /// Whether a rule is about names.
    #[must_use]
    pub fn has_names(&self) -> bool {
        self.allow.has_names() || self.deny.has_names()
    }

    /// Judges a connection that begins, to an address that these names were resolved to. An allowing rule
    /// about the address goes before those about names; no name opens a closed range.
    #[must_use]
    pub fn gate(&self, protocol: Protocol, (address, port): (IpAddr, u16), names: &[Name]) -> Gate {
        let is_about = |rule: &Rule| rule.is_about(protocol, port);
        let reason = match self.address(protocol, address, port) {
            Verdict::Allow(Reason::Rule(_)) => return Gate::Open,
            Verdict::Allow(_) if !self.deny.has_names() => return Gate::Open,
            Verdict::Allow(_) => None,
            Verdict::Deny(reason) if !self.allow.has_names() || self.is_closed_to(address, is_about) => {
                return Gate::Closed(reason);
            }
            Verdict::Deny(reason) => Some(reason),
        };
        if (protocol, port) == (Protocol::Udp, TLS) || port == DNS_OVER_TLS && protocol != Protocol::Icmp {
            return Gate::Closed(Reason::Hidden);
        }
        // One address may have many names.
        let verdicts: Vec<_> = names.iter().map(|name| self.name(protocol, name, port)).collect();
        let is_allowed = verdicts.iter().any(|verdict| matches!(verdict, Verdict::Allow(Reason::Rule(_))));
        let tells_name = protocol == Protocol::Tcp && [TLS, HTTP].contains(&port);
        let denied = verdicts.into_iter().find_map(|verdict| match verdict {
            Verdict::Deny(reason) => Some(reason),
            Verdict::Allow(_) => None,
        });
        match reason {
            _ if is_allowed && !tells_name => Gate::Open,
            None if tells_name => Gate::Named,
            Some(_) if tells_name && is_allowed => Gate::Named,
            Some(reason) => Gate::Closed(reason),
            None => denied.map_or(Gate::Open, Gate::Closed),
        }
    }

    /// Judges the first message of TLS of a connection of [`Gate::Named`].
    pub(crate) fn hello(&self, far: (IpAddr, u16), hello: &ClientHello) -> Verdict {
        match hello.has_encrypted && self.ech == Ech::Refuse {
            true => Verdict::Deny(Reason::Encrypted),
            false => self.named(far, hello.name.as_ref()),
        }
    }

    /// Judges the name that a connection of [`Gate::Named`] begins with, if it has one.
    #[must_use]
    pub fn named(&self, (address, port): (IpAddr, u16), name: Option<&Name>) -> Verdict {
        let by_name = name.map(|name| self.name(Protocol::Tcp, name, port));
        match by_name {
            Some(verdict @ (Verdict::Allow(Reason::Rule(_)) | Verdict::Deny(_))) => verdict,
            Some(Verdict::Allow(_)) | None => self.address(Protocol::Tcp, address, port),
        }
    }

    fn by_name(
        &self,
        name: &Name,
        is_question: bool,
        allows: impl FnMut(&&Rule) -> bool,
        denies: impl FnMut(&&Rule) -> bool,
    ) -> Verdict {
        if let Some(rule) = self.allow.about_name(name, is_question).find(allows) {
            return Verdict::Allow(Reason::Rule(rule.to_string()));
        }
        match self.deny.about_name(name, is_question).find(denies) {
            Some(rule) => Verdict::Deny(Reason::Rule(rule.to_string())),
            None => self.by_default(),
        }
    }

    fn by_default(&self) -> Verdict {
        match self.default {
            Action::Allow => Verdict::Allow(Reason::Default),
            Action::Deny => Verdict::Deny(Reason::Default),
        }
    }

    /// The closed ranges that have an address, the smallest first.
    fn closed_ranges(&self, address: IpAddr) -> Vec<Range> {
        self.closed.with(address).map(|number| self.ranges[number]).collect()
    }
}

/// Whether a rule is about a network in a range.
fn lies_in(rule: &Rule, range: &Range) -> bool {
    match &rule.target {
        Target::Net(net) => range.net.contains(net),
        Target::Any | Target::Names(_) => false,
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
