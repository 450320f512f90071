//! The questions of a guest on their way to an answer.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use domain::base::iana::{Rcode, Rtype};

use super::answer;
use super::question::{Question, Reading, read};
use crate::judge::{Judge, Reason, Verdict};
use crate::name::Name;

/// Most questions that wait for the resolver.
const MOST_WAITING: usize = 64;
/// Longest time for the resolver, which asks three servers twice. Guests ask again after 5 s
/// (resolv.conf(5)).
const PATIENCE: Duration = Duration::from_secs(35);

/// A question for a resolver of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// A number that comes back with the answer.
    pub number: u32,
    /// The name.
    pub name: Name,
    /// The type of records (`TYPE` of RFC 1035, section 3.2.2).
    pub kind: u16,
}

/// The fate of a guest's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The guest gets this message now.
    Now(Vec<u8>),
    /// The policy denies the question, for this reason. The guest gets this message.
    Denied(Vec<u8>, Name, Reason),
    /// A resolver has to be asked.
    Ask(Ask),
    /// The message is no question, or one too many. There is no answer.
    Nothing,
}

/// An answer to a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered<W> {
    /// The one that asked.
    pub asker: W,
    /// The message.
    pub message: Vec<u8>,
    /// The message over UDP, if the whole one is too long for that.
    pub truncated: Option<Vec<u8>>,
    /// The name.
    pub name: Name,
    /// Its addresses, with the seconds for which they hold.
    pub addresses: Vec<(IpAddr, u32)>,
    /// The problem, if the resolver or its answer failed.
    pub problem: Option<&'static str>,
}

#[derive(Debug)]
struct Waiting<W> {
    question: Question,
    name: Name,
    asker: W,
    until: Instant,
}

/// The questions of one interface. `W` tells who asked.
#[derive(Debug)]
pub struct Desk<W> {
    waiting: HashMap<u32, Waiting<W>>,
    last: u32,
}

impl<W> Default for Desk<W> {
    fn default() -> Self {
        Self { waiting: HashMap::new(), last: 0 }
    }
}

impl<W> Desk<W> {
    /// Takes a message of a guest.
    pub fn take(&mut self, message: &[u8], asker: W, judge: &Judge, now: Instant) -> Reply {
        let question = match read(message) {
            Reading::Question(question) => question,
            Reading::Refused(refusal) => return Reply::Now(refusal),
            Reading::Nothing => return Reply::Nothing,
        };
        let Some(name) = question.name.clone() else { return Reply::Now(question.empty(Rcode::NXDOMAIN)) };
        if let Verdict::Deny(reason) = judge.question(&name) {
            return Reply::Denied(question.empty(Rcode::NXDOMAIN), name, reason);
        }
        match question.kind {
            // Addresses and keys in them would go around the pins, and hide names. Clients ask for addresses,
            // too.
            Rtype::HTTPS | Rtype::SVCB => Reply::Now(question.empty(Rcode::NOERROR)),
            // Transfers of zones, and questions for all types (RFC 8482).
            Rtype::AXFR | Rtype::IXFR | Rtype::ANY => Reply::Now(question.empty(Rcode::NOTIMP)),
            _ => self.wait(question, name, asker, now).map_or(Reply::Nothing, Reply::Ask),
        }
    }

    /// Asks for the addresses of a name, of IPv4 or IPv6, as no guest did. `None` if too many questions wait.
    pub fn ask_again(&mut self, name: &Name, is_v6: bool, asker: W, now: Instant) -> Option<Ask> {
        let kind = if is_v6 { Rtype::AAAA } else { Rtype::A };
        let question = Question::about(name, kind)?;
        self.wait(question, name.clone(), asker, now)
    }

    fn wait(&mut self, question: Question, name: Name, asker: W, now: Instant) -> Option<Ask> {
        if self.waiting.len() >= MOST_WAITING {
            self.waiting.retain(|_, waiting| now < waiting.until);
        }
        if self.waiting.len() >= MOST_WAITING {
            return None;
        }
        // 0 numbers no question.
        self.last = self.last.checked_add(1).unwrap_or(1);
        let ask = Ask { number: self.last, name: name.clone(), kind: question.kind.to_int() };
        self.waiting.insert(self.last, Waiting { question, name, asker, until: now + PATIENCE });
        Some(ask)
    }

    /// Takes the answer of the resolver, or its failure, to the question with this number.
    pub fn answered(&mut self, number: u32, answer: Option<&[u8]>, judge: &Judge) -> Option<Answered<W>> {
        let Waiting { question, name, asker, .. } = self.waiting.remove(&number)?;
        let read = match answer {
            Some(bytes) => answer::read(&question, bytes, |address| !judge.is_closed(address)),
            None => Err("no server answered"),
        };
        let (message, addresses, problem) = match read {
            Ok(answer) => (answer.message, answer.addresses, None),
            Err(problem) => (question.empty(Rcode::SERVFAIL), Vec::new(), Some(problem)),
        };
        let truncated = (message.len() > question.longest()).then(|| question.truncated());
        Some(Answered { asker, message, truncated, name, addresses, problem })
    }

    /// Fails all questions: the resolver is gone.
    pub fn fail_all(&mut self, judge: &Judge) -> Vec<Answered<W>> {
        let numbers: Vec<_> = self.waiting.keys().copied().collect();
        numbers.into_iter().filter_map(|number| self.answered(number, None, judge)).collect()
    }

    /// Forgets all questions.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Number of questions that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
#[path = "desk_tests.rs"]
mod tests;
