//! Finds the steps of a plan that remove access for a reason outside the account itself: a selector, a class or a
//! template changed, or a namespace is released. They count against `remove_access_per_…`.
//!
//! Suspensions and leaving members have limits of their own. If this limit refuses a change of a binding, the binding
//! is still written without the subjects that have to leave.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::adopted::is_of_others;
use super::{AccountPlan, Action, Reason, Side, World};
use crate::desired::credential::{self, of_service_account, service_account};
use crate::desired::rbac::remembered_binding;
use crate::desired::{AccountIntent, DesiredAccount, DesiredState, Transition, generation_group, of_generation_group};
use crate::digest::digest;
use crate::identity::{AccountId, AccountKind, ClusterName, DirectoryId, NamespaceName};
use crate::json_text::JsonText;
use crate::kinds::{ManagedKind, ObjectKey, Stage};
use crate::ledger::people::PeopleByEntry;
use crate::ledger::{Account, LedgerState, Lifecycle};

/// The steps that remove access, by their index in [`AccountPlan::steps`], each with its replacement.
pub type Losses = BTreeMap<usize, Kept>;

/// The replacement of a step that the limit refuses.
#[derive(Debug, Clone, PartialEq)]
pub enum Kept {
    /// Nothing is done, so the access stays.
    AsItIs,
    /// The binding is written without the subjects that have to leave, and with the present generations of the others.
    Without(Box<Action>),
}

impl Kept {
    fn without_token_holder(self) -> Self {
        let Self::Without(mut kept) = self else { return self };
        if let Action::Apply { manifest, wanted, .. } = kept.as_mut() {
            let mut without = manifest.value();
            if let Some(subjects) = without["subjects"].as_array_mut() {
                let is_ours = |subject: &Value| {
                    credential::is_service_account(subject) && subject["name"].as_str().is_some_and(is_of_tokens)
                };
                subjects.retain(|subject| !is_ours(subject));
            }
            (*wanted, *manifest) = (digest(&without).into(), JsonText::from(&without));
        }
        Self::Without(kept)
    }
}

fn is_of_tokens(name: &str) -> bool {
    of_service_account(name).is_some()
}

/// The unit that the limit counts: a foreign namespace, or everything else that an account has in a cluster.
type LossUnit = (ClusterName, Option<String>);

/// Finds people by the names that bindings use. The indexes are built when a binding first loses a subject.
pub(super) struct People<'a> {
    ledger: &'a LedgerState,
    desired: &'a DesiredState,
    by_entry: OnceCell<PeopleByEntry<'a>>,
    by_generation: OnceCell<BTreeMap<u64, &'a Account>>,
    by_name: OnceCell<BTreeMap<String, &'a Account>>,
}

impl<'a> People<'a> {
    pub(super) const fn of(ledger: &'a LedgerState, desired: &'a DesiredState) -> Self {
        Self { ledger, desired, by_entry: OnceCell::new(), by_generation: OnceCell::new(), by_name: OnceCell::new() }
    }

    fn all(&self) -> impl Iterator<Item = &'a Account> {
        self.ledger.accounts.values().filter(|account| account.kind == AccountKind::User)
    }

    fn of_entry(&self, group: &Account, member: &DirectoryId) -> Option<&'a Account> {
        self.by_entry.get_or_init(|| PeopleByEntry::of(self.ledger)).get(group, member)
    }

    /// Returns the people who belong to the workspace; nobody if the account is not a group.
    pub(super) fn of_workspace(&self, account: &'a Account) -> impl Iterator<Item = &'a Account> {
        let members = account.members.keys().filter(move |_| account.kind == AccountKind::Group);
        members.filter_map(move |member| self.of_entry(account, member))
    }

    /// Returns the person with this generation. A generation is never used twice.
    fn of_generation(&self, generation: u64) -> Option<&'a Account> {
        let all = || self.all().map(|person| (person.generation, person)).collect();
        self.by_generation.get_or_init(all).get(&generation).copied()
    }

    /// Returns the person whose own bindings, as last written, name this user.
    fn named(&self, user: &str) -> Option<&'a Account> {
        let all = self.by_name.get_or_init(|| {
            let bindings = self.ledger.objects.iter().filter(|(key, _)| key.kind.stage() == Stage::Access);
            let owned = bindings.filter_map(|(_, record)| {
                let owner = self.ledger.accounts.get(&record.account)?;
                (owner.kind == AccountKind::User).then_some((owner, record.detail.as_ref()?.value()))
            });
            let named = owned.flat_map(|(owner, subjects)| {
                let users = subjects.as_array().into_iter().flatten().filter_map(user_of);
                users.map(|user| (user.to_owned(), owner)).collect::<Vec<_>>()
            });
            named.collect()
        });
        all.get(user).copied()
    }

    /// Returns the desired state of a person who is active and remains so. If the person is to be removed, `goes` says
    /// whether the guard allows it.
    pub(super) fn works(&self, person: &Account, goes: bool) -> Option<&'a DesiredAccount> {
        let desired = self.desired.accounts.get(&person.id)?;
        let begins = matches!(desired.transition, Some(Transition::Create | Transition::Resume));
        let desired = desired.otherwise.as_deref().filter(|_| !goes && !begins).unwrap_or(desired);
        let works = match desired.transition {
            None => person.state == Lifecycle::Active,
            Some(Transition::Create | Transition::Resume) => true,
            Some(_) => false,
        };
        works.then_some(desired)
    }
}

