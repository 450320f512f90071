//! Errors of rules and policies.

/// Why a policy is refused. Each message names the rule as it was given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The text of a rule is wrong.
    #[error("rule {rule:?}: {problem}")]
    Rule {
        /// The rule as it was given.
        rule: String,
        /// The problem, and its cure.
        problem: String,
    },
    /// A rule is allowed and denied.
    #[error("rule {rule:?} is in both lists, and allow goes before deny; remove it from one")]
    Both {
        /// The rule.
        rule: String,
    },
    /// The lists are too long.
    #[error("the policy has {given} rules, and {most} are possible; join neighbouring networks")]
    TooMany {
        /// Rules of both lists.
        given: usize,
        /// The limit.
        most: usize,
    },
}

/// The result of reading a policy.
pub type Result<T> = std::result::Result<T, Error>;
