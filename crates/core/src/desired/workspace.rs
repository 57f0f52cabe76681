//! Workspaces: each is a tenant for a directory group, in which people work with their own credentials.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use super::rbac::role_binding;
use super::{DesiredAccount, DesiredTenant, Place, Transition, credential};
use crate::identity::{AccountId, AccountName, ClusterName, PosixIdentity, Uid};
use crate::ledger::people::PeopleByEntry;
use crate::ledger::{Account, LedgerState, Lifecycle};
use crate::policy::{Policy, Workspace};
use crate::snapshot::Role;

/// A member of a workspace who has access to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Holder {
    pub account: AccountName,
    pub role: Role,
    /// The subject of bindings for the person's own credential, by cluster. A cluster is missing if the person has no
    /// credential there, and then the person gets no binding there.
    pub subjects: BTreeMap<ClusterName, Value>,
    /// The person's uid, which owns the files that the person creates.
    pub uid: Option<Uid>,
}

/// The people of a workspace. People without a credential of their own are included, but have no `subjects`. People who
/// are already suspended and do not return are left out, and so are people whose creation or return is held.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Holders {
    /// Without people who are being suspended or who leave the group.
    pub(super) now: Vec<Holder>,
    /// Like `now`, and with people whose suspension the guard may still refuse.
    pub(super) staying: Vec<Holder>,
    /// Like `staying`, and with people who leave the group.
    pub(super) before: Vec<Holder>,
    /// People whose own suspensions make `now` differ from the other lists.
    pub(super) rests_on: BTreeSet<AccountId>,
    /// People in `staying` and `before` whose own creation or return may still be refused, with their subjects.
    pub(super) returning: BTreeMap<AccountId, BTreeMap<ClusterName, Value>>,
}

/// The workspaces of each person.
pub(super) type Workspaces<'a> = BTreeMap<&'a AccountId, Vec<&'a Workspace>>;

/// Returns the workspaces of all people. A person whose removal is held back still belongs to the workspace. A
/// workspace in several clusters counts once.
pub(super) fn workspaces<'a>(
    ledger: &'a LedgerState,
    policy: &'a Policy,
    people: &PeopleByEntry<'a>,
) -> Workspaces<'a> {
    let mut workspaces = Workspaces::new();
    let mut seen = None;
    for ((id, _), tenant) in &ledger.tenants {
        let workspace = policy.classes.get(&tenant.class).and_then(|class| class.workspace());
        let group = ledger.accounts.get(id).filter(|group| group.state == Lifecycle::Active);
        let (Some(workspace), Some(group)) = (workspace, group) else { continue };
        if seen.replace(id) == Some(id) {
            continue;
        }
        for person in group.members.keys().filter_map(|member| people.get(group, member)) {
            workspaces.entry(&person.id).or_default().push(workspace);
        }
    }
    workspaces
}

/// Returns the people of `group`. `derived` has the desired state of the people's own accounts.
pub(super) fn holders(
    group: &Account,
    people: &PeopleByEntry<'_>,
    derived: &BTreeMap<AccountId, DesiredAccount>,
) -> Holders {
    let mut holders = Holders::default();
    for (member, role) in &group.members {
        let Some(person) = people.get(group, member) else { continue };
        let Some(derived) = derived.get(&person.id) else { continue };
        let holder = |derived: &DesiredAccount| Holder {
            account: person.account_name(),
            role: *role,
            subjects: subjects(derived),
            uid: person.posix.as_ref().map(|posix| posix.uid),
        };
        let leaves = group.leaving.contains(member);
        let begins = matches!(derived.transition, Some(Transition::Create | Transition::Resume));
        // While an account is held, it is neither created nor resumed.
        if begins && derived.held.is_some() {
            continue;
        }
        let before = if begins {
            holders.returning.insert(person.id.clone(), subjects(derived));
            Some(holder(derived))
        } else if let Some(otherwise) = &derived.otherwise {
            holders.rests_on.insert(person.id.clone());
            Some(holder(otherwise))
        } else {
            works(derived, person).then(|| holder(derived))
        };
        holders.staying.extend(before.clone().filter(|_| !leaves));
        holders.before.extend(before);
        if works(derived, person) && !leaves {
            holders.now.push(holder(derived));
        }
    }
    for side in [&mut holders.now, &mut holders.staying, &mut holders.before] {
        side.sort_by(|one, other| one.account.cmp(&other.account));
    }
    holders
}

fn works(derived: &DesiredAccount, person: &Account) -> bool {
    match &derived.transition {
        Some(Transition::Create | Transition::Resume) => true,
        Some(_) => false,
        None => person.state == Lifecycle::Active,
    }
}

/// Returns the subjects of a person's own credentials, by cluster. A service account is left out: its token is for a
/// machine, and gives rights only in the namespace of that account.
fn subjects(derived: &DesiredAccount) -> BTreeMap<ClusterName, Value> {
    let works = |tenant: &DesiredTenant| !tenant.suspended && (tenant.given_up || !tenant.credentials.is_empty());
    let tenants = derived.clusters.iter().filter(|(_, tenant)| works(tenant));
    let named = tenants.map(|(cluster, tenant)| (cluster.clone(), tenant.holder.value()));
    named.filter(|(_, subject)| !credential::is_service_account(subject)).collect()
}

/// Returns the owner of a shared directory: the uid of a manager or, if there is none, of a member, and the gid of the
/// group.
pub(super) fn owner(group: &Account, holders: &[Holder]) -> Option<PosixIdentity> {
    let gid = group.gid?;
    let managers = holders.iter().filter(|holder| holder.role == Role::Manager);
    let uid = managers.chain(holders).find_map(|holder| holder.uid)?;
    Some(PosixIdentity { uid, gid, groups: BTreeSet::new() })
}

/// Returns the bindings of members and managers. A role of both members and managers gets a single binding.
pub(super) fn role_bindings(place: &Place<'_>, roles: &Workspace, holders: &[Holder]) -> Vec<Value> {
    let mut bound: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for holder in holders {
        let Some(subject) = holder.subjects.get(place.cluster) else { continue };
        let roles = match holder.role {
            Role::Member => &roles.members,
            Role::Manager => &roles.managers,
        };
        for role in roles {
            bound.entry(role).or_default().push(subject.clone());
        }
    }
    let binding = |(role, subjects): (&str, Vec<Value>)| {
        role_binding(place.namespace, &format!("bursar-{role}"), role, &subjects)
    };
    bound.into_iter().map(binding).collect()
}