/// Returns the steps of `plan` that remove access for a cause that no other limit counts. `plan` was made from
/// `desired`.
pub(super) fn of(world: World<'_>, desired: &DesiredAccount, plan: &AccountPlan) -> Losses {
    let serves = plan.before.state == Lifecycle::Active && plan.transition.is_none();
    if !serves || plan.left {
        return Losses::new();
    }
    let loss = Loss { world, desired, plan };
    plan.steps().enumerate().filter_map(|(place, action)| Some((place, loss.of(action)?))).collect()
}

/// Whether a generation or a person has to leave the account's bindings, or had to before the daemon was killed.
pub(super) fn has_to_leave(ledger: &LedgerState, id: &AccountId, intent: &AccountIntent) -> bool {
    let AccountIntent { regenerated, leaving, rests_on, .. } = intent;
    regenerated.is_some() || !leaving.is_empty() || !rests_on.is_empty() || ledger.is_being_revoked(id)
}

/// Returns the number of places in which the account loses access.
pub(super) fn count(plan: &AccountPlan) -> u64 {
    places(plan).len() as u64
}

fn places(plan: &AccountPlan) -> BTreeSet<LossUnit> {
    let lost = plan.steps().enumerate().filter(|(place, _)| plan.losses.contains_key(place));
    lost.map(|(_, action)| place(plan, action)).collect()
}

fn place(plan: &AccountPlan, action: &Action) -> LossUnit {
    let namespace = match action {
        Action::Apply { key, .. } | Action::Delete { key, .. } => of_others(plan, key),
        _ => None,
    };
    (action.cluster().clone(), namespace)
}

fn of_others(plan: &AccountPlan, key: &ObjectKey) -> Option<String> {
    is_of_others(key, |there| plan.owns(there)).then(|| key.namespace.as_deref().map(str::to_owned)).flatten()
}

/// Returns the plan with only its losses, which is what an administrator approves.
pub(super) fn alone(plan: &AccountPlan) -> AccountPlan {
    let mut alone = AccountPlan { otherwise: None, ..plan.clone() };
    alone.leaving.clear();
    alone.transition = None;
    alone.retain_steps(|place, _| plan.losses.contains_key(&place));
    alone
}

/// Removes the losses from the plan, together with the other steps of the same change. A new kubeconfig is among these
/// steps, because it would replace the credential that still has access. The removal of quotas and policies from a
/// foreign namespace is also among these steps, because that namespace is not released.
pub(super) fn keep(plan: &mut AccountPlan) {
    let lost = places(plan);
    let clusters: BTreeSet<&ClusterName> = lost.iter().map(|(cluster, _)| cluster).collect();
    let follows = |index: usize, action: &Action| match action {
        Action::Delete { key, reason: Reason::Orphaned, .. } if key.kind.stage() != Stage::Access => {
            let place = place(plan, action);
            place.1.is_some() && lost.contains(&place)
        }
        Action::Deliver { reason: Reason::Changed(what), cluster, .. } => {
            what != &["home"] && clusters.contains(cluster)
        }
        _ => action.side() == Side::Other && plan.paced.contains(&index),
    };
    let waits: BTreeSet<usize> =
        plan.steps().enumerate().filter(|(index, action)| follows(*index, action)).map(|(index, _)| index).collect();
    let losses = std::mem::take(&mut plan.losses);
    put_instead(plan, &losses, &waits);
    plan.paced.clear();
}

