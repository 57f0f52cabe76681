//! Workspaces: a tenant for each directory group, in which its people work with credentials of their own. PURE: no
//! runtime, no client, no file system, no clock.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Value, json};

use super::rbac::{role_binding, subject};
use super::{DesiredAccount, Place, Transition};
use crate::directory::Role;
use crate::identity::{AccountId, AccountName, DirectoryId};
use crate::ledger::{Account, Lifecycle};
use crate::policy::WorkspaceRoles;

/// One of the people of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Holder {
    /// Who.
    pub account: AccountName,
    /// As what.
    pub role: Role,
    /// Of their own credential.
    pub generation: u64,
}

/// The people of a workspace. Those who have no credential of their own, or are suspended, are not among them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Holders {
    /// Now.
    pub(super) now: Vec<Holder>,
    /// As long as nobody was allowed to leave, or to be suspended.
    pub(super) before: Vec<Holder>,
    /// People by whose removals the two differ.
    pub(super) rests_on: BTreeSet<AccountId>,
}

/// People by their entry.
pub(super) type People<'a> = BTreeMap<(&'a str, &'a DirectoryId), &'a Account>;

/// The people of `group`, when everybody's own part is `derived`.
pub(super) fn holders(group: &Account, people: &People<'_>, derived: &BTreeMap<AccountId, DesiredAccount>) -> Holders {
    let mut holders = Holders::default();
    for (member, role) in &group.members {
        let Some(person) = people.get(&(group.source.as_str(), member)) else { continue };
        let holder = |generation| Holder { account: person.account_name(), role: *role, generation };
        if person.state == Lifecycle::Active && person.generation > 0 {
            holders.before.push(holder(person.generation));
        }
        let Some(derived) = derived.get(&person.id) else { continue };
        if derived.otherwise.is_some() {
            holders.rests_on.insert(person.id.clone());
        }
        let works = match &derived.transition {
            Some(Transition::Create | Transition::Resume) => true,
            Some(_) => false,
            None => person.state == Lifecycle::Active,
        };
        if works && derived.generation > 0 && !group.leaving.contains(member) {
            holders.now.push(holder(derived.generation));
        }
    }
    holders.now.sort();
    holders.before.sort();
    holders
}

/// Bindings of members and managers. A role that both have is one binding.
pub(super) fn role_bindings(place: &Place<'_>, roles: &WorkspaceRoles, holders: &[Holder]) -> Vec<Value> {
    let mut bound: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for holder in holders {
        let roles = match holder.role {
            Role::Member => &roles.members,
            Role::Manager => &roles.managers,
        };
        for role in roles {
            bound.entry(role).or_default().push(subject(&holder.account, holder.generation));
        }
    }
    let binding = |(role, subjects): (&str, Vec<Value>)| {
        role_binding(place.namespace, &format!("bursar-{role}"), role, &json!(subjects))
    };
    bound.into_iter().map(binding).collect()
}
