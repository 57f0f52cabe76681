//! The tenant that the seal of a request's namespace proves, and the tenant's values for placeholders.

use crate::contract::exception::ExceptedRule;
use crate::contract::{ContractError, Identity, SELFTEST};
use crate::identity::{PosixIdentity, name_in};
use crate::rules::{ClassRules, Lifetimes};

/// The result of looking up the tenant of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolved {
    /// The seal is valid.
    Sealed(Identity),
    /// There is no identity, so no pod may start.
    Unresolved(Unresolved),
}

/// The beginning of the message of a webhook that cannot judge any pod. `bursar` treats such a refusal as a failure of
/// the webhook, not as the answer to its test.
pub const STALE: &str = "the webhook has received no news of namespaces";

/// Why a namespace has no identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unresolved {
    /// The annotations exist, but the seal does not match them.
    #[error("somebody edited its bursar.dev annotations or its class, and the seal does not match")]
    Edited,
    /// A part of the metadata is absent.
    #[error("{0}")]
    Missing(String),
    /// According to the index and to a live read, the namespace belongs to no tenant.
    #[error("it belongs to no tenant")]
    Unknown,
    /// The watch has received nothing for too long, so a suspension or an edit may have been missed.
    #[error("{STALE} for {seconds} s")]
    Stale {
        /// The age of the index.
        seconds: u64,
    },
}

impl Resolved {
    /// Converts the result of [`crate::contract::identity_of`].
    #[must_use]
    pub fn of(identity: Result<Identity, ContractError>) -> Self {
        match identity {
            Ok(identity) => Self::Sealed(identity),
            Err(error @ ContractError::Missing(_)) => Self::Unresolved(Unresolved::Missing(error.to_string())),
            Err(_) => Self::Unresolved(Unresolved::Edited),
        }
    }
}

/// A tenant and the rules of its class.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tenant<'a> {
    pub(super) identity: &'a Identity,
    pub(super) rules: &'a ClassRules,
}

impl<'a> Tenant<'a> {
    /// The tenant's name in messages, such as `tool foo`.
    pub(super) fn who(&self) -> String {
        format!("{} {}", self.identity.account.kind, self.identity.account.name)
    }

    pub(super) fn posix(&self) -> Option<&'a PosixIdentity> {
        self.identity.posix.as_ref()
    }

    /// Returns the lifetimes for the tenant's pods, with an exception applied.
    pub(super) fn lifetimes(&self) -> Lifetimes {
        self.rules.lifetimes.unless(self.identity.exceptions.contains(&ExceptedRule::Lifetime))
    }

    /// Replaces placeholders with the tenant's values. Returns `None` if a placeholder is unknown or the tenant has no
    /// value for it, so that the text matches nothing.
    pub(super) fn fill(&self, text: &str) -> Option<String> {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (placeholder, after) = after.split_once('}')?;
            filled.push_str(before);
            filled.push_str(&self.value(placeholder)?);
            rest = after;
        }
        filled.push_str(rest);
        Some(filled)
    }

    fn value(&self, placeholder: &str) -> Option<String> {
        let identity = self.identity;
        match placeholder {
            "name" => self.name().map(str::to_owned),
            "namespace" => Some(identity.namespace.to_string()),
            "account" => Some(identity.account.to_string()),
            "class" => Some(identity.class.clone()),
            "uid" => identity.posix.as_ref().map(|posix| posix.uid.to_string()),
            "gid" => identity.posix.as_ref().map(|posix| posix.gid.to_string()),
            _ => None,
        }
    }

    /// Returns the value of `{name}` from the namespace, which keeps the name that the account had when it was new. The
    /// account may have been renamed since, and another account may have the old name.
    fn name(&self) -> Option<&'a str> {
        let namespace = self.identity.namespace.as_str();
        if namespace == SELFTEST {
            return Some(namespace);
        }
        name_in(self.rules.namespace.as_deref()?, namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::tests::{identity, rules};
    use crate::contract::TenantState;

    #[test]
    fn placeholders_get_values_of_the_sealed_namespace() {
        let (rules, mut identity) = (rules(), identity("tool", TenantState::Active));
        let fill = |identity: &Identity, text: &str| Tenant { identity, rules: &rules.classes["tool"] }.fill(text);
        let all = "{name} {namespace} {account} {class} {uid} {gid}";
        assert_eq!(fill(&identity, all).as_deref(), Some("foo tool-foo tool:foo tool 52503 52503"));
        identity.account.name = "renamed".to_owned();
        assert_eq!(
            fill(&identity, "{name}").as_deref(),
            Some("foo"),
            "a renamed account keeps the name in its namespace"
        );
        for nothing in ["{other}", "{name", "{}", "{ name}", "{name} {other}"] {
            assert_eq!(fill(&identity, nothing), None, "{nothing}");
        }
        identity.namespace = "adopted".to_owned().try_into().expect("the name is a DNS label");
        assert_eq!(fill(&identity, "{name}"), None, "a namespace that does not match the pattern has no {{name}}");
        identity.posix = None;
        assert_eq!(fill(&identity, "{uid}"), None);
    }
}