/// Removes the losses in clusters that the class gave up while the suspension there is refused. No limit counts them,
/// because the refused suspension is counted already.
pub(super) fn keep_given_up(plan: &mut AccountPlan, desired: &DesiredAccount) {
    let is_given_up = |action: &Action| desired.clusters.get(action.cluster()).is_some_and(|it| it.given_up);
    let there: BTreeSet<usize> =
        plan.steps().enumerate().filter(|(_, action)| is_given_up(action)).map(|(index, _)| index).collect();
    let (kept, losses) = std::mem::take(&mut plan.losses).into_iter().partition(|(index, _)| there.contains(index));
    plan.losses = losses;
    put_instead(plan, &kept, &BTreeSet::new());
}

/// Replaces each of `losses` by its replacement, and removes the steps in `waits`.
fn put_instead(plan: &mut AccountPlan, losses: &Losses, waits: &BTreeSet<usize>) {
    plan.replace_steps(|index| match losses.get(&index) {
        Some(Kept::Without(kept)) => Some(&**kept),
        _ => None,
    });
    plan.retain_steps(|index, _| losses.get(&index).map_or(!waits.contains(&index), |kept| *kept != Kept::AsItIs));
}

/// A plan with the inputs that its losses depend on.
struct Loss<'a, 'w> {
    world: World<'w>,
    desired: &'a DesiredAccount,
    plan: &'a AccountPlan,
}

impl Loss<'_, '_> {
    /// Returns the replacement of `action`; `None` if the action removes no access, or another limit counts the
    /// removal.
    fn of(&self, action: &Action) -> Option<Kept> {
        match action {
            Action::Apply { key, manifest, uid: Some(uid), .. } if key.kind.stage() == Stage::Access => {
                let last = self.last(key)?;
                let kept = self.of_binding(key, uid, Some(&last.value()))?;
                // The first of two writes must not name a service account that does not exist yet.
                Some(if last == manifest { kept } else { kept.without_token_holder() })
            }
            // A binding that is being deleted is created again with the subjects that may stay.
            Action::Delete { reason: Reason::Suspended | Reason::Changed(_), .. } => None,
            Action::Delete { key, .. } if self.is_going(key) => None,
            Action::Delete { key, uid, .. } if key.kind.stage() == Stage::Access => self.of_binding(key, uid, None),
            Action::Delete { key, .. } if credential::is_ours(key) => self.ends_tokens(key).then_some(Kept::AsItIs),
            Action::Delete { key, reason: Reason::Orphaned, .. } => self.is_released(key).then_some(Kept::AsItIs),
            Action::RemoveKubeconfig { reason: Reason::Orphaned, .. } => Some(Kept::AsItIs),
            // If the home moved, the keys are written into the new home.
            Action::SshKeys { keys, reason: Some(Reason::Orphaned), .. } => {
                (keys.is_empty() && self.desired.ssh.is_none()).then_some(Kept::AsItIs)
            }
            Action::Apply { .. }
            | Action::Delete { .. }
            | Action::MakeDirectory { .. }
            | Action::SetLevel { .. }
            | Action::StopWorkloads { .. }
            | Action::Evict { .. }
            | Action::WarnIdle { .. }
            | Action::ReapPod { .. }
            | Action::WarnPod { .. }
            | Action::ResumeWorkloads { .. }
            | Action::ProveRevoked { .. }
            | Action::Archive { .. }
            | Action::DeleteNamespace { .. }
            | Action::AwaitDeletion { .. }
            | Action::Deliver { .. }
            | Action::RemoveKubeconfig { .. }
            | Action::SshKeys { .. }
            | Action::InspectKubeconfig { .. } => None,
        }
    }

    /// Returns the manifest of a binding after all steps of the plan.
    fn last(&self, binding: &ObjectKey) -> Option<&JsonText> {
        let writes = self.plan.steps().filter_map(|action| match action {
            Action::Apply { key, manifest, .. } if key == binding => Some(manifest),
            _ => None,
        });
        writes.last()
    }

