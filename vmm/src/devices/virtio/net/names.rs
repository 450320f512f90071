//! The names of a guest: its questions end here, and a resolver asks the host's servers.
//!
//! ```text
//!  question ──Desk──> denied or known ──────────────> answer
//!               └───> resolver (started at the first one) ──> answer, and pins
//! ```

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use volt_policy::{Answered, Ask, Datagram, Desk, HostNetwork, Judge, Name, Reply};

use super::denials::Denials;
use crate::counters::policy::{PolicyEvent, PolicyMetrics};
use crate::devices::log_limit::LogLimit;
use crate::error::report;
use crate::paths;
use crate::resolver::{self, FromResolver};

/// Resolvers that this process has started.
static STARTS: AtomicU64 = AtomicU64::new(0);
/// Least time between two starts of a resolver.
const BETWEEN_STARTS: Duration = Duration::from_secs(1);
/// Messages of the resolver in one turn.
const MOST_MESSAGES: usize = 64;
/// Questions about pinned names at once, after a restore.
const MOST_RENEWALS: usize = 16;

/// The one that asked.
#[derive(Clone, Debug)]
pub(super) enum Asker {
    /// A datagram of the guest.
    Datagram(Box<Datagram>),
    /// The connection with this number.
    Stream(u64),
    /// The device, which renews a pin.
    Device,
}

/// News of the resolver.
#[derive(Debug)]
pub(super) enum News {
    /// An answer.
    Answered(Answered<Asker>),
    /// The network of the host, which may have changed.
    HostNetwork(HostNetwork),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Names {
    /// Name of the device, for the log.
    device: String,
    desk: Desk<Asker>,
    /// The end of a resolver's socket that asks.
    resolver: Option<OwnedFd>,
    started: Option<Instant>,
    /// The number of the resolver, which no other one of this process had.
    number: u64,
    /// Names whose pins a restore brought, and whether they have addresses of IPv6.
    renewed: VecDeque<(Name, bool)>,
    log: LogLimit,
}

impl Names {
    pub fn new(device: &str) -> Self {
        Self {
            device: device.to_owned(),
            desk: Desk::default(),
            resolver: None,
            started: None,
            number: 0,
            renewed: VecDeque::new(),
            log: LogLimit::new(),
        }
    }

    /// Forgets all questions.
    pub fn clear(&mut self) {
        self.desk.clear();
        self.renewed.clear();
    }

    /// Asks for these names again, beside the guest's questions.
    pub fn renew(&mut self, names: impl IntoIterator<Item = (Name, bool)>) {
        self.renewed = names.into_iter().collect();
    }

    /// The descriptor that is readable when there is news, and a number that no other one had.
    pub fn descriptor(&self) -> Option<(u64, BorrowedFd<'_>)> {
        self.resolver.as_ref().map(|socket| (self.number, socket.as_fd()))
    }

    /// Takes a message of the guest. Returns the answer, if there is one at once.
    pub fn take(
        &mut self,
        message: &[u8],
        asker: Asker,
        (judge, denials, work): (&Judge, &Denials, &mut PolicyMetrics),
        now: Instant,
    ) -> Option<Vec<u8>> {
        work.add(PolicyEvent::Question, 1);
        match self.desk.take(message, asker, judge, now) {
            Reply::Now(answer) => Some(answer),
            Reply::Denied(answer, name, reason) => {
                work.add(PolicyEvent::DeniedQuestion, 1);
                let what = || format!("a question for {name}: {reason}");
                denials.tell(format_args!("a question for {name} is denied: {reason}"), what);
                Some(answer)
            }
            Reply::Ask(ask) => {
                if self.ask(&ask, now) {
                    return None;
                }
                work.add(PolicyEvent::FailedQuestion, 1);
                self.desk.answered(ask.number, None, judge).map(|answered| answered.message)
            }
            Reply::Nothing => None,
        }
    }

    /// Asks for names whose pins a restore brought, as long as few questions wait.
    pub fn renew_some(&mut self, judge: &Judge, now: Instant) {
        while self.desk.waiting() < MOST_RENEWALS
            && let Some((name, is_v6)) = self.renewed.pop_front()
        {
            // The policy may be another one than that of the snapshot.
            if judge.question(&name).is_allow()
                && let Some(ask) = self.desk.ask_again(&name, is_v6, Asker::Device, now)
                && !self.ask(&ask, now)
            {
                // The pins hold for their time, and no longer.
                self.renewed.clear();
            }
        }
    }

    /// Sends a question to the resolver. Returns whether it has it.
    fn ask(&mut self, ask: &Ask, now: Instant) -> bool {
        if self.resolver.is_none() && self.started.is_none_or(|started| now >= started + BETWEEN_STARTS) {
            self.started = Some(now);
            match paths::start_resolver() {
                Ok(socket) => {
                    self.number = STARTS.fetch_add(1, Ordering::Relaxed);
                    self.resolver = Some(socket);
                }
                Err(error) => {
                    let (device, error) = (&self.device, report(&error));
                    self.log.warn(format_args!(
                        "{device}: no name is resolved: cannot start the resolver: {error}"
                    ));
                }
            }
        }
        let Some(socket) = &self.resolver else { return false };
        send(socket, &resolver::encode(ask), SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
    }

    /// Takes what the resolver has to tell.
    pub fn news(&mut self, judge: &Judge, work: &mut PolicyMetrics) -> Vec<News> {
        let mut news = Vec::new();
        let mut bytes = vec![0; resolver::LONGEST_MESSAGE];
        for _ in 0..MOST_MESSAGES {
            let Some(socket) = &self.resolver else { break };
            let len = match recv(socket, &mut bytes[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Ok((_, len)) if len > bytes.len() => continue, // longer than any message of a resolver
                Ok((_, len)) if len > 0 => len,
                Ok(_) | Err(_) => {
                    self.end(judge, &mut news);
                    break;
                }
            };
            match resolver::decode(&bytes[..len]) {
                Ok(FromResolver::HostNetwork(network)) => news.push(News::HostNetwork(network)),
                Ok(FromResolver::Problem(problem)) => {
                    self.log.warn(format_args!("{}: {problem}", self.device));
                }
                Ok(FromResolver::Answer(number, message)) => {
                    let answered = self.desk.answered(number, message, judge);
                    if let Some(Answered { name, problem: Some(problem), .. }) = &answered {
                        work.add(PolicyEvent::FailedQuestion, 1);
                        let device = &self.device;
                        self.log.warn(format_args!("{device}: {name} is not resolved: {problem}"));
                    }
                    news.extend(answered.map(News::Answered));
                }
                Err(_) => {
                    self.end(judge, &mut news);
                    break;
                }
            }
        }
        news
    }

    /// Notes that the resolver has ended. The next question starts another one.
    fn end(&mut self, judge: &Judge, news: &mut Vec<News>) {
        self.log
            .warn(format_args!("{}: the resolver has ended; the next question starts another", self.device));
        self.resolver = None;
        news.extend(self.desk.fail_all(judge).into_iter().map(News::Answered));
    }
}
