//! The policy of a network device: which frames pass, and the device's answers to denied ones.
//!
//! A frame is judged by a copy of its headers, and the backend gets this copy: the guest may change its
//! memory at any time. An incoming frame is judged before the guest's memory has it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use volt_policy::{Cause, Filter, GuestAddresses, Interface, Judge, Offload, Outcome};

use crate::config::devices::{NetBackend, NetConfig};
use crate::config::network::Mac;
use crate::config::user_network::{IPV4, IPV6};
use crate::devices::log_limit::LogLimit;

/// Most answers that wait for buffers of the guest.
const MOST_ANSWERS: usize = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct Guard {
    /// Name of the device, for the log.
    name: String,
    filter: Filter,
    answers: VecDeque<Vec<u8>>,
    log: LogLimit,
}

impl Guard {
    pub fn new(config: &NetConfig, mac: Mac, judge: Arc<Judge>) -> Self {
        let filter = Filter::new(judge, interface(config, mac));
        Self { name: config.id.clone(), filter, answers: VecDeque::new(), log: LogLimit::new() }
    }

    /// Takes another policy. Connections that it denies end.
    pub fn change(&mut self, judge: Arc<Judge>) {
        self.filter.change(judge);
    }

    /// Begins anew, as after a restore, with the hardware address that the guest knows.
    pub fn begin_anew(&mut self, mac: Mac) {
        self.filter.begin_anew(mac);
        self.answers.clear();
    }

    /// Whether a frame of the guest passes. `head` has its first bytes, or all of `len`.
    pub fn passes_out(&mut self, head: &[u8], len: usize, offload: Offload) -> bool {
        let outcome = self.filter.outgoing(head, len, offload, Instant::now());
        self.note(outcome, "from the guest")
    }

    /// Whether a frame for the guest passes.
    pub fn passes_in(&mut self, head: &[u8], len: usize) -> bool {
        let outcome = self.filter.incoming(head, len, Instant::now());
        self.note(outcome, "to the guest")
    }

    /// The next answer to the guest.
    pub fn next_answer(&mut self) -> Option<Vec<u8>> {
        self.answers.pop_front()
    }

    pub fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    fn note(&mut self, outcome: Outcome, direction: &str) -> bool {
        let Outcome::Stop(cause, answer) = outcome else { return true };
        match &cause {
            Cause::Denied { .. } | Cause::Full => {
                let name = &self.name;
                self.log.warn(format_args!("{name}: a frame {direction} is dropped: {cause}"));
            }
            Cause::Malformed(_) => log::debug!("{}: a frame {direction} is dropped: {cause}", self.name),
            Cause::Unknown => {}
        }
        // The guest asks again, or waits until its own limit.
        self.answers.extend(answer.filter(|_| self.answers.len() < MOST_ANSWERS));
        false
    }
}

/// The interface as the filter knows it. A guest behind a tap has addresses of its owner's choice.
fn interface(config: &NetConfig, mac: Mac) -> Interface {
    let mut interface = Interface { mac, addresses: None, resolvers: Vec::new(), forwarded: Vec::new() };
    if let NetBackend::Passt { forward } = &config.backend {
        interface.addresses = Some(GuestAddresses::new(IPV4.address, (IPV6.address, IPV6.prefix)));
        interface.forwarded = forward.iter().map(|(_, guest)| *guest).collect();
        if config.dns_forward {
            interface.resolvers = vec![IPV4.resolver.into(), IPV6.resolver.into()];
        }
    }
    interface
}