    /// Like [`Loss::of`], for a binding. `manifest` is the desired manifest; `None` if the binding is deleted.
    fn of_binding(&self, key: &ObjectKey, uid: &str, manifest: Option<&Value>) -> Option<Kept> {
        let ledger = self.world.ledger;
        // If it is unknown whom a binding names, the binding may name the generation or the person that has to leave.
        let is_whole = || manifest.is_none() && !has_to_leave(ledger, &self.plan.id, &self.plan.intent);
        let Some(record) = ledger.objects.get(key) else {
            // The removal of a binding counts even if it is unknown whose access the binding gives. In a foreign
            // namespace, such a removal does not count. Otherwise the owners of the namespace could recreate the
            // binding again and again, and use up the limit for all accounts.
            return (of_others(self.plan, key).is_none() && is_whole()).then_some(Kept::AsItIs);
        };
        let before = record.detail.as_ref().map(JsonText::value);
        let Some(before) = before.as_ref().and_then(Value::as_array) else {
            // An old ledger did not record the subjects.
            return is_whole().then_some(Kept::AsItIs);
        };
        let wanted = manifest.and_then(|manifest| manifest["subjects"].as_array()).map_or(&[][..], Vec::as_slice);
        let mut kept: Vec<Value> = Vec::new();
        for subject in before.iter().filter_map(|subject| self.kept(&key.cluster, subject)) {
            if !kept.contains(&subject) {
                kept.push(subject);
            }
        }
        if kept.iter().all(|subject| wanted.contains(subject)) {
            return None;
        }
        let Some(there) = self.world.inventory.clusters.get(&key.cluster)?.objects.get(key) else {
            // The binding lost its label: it still applies, but Bursar cannot change it. If a subject has to leave the
            // binding, the binding is deleted as planned. In a foreign namespace, the binding is gone with the
            // namespace.
            return (kept == *before && of_others(self.plan, key).is_none()).then_some(Kept::AsItIs);
        };
        if kept == *before && there.digest == record.observed && there.uid == record.uid {
            return Some(Kept::AsItIs);
        }
        let mut kept_as = match manifest {
            Some(manifest) => manifest.clone(),
            None => remembered_binding(&self.plan.before, key, &kept)?,
        };
        kept_as["subjects"] = json!(kept);
        let (key, uid, wanted) = (key.clone(), Some(uid.to_owned()), digest(&kept_as).into());
        let manifest = JsonText::from(&kept_as);
        let reason = Reason::Changed(vec!["subjects".to_owned()]);
        Some(Kept::Without(Box::new(Action::Apply { key, manifest, wanted, uid, reason })))
    }

    /// Returns a subject under its present name, if only the policy removes its access; `None` if it has to leave.
    fn kept(&self, cluster: &ClusterName, subject: &Value) -> Option<Value> {
        let name = subject["name"].as_str().unwrap_or_default();
        let called = |name: String| {
            let mut subject = subject.clone();
            subject["name"] = Value::from(name);
            subject
        };
        let is_own = self.plan.before.kind != AccountKind::Group
            && (of_generation_group(name).is_some() || of_service_account(name).is_some());
        if let Some(holder) = self.replaced(cluster).filter(|_| is_own) {
            return Some(holder);
        }
        if let Some((_, generation)) = of_generation_group(name) {
            return self.holder(cluster, generation).map(called);
        }
        if subject["kind"] == ManagedKind::ServiceAccount.row().kind {
            let Some(generation) = of_service_account(name) else { return Some(subject.clone()) };
            // In a given-up cluster Bursar does not create the next service account, but a tenant could create one.
            let is_made = generation == self.plan.generation || !self.is_given_up(cluster);
            return is_made.then(|| called(service_account(self.plan.generation)));
        }
        let Some(user) = user_of(subject) else { return Some(subject.clone()) };
        self.is_still(cluster, user).then(|| subject.clone())
    }

    /// Returns the subject of the credential that replaces a revoked one. The new credential may be of another kind,
    /// because the class may have changed.
    fn replaced(&self, cluster: &ClusterName) -> Option<Value> {
        let replaces = |action: &Action| matches!(action, Action::Deliver { reason: Reason::Revoked, cluster: at, .. } if at == cluster);
        let tenant = self.desired.clusters.get(cluster).filter(|_| self.plan.steps().any(replaces))?;
        Some(tenant.holder.value())
    }

