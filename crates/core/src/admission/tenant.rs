//! Whose namespace a request is in, as the seal proves it, and what the placeholders of rules stand for there.

use crate::contract::exception::ExceptedRule;
use crate::contract::{ContractError, Identity, SELFTEST};
use crate::identity::PosixIdentity;

use crate::rules::{ClassRules, Lifetimes};

/// What is known of a request's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "one for each namespace, and nearly all of them are sealed")]
pub enum Resolved {
    /// The seal holds.
    Sealed(Identity),
    /// There is no identity, and so no pod.
    Unresolved(Unresolved),
}

/// How a webhook says that it can judge nobody's pods. A question whether it works takes this for no answer.
pub const STALE: &str = "the webhook has not heard of namespaces";

/// Why there is no identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unresolved {
    /// The annotations are there, and the seal is not over them.
    #[error("somebody edited its bursar.dev annotations or its class, and the seal does not hold")]
    Edited,
    /// A part of the contract is not there.
    #[error("{0}")]
    Missing(String),
    /// Neither the index nor a live read knows the namespace as a tenant's.
    #[error("no tenant has it")]
    Unknown,
    /// The watch has told nothing for too long: a suspension or an edit may have been missed.
    #[error("{STALE} for {seconds} s")]
    Stale {
        /// Age of the index.
        seconds: u64,
    },
}

impl Resolved {
    /// From what [`crate::contract::identity_of`] says.
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
    /// `tool foo`.
    pub(super) fn who(&self) -> String {
        format!("{} {}", self.identity.account.kind, self.identity.account.name)
    }

    pub(super) fn posix(&self) -> Option<&'a PosixIdentity> {
        self.identity.posix.as_ref()
    }

    /// What its pods are given.
    pub(super) fn lifetimes(&self) -> Lifetimes {
        self.rules.lifetimes.unless(self.identity.exceptions.contains(&ExceptedRule::Lifetime))
    }

    /// The tenant's values in place of the placeholders; `None` if one is unknown or stands for nothing here, so that
    /// the text matches nothing.
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

    /// `{name}`, frozen when the account was new: the account's own name may have changed since, and somebody else may
    /// have the old one.
    fn name(&self) -> Option<&'a str> {
        let namespace = self.identity.namespace.as_str();
        if namespace == SELFTEST {
            return Some(namespace);
        }
        let (prefix, suffix) = self.rules.namespace.as_deref()?.split_once("{name}")?;
        let name = namespace.strip_prefix(prefix)?.strip_suffix(suffix)?;
        (!name.is_empty()).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::tests::{identity, rules};
    use crate::contract::TenantState;

    #[test]
    fn placeholders_are_of_the_sealed_namespace() {
        let (rules, mut identity) = (rules(), identity("tool", TenantState::Active));
        let fill = |identity: &Identity, text: &str| Tenant { identity, rules: &rules.classes["tool"] }.fill(text);
        let all = "{name} {namespace} {account} {class} {uid} {gid}";
        assert_eq!(fill(&identity, all).as_deref(), Some("foo tool-foo tool:foo tool 52503 52503"));
        identity.account.name = "renamed".to_owned();
        assert_eq!(fill(&identity, "{name}").as_deref(), Some("foo"), "frozen");
        for nothing in ["{other}", "{name", "{}", "{ name}", "{name} {other}"] {
            assert_eq!(fill(&identity, nothing), None, "{nothing}");
        }
        identity.namespace = "adopted".to_owned().try_into().expect("a namespace");
        assert_eq!(fill(&identity, "{name}"), None, "who named it, nobody knows");
        identity.posix = None;
        assert_eq!(fill(&identity, "{uid}"), None);
    }
}
