//! A policy as users write it, and as snapshots keep it.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::rule::Rule;

/// Most rules of a policy.
pub const MOST_RULES: usize = 10_000;

/// The verdict on what no rule is about.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It passes.
    #[default]
    Allow,
    /// It does not.
    Deny,
}

/// The answer that a guest gets to a denied packet.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Denial {
    /// A reset of TCP, or an unreachable message of ICMP: programs fail at once.
    #[default]
    Reject,
    /// Silence: programs wait until their own limit.
    Drop,
}

/// The fate of a connection of TLS that encrypts its name (ECH, RFC 9849).
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Ech {
    /// It is judged by the name outside. Browsers send random bytes in place of an encrypted name.
    #[default]
    Outer,
    /// It is denied.
    Refuse,
}

impl Ech {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Rules of a VM's network. An allowing rule goes before a denying one, whatever their order.
///
/// ```json
/// { "default": "deny", "allow": ["*.debian.org:80,443", "10.1.0.0/16"], "denial": "drop" }
/// ```
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// The verdict where no rule matches.
    #[serde(default)]
    pub default: Action,
    /// Targets that are allowed. Only a network inside a range that is closed by default opens it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub allow: Vec<Rule>,
    /// Targets that are denied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub deny: Vec<Rule>,
    /// The answer to denied packets.
    #[serde(default)]
    pub denial: Denial,
    /// The fate of a connection of TLS that encrypts its name, where names are judged.
    #[serde(default, skip_serializing_if = "Ech::is_default")]
    pub ech: Ech,
}

impl Policy {
    /// Checks the rules beside each other.
    ///
    /// # Errors
    /// There are more than [`MOST_RULES`], or one is in both lists.
    pub fn check(&self) -> Result<()> {
        let given = self.allow.len() + self.deny.len();
        if given > MOST_RULES {
            return Err(Error::TooMany { given, most: MOST_RULES });
        }
        let allowed: HashSet<_> = self.allow.iter().collect();
        match self.deny.iter().find(|rule| allowed.contains(rule)) {
            Some(rule) => Err(Error::Both { rule: rule.to_string() }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Policy {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn absent_fields_allow_all_and_reject() {
        let empty = policy("{}");
        assert_eq!((empty.default, empty.denial), (Action::Allow, Denial::Reject));
        assert_eq!(empty, Policy::default());
        let text =
            r#"{"default":"deny","allow":["*.debian.org:80,443"],"deny":["10.1.0.0/16"],"denial":"drop"}"#;
        assert_eq!(serde_json::to_string(&policy(text)).unwrap(), text);
    }

    #[test]
    fn wrong_rule_of_a_file_is_named() {
        for (text, words) in [
            (r#"{"allow":["10.1.2.3/16"]}"#, r#"rule "10.1.2.3/16": it has bits beyond its prefix"#),
            (r#"{"allows":[]}"#, "unknown field `allows`"),
            (r#"{"default":"maybe"}"#, "unknown variant `maybe`"),
        ] {
            let problem = serde_json::from_str::<Policy>(text).unwrap_err().to_string();
            assert!(problem.contains(words), "{problem}");
        }
    }

    #[test]
    fn rule_in_both_lists_and_too_many_rules_are_refused() {
        let both = policy(r#"{"allow":["Example.org:443"],"deny":["*","example.org:443"]}"#);
        assert_eq!(both.check(), Err(Error::Both { rule: "example.org:443".to_owned() }));
        let rules = (0..MOST_RULES).map(|number| format!("a{number}.example:443").parse().unwrap());
        let mut many = Policy { allow: rules.collect(), ..Policy::default() };
        assert_eq!(many.check(), Ok(()));
        many.deny.push("*".parse().unwrap());
        assert_eq!(many.check(), Err(Error::TooMany { given: MOST_RULES + 1, most: MOST_RULES }));
    }
}