    /// Returns the present generation group of the person who had this generation. The account's own bindings may name
    /// an older generation if the daemon was killed during a revocation.
    fn holder(&self, cluster: &ClusterName, generation: u64) -> Option<String> {
        if self.plan.before.kind != AccountKind::Group {
            return Some(generation_group(&self.plan.account, self.plan.generation));
        }
        let person = self.world.people.of_generation(generation)?;
        let desired = self.works(person).filter(|_| self.belongs(person))?;
        // If the person loses access to the cluster, this is counted in the person's own plan.
        desired.clusters.get(cluster).filter(|tenant| !tenant.suspended)?;
        Some(generation_group(&desired.account, desired.generation))
    }

    /// Whether a user name of an OIDC issuer still belongs to the account, or to one of its people who may stay.
    fn is_still(&self, cluster: &ClusterName, user: &str) -> bool {
        let is_bound = |desired: &DesiredAccount| {
            desired.clusters.get(cluster).is_some_and(|tenant| user_of(&tenant.holder.value()) == Some(user))
        };
        let before = &self.plan.before;
        if before.kind != AccountKind::Group {
            return is_bound(self.desired) || is_name_in(&before.name, user);
        }
        let people = self.world.people;
        let members = before.members.keys().filter_map(|member| people.of_entry(before, member));
        let mut working = members.filter_map(|person| self.works(person).map(|desired| (person, desired)));
        if working.any(|(person, desired)| self.belongs(person) && is_bound(desired)) {
            return true;
        }
        let person = people.named(user).filter(|person| self.belongs(person) && is_name_in(&person.name, user));
        person.is_some_and(|person| self.works(person).is_some())
    }

    /// Returns the desired state of a person who remains active. A plan that does not rest on the removal of the person
    /// is executed only if the guard refuses that removal.
    fn works(&self, person: &Account) -> Option<&DesiredAccount> {
        self.world.people.works(person, self.plan.rests_on.contains(&person.id))
    }

    /// Whether the person is a member of this workspace and does not leave it.
    fn belongs(&self, person: &Account) -> bool {
        self.plan.before.has_member(person) && !self.plan.leaving.contains_key(&person.directory_id)
    }

    /// Whether deleting this object ends valid tokens: it is a Secret, or the service account of the present
    /// generation.
    fn ends_tokens(&self, key: &ObjectKey) -> bool {
        of_service_account(&key.name).is_none_or(|generation| generation == self.plan.generation)
    }

    fn is_given_up(&self, cluster: &ClusterName) -> bool {
        self.desired.clusters.get(cluster).is_some_and(|tenant| tenant.given_up)
    }

    /// Whether the object is in a foreign namespace that is being deleted.
    fn is_going(&self, key: &ObjectKey) -> bool {
        let name = key.namespace.as_ref().and_then(|name| NamespaceName::try_from(name.to_string()).ok());
        let shown = self.world.inventory.adopted.get(&key.cluster).zip(name);
        shown.and_then(|(shown, name)| shown.get(&name)).is_some_and(|found| found.deleting)
    }

    /// Whether the object is in a foreign namespace in which nothing is desired any more.
    fn is_released(&self, key: &ObjectKey) -> bool {
        let Some(namespace) = of_others(self.plan, key) else { return false };
        let tenant = self.desired.clusters.get(&key.cluster);
        let wanted = tenant.iter().flat_map(|tenant| tenant.objects.keys());
        !wanted.into_iter().any(|key| key.namespace.as_deref() == Some(namespace.as_str()))
    }
}

fn user_of(subject: &Value) -> Option<&str> {
    (subject["kind"] == "User").then(|| subject["name"].as_str()).flatten()
}

/// Whether `user` contains `name` as a whole word, because issuers add a prefix or suffix (`sso:NAME`,
/// `NAME@example.org`).
fn is_name_in(name: &str, user: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    user.match_indices(name).any(|(at, _)| {
        !user[..at].chars().next_back().is_some_and(is_part)
            && !user[at + name.len()..].chars().next().is_some_and(is_part)
    })
}
