//! `--allow`, `--deny` and their sisters: what a guest may reach.

use clap::Args;
use volt_vmm::config::overrides::{PolicyOverride, Without};
use volt_vmm::policy::{Action, Denial, Ech, Policy, Rule};

/// Policy of the network interfaces
#[derive(Args, Clone, Debug, Default)]
pub(super) struct PolicyArgs {
    /// Let the guest reach this: [tcp:|udp:|icmp:]TARGET[:PORTS]. TARGET is a network (10.1.0.0/16,
    /// [2001:db8::/32]), an address, a name (example.org, or *.example.org for all names below) or * for all,
    /// and PORTS a list such as 80,8000-8100. It goes before any --deny. Only a network inside a private,
    /// link-local or loopback range opens that. Repeatable
    #[arg(long, value_name = "RULE")]
    allow: Vec<Rule>,

    /// Do not let the guest reach this, in the form of --allow. Repeatable
    #[arg(long, value_name = "RULE")]
    deny: Vec<Rule>,

    /// Let the guest reach nothing but what --allow names
    #[arg(long)]
    default_deny: bool,

    /// Answer to denied packets: reject (a reset or a message of ICMP) or drop (silence) [default: reject]
    #[arg(long, value_name = "KIND", value_parser = denial)]
    denial: Option<Denial>,

    /// Fate of TLS connections that encrypt the name (ECH), where rules are about names: outer (judged by the
    /// name outside) or refuse [default: outer]
    #[arg(long, value_name = "KIND", value_parser = ech)]
    ech: Option<Ech>,

    /// Let the guest reach all that its interfaces reach, in place of any policy
    #[arg(long, conflicts_with_all = ["allow", "deny", "default_deny", "denial", "ech"])]
    no_policy: bool,
}

fn ech(text: &str) -> Result<Ech, &'static str> {
    match text {
        "outer" => Ok(Ech::Outer),
        "refuse" => Ok(Ech::Refuse),
        _ => Err("it is outer or refuse"),
    }
}

fn denial(text: &str) -> Result<Denial, &'static str> {
    match text {
        "reject" => Ok(Denial::Reject),
        "drop" => Ok(Denial::Drop),
        _ => Err("it is reject or drop"),
    }
}

impl PolicyArgs {
    /// Whether there shall be no policy.
    pub(super) fn refuses_any(&self) -> bool {
        self.no_policy
    }

    /// The change of a snapshot's policy, if an option asks for one.
    pub(super) fn change(self) -> Option<PolicyOverride> {
        if self.no_policy {
            return Some(PolicyOverride::Without(Without::None));
        }
        self.policy().map(PolicyOverride::Policy)
    }

    /// The policy, if an option names a part of one.
    pub(super) fn policy(self) -> Option<Policy> {
        let Self { allow, deny, default_deny, denial, ech, no_policy: _ } = self;
        let is_given =
            !allow.is_empty() || !deny.is_empty() || default_deny || denial.is_some() || ech.is_some();
        let default = if default_deny { Action::Deny } else { Action::Allow };
        let (denial, ech) = (denial.unwrap_or_default(), ech.unwrap_or_default());
        is_given.then_some(Policy { default, allow, deny, denial, ech })
    }
}
