//! Tables of the kernel's packet filter (nf_tables), as `nft` shows them.
//!
//! ```text
//! table inet volt-nat {                    # of the host, once for all VMs
//!   chain postrouting {
//!     type nat hook postrouting priority srcnat;
//!     ip saddr 10.119.0.0/16 oifname != "voltnat*" masquerade
//!     ip6 saddr fd76:6f6c:7401::/64 oifname != "voltnat*" masquerade
//!   }
//!   chain forward {
//!     type filter hook forward priority filter; policy accept;
//!     oifname "voltnat*" ct state established,related accept
//!     oifname "voltnat*" drop
//!   }
//! }
//! table inet nat {                         # of each namespace
//!   chain postrouting {
//!     type nat hook postrouting priority srcnat;
//!     (to HOST) masquerade
//!   }
//!   chain forward {
//!     type filter hook forward priority filter; policy drop;
//!     ct state established,related accept
//!     (from TAP to HOST) ct state new accept
//!   }
//! }
//! ```

use std::io;

use super::netlink::{Attributes, Messages, Netlink};
use super::ranges;

/// The host's table. Another content needs another name: a table that exists is kept.
pub(super) const TABLE: &str = "volt-nat";
/// The table of a namespace.
const OWN_TABLE: &str = "nat";

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
/// The subsystem of nf_tables, and its requests.
const SUBSYSTEM: u16 = 10;
const NEW_TABLE: u16 = 0;
const GET_TABLE: u16 = 1;
const NEW_CHAIN: u16 = 3;
const NEW_RULE: u16 = 6;
/// The families: both versions of IP, and one.
const INET: u8 = 1;
const V4: u8 = 2;
const V6: u8 = 10;

/// Hooks of the kernel, and priorities.
const FORWARD: u32 = 2;
const POSTROUTING: u32 = 4;
const FILTER: i32 = 0;
const SRCNAT: i32 = 100;
/// Verdicts.
const DROP: u32 = 0;
const ACCEPT: u32 = 1;
/// The register of expressions.
const REGISTER: u32 = 1;
/// Bits of the states of connections.
const ESTABLISHED_OR_RELATED: u32 = 2 | 4;
const NEW: u32 = 8;
/// `NFT_META_*`
const IN_INDEX: u32 = 4;
const OUT_INDEX: u32 = 5;
const OUT_NAME: u32 = 7;
const NFPROTO: u32 = 15;
/// Comparisons.
const EQUAL: u32 = 0;
const UNEQUAL: u32 = 1;

/// A table with its chains and rules, which are made together or not at all.
struct Batch {
    messages: Messages,
    table: &'static str,
}

impl Batch {
    /// Begins with a table, which must not exist if it is `exclusive`.
    fn new(table: &'static str, exclusive: bool) -> Self {
        let mut messages = Messages::default();
        messages.add(BATCH_BEGIN, 0, &[0, 0, 0, SUBSYSTEM as u8], |_| ());
        let mut batch = Self { messages, table };
        let flags = libc::NLM_F_CREATE | if exclusive { libc::NLM_F_EXCL } else { 0 };
        batch.add(NEW_TABLE, flags, |attributes| attributes.text(1, table));
        batch
    }

