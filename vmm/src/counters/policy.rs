//! Acts of the policy of a network device.

use super::Counter;

/// Something that a policy did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyEvent {
    /// A frame was denied by a rule, by a closed range or by default.
    DeniedFrame,
    /// A frame was malformed, or its sender was not the guest.
    MalformedFrame,
    /// A frame belonged to no connection.
    UnknownFrame,
    /// There was no room for a connection, or for what is held until a name is known.
    NoRoom,
    /// The guest asked for a name.
    Question,
    /// A question was denied.
    DeniedQuestion,
    /// No server of the host answered a question.
    FailedQuestion,
    /// A connection of HTTP began, which the device relays.
    RelayedConnection,
    /// A request of HTTP was denied, or could be read in two ways.
    DeniedRequest,
}

impl PolicyEvent {
    /// All, in the order of the counters.
    pub const ALL: [Self; 9] = [
        Self::DeniedFrame,
        Self::MalformedFrame,
        Self::UnknownFrame,
        Self::NoRoom,
        Self::Question,
        Self::DeniedQuestion,
        Self::FailedQuestion,
        Self::RelayedConnection,
        Self::DeniedRequest,
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DeniedFrame => "denied_frame",
            Self::MalformedFrame => "malformed_frame",
            Self::UnknownFrame => "unknown_frame",
            Self::NoRoom => "no_room",
            Self::Question => "question",
            Self::DeniedQuestion => "denied_question",
            Self::FailedQuestion => "failed_question",
            Self::RelayedConnection => "relayed_connection",
            Self::DeniedRequest => "denied_request",
        }
    }
}

/// Counters of the policy of one device.
#[derive(Debug, Default)]
pub struct PolicyCounters([Counter; PolicyEvent::ALL.len()]);

/// Acts of the policy of a device since the VM began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyMetrics([u64; PolicyEvent::ALL.len()]);

impl PolicyCounters {
    /// Adds new work.
    pub(crate) fn add(&self, work: &PolicyMetrics) {
        self.0.iter().zip(work.0).for_each(|(counter, count)| counter.add(count));
    }

    /// The numbers now.
    pub(crate) fn read(&self) -> PolicyMetrics {
        PolicyMetrics(std::array::from_fn(|at| self.0[at].get()))
    }
}

impl PolicyMetrics {
    /// Adds to one number.
    pub(crate) fn add(&mut self, event: PolicyEvent, count: u64) {
        self.0[event as usize] += count;
    }

    /// All numbers.
    pub fn iter(&self) -> impl Iterator<Item = (PolicyEvent, u64)> {
        PolicyEvent::ALL.into_iter().zip(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_has_a_number_and_a_name_of_its_own() {
        let (counters, mut work) = (PolicyCounters::default(), PolicyMetrics::default());
        for (number, event) in PolicyEvent::ALL.into_iter().enumerate() {
            assert_eq!(event as usize, number);
            work.add(event, number as u64 + 1);
        }
        counters.add(&work);
        counters.add(&work);
        let read: Vec<_> = counters.read().iter().map(|(event, count)| (event.name(), count)).collect();
        let names: std::collections::HashSet<_> = read.iter().map(|(name, _)| name).collect();
        assert_eq!((names.len(), read[2]), (9, ("unknown_frame", 6)));
    }
}