    fn add(&mut self, kind: u16, flags: i32, attributes: impl FnOnce(&mut Attributes<'_>)) {
        let flags = flags | libc::NLM_F_ACK;
        self.messages.add(SUBSYSTEM << 8 | kind, flags, &[INET, 0, 0, 0], attributes);
    }

    /// Adds a chain.
    fn chain(&mut self, name: &str, kind: &str, (hook, priority): (u32, i32), policy: u32) {
        let table = self.table;
        self.add(NEW_CHAIN, libc::NLM_F_CREATE, |chain| {
            chain.text(1, table);
            chain.text(3, name);
            chain.nest(4, |at| {
                at.add(1, &hook.to_be_bytes());
                at.add(2, &priority.to_be_bytes());
            });
            chain.add(5, &policy.to_be_bytes());
            chain.text(7, kind);
        });
    }

    /// Adds a rule to a chain.
    fn rule(&mut self, chain: &str, expressions: impl FnOnce(&mut Rule<'_, '_>)) {
        let table = self.table;
        self.add(NEW_RULE, libc::NLM_F_CREATE | libc::NLM_F_APPEND, |rule| {
            rule.text(1, table);
            rule.text(2, chain);
            rule.nest(4, |list| expressions(&mut Rule(list)));
        });
    }

    fn send(mut self, netlink: &Netlink) -> io::Result<()> {
        self.messages.add(BATCH_END, 0, &[0, 0, 0, SUBSYSTEM as u8], |_| ());
        netlink.ask(&self.messages)
    }
}

/// The expressions of a rule.
struct Rule<'a, 'b>(&'a mut Attributes<'b>);

impl Rule<'_, '_> {
    fn expression(&mut self, name: &str, data: impl FnOnce(&mut Attributes<'_>)) -> &mut Self {
        self.0.nest(1, |expression| {
            expression.text(1, name);
            expression.nest(2, data);
        });
        self
    }

    /// Loads a property of the packet.
    fn meta(&mut self, key: u32) -> &mut Self {
        self.expression("meta", |meta| {
            meta.add(1, &REGISTER.to_be_bytes());
            meta.add(2, &key.to_be_bytes());
        })
    }

    /// Goes on if the first bytes of the register compare to the value like this.
    fn compare(&mut self, comparison: u32, value: &[u8]) -> &mut Self {
        self.expression("cmp", |cmp| {
            cmp.add(1, &REGISTER.to_be_bytes());
            cmp.add(2, &comparison.to_be_bytes());
            cmp.nest(3, |data| data.add(1, value));
        })
    }

    /// Goes on for packets whose source lies in a network of whole bytes.
    fn is_from(&mut self, family: u8, (offset, network): (u32, &[u8])) -> &mut Self {
        self.meta(NFPROTO).compare(EQUAL, &[family]);
        self.expression("payload", |payload| {
            payload.add(1, &REGISTER.to_be_bytes());
            payload.add(2, &1_u32.to_be_bytes()); // the network header
            payload.add(3, &offset.to_be_bytes());
            payload.add(4, &(network.len() as u32).to_be_bytes());
        })
        .compare(EQUAL, network)
    }

    /// Goes on for packets to a cable, or to another interface.
    fn leaves_by_cable(&mut self, comparison: u32) -> &mut Self {
        self.meta(OUT_NAME).compare(comparison, ranges::NAME.as_bytes())
    }

    /// Goes on for packets of connections in one of the states.
    fn is_in(&mut self, states: u32) -> &mut Self {
        self.expression("ct", |ct| {
            ct.add(1, &REGISTER.to_be_bytes());
            ct.add(2, &0_u32.to_be_bytes()); // the state
        })
        .expression("bitwise", |bitwise| {
            bitwise.add(1, &REGISTER.to_be_bytes());
            bitwise.add(2, &REGISTER.to_be_bytes());
            bitwise.add(3, &4_u32.to_be_bytes());
            bitwise.nest(4, |mask| mask.add(1, &states.to_ne_bytes()));
            bitwise.nest(5, |xor| xor.add(1, &[0; 4]));
        })
        .compare(UNEQUAL, &[0; 4])
    }

    fn masquerade(&mut self) {
        self.expression("masq", |_| ());
    }

    fn verdict(&mut self, code: u32) {
        self.expression("immediate", |immediate| {
            immediate.add(1, &0_u32.to_be_bytes()); // the register of verdicts
            immediate.nest(2, |data| data.nest(2, |verdict| verdict.add(1, &code.to_be_bytes())));
        });
    }
}

/// Makes the host's table, unless it exists.
///
/// # Errors
/// Errors of the kernel.
pub(super) fn make_of_host(netlink: &Netlink) -> io::Result<()> {
    // An attempt to make a table that exists takes the kernel 13 ms, and this question 50 us.
    let mut question = Messages::default();
    let flags = libc::NLM_F_ACK;
    question.add(SUBSYSTEM << 8 | GET_TABLE, flags, &[INET, 0, 0, 0], |table| table.text(1, TABLE));
    if netlink.ask(&question).is_ok() {
        return Ok(());
    }
    let mut batch = Batch::new(TABLE, true);
    batch.chain("postrouting", "nat", (POSTROUTING, SRCNAT), ACCEPT);
    let (v4, v6) = (ranges::IPV4.0.octets(), ranges::IPV6.0.octets());
    let networks = [
        (V4, (12, &v4[..usize::from(ranges::IPV4.1 / 8)])),
        (V6, (8, &v6[..usize::from(ranges::IPV6.1 / 8)])),
    ];
    for (family, network) in networks {
        batch.rule("postrouting", |rule| {
            rule.is_from(family, network).leaves_by_cable(UNEQUAL).masquerade();
        });
    }
    batch.chain("forward", "filter", (FORWARD, FILTER), ACCEPT);
    batch.rule("forward", |rule| {
        rule.leaves_by_cable(EQUAL).is_in(ESTABLISHED_OR_RELATED).verdict(ACCEPT);
    });
    batch.rule("forward", |rule| rule.leaves_by_cable(EQUAL).verdict(DROP));
    match batch.send(netlink) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        sent => sent,
    }
}

/// Makes the table of a namespace with these interfaces.
///
/// # Errors
/// Errors of the kernel.
pub(super) fn make_own(netlink: &Netlink, tap: u32, host: u32) -> io::Result<()> {
    let mut batch = Batch::new(OWN_TABLE, false);
    batch.chain("postrouting", "nat", (POSTROUTING, SRCNAT), ACCEPT);
    batch.rule("postrouting", |rule| rule.meta(OUT_INDEX).compare(EQUAL, &host.to_ne_bytes()).masquerade());
    batch.chain("forward", "filter", (FORWARD, FILTER), DROP);
    batch.rule("forward", |rule| rule.is_in(ESTABLISHED_OR_RELATED).verdict(ACCEPT));
    batch.rule("forward", |rule| {
        rule.meta(IN_INDEX).compare(EQUAL, &tap.to_ne_bytes());
        rule.meta(OUT_INDEX).compare(EQUAL, &host.to_ne_bytes());
        rule.is_in(NEW).verdict(ACCEPT);
    });
    batch.send(netlink)
}
