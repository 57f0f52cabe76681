//! Finds the bindings that name the holder of an account's credentials, and the names by which foreign bindings may
//! refer to the holder. A revocation proves that no such binding gives access to an older credential any more, and an
//! uninstallation removes or reports them all.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Action;
use super::action::{Bound, Holder};
use crate::desired::credential::of_service_account;
use crate::desired::{generation_group, of_generation_group};
use crate::identity::{AccountName, ClusterName};
use crate::json_text::JsonText;
use crate::kinds::{Detail, ManagedKind, ObjectKey};
use crate::ledger::{Certificate, LedgerState};

/// The prefix of the names of the groups in Bursar's certificates, and of the users and groups of its programs.
pub const ISSUED: &str = "bursar:";
/// The prefix of the user name of a service account.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Our bindings by cluster and holder, regardless of the generation. The index is built when a credential is first
/// revoked.
pub(super) struct Bindings<'a> {
    ledger: &'a LedgerState,
    by_holder: OnceCell<BTreeMap<(ClusterName, String), BTreeSet<Bound>>>,
}

impl<'a> Bindings<'a> {
    pub(super) const fn of(ledger: &'a LedgerState) -> Self {
        Self { ledger, by_holder: OnceCell::new() }
    }

    /// Returns the roles that our bindings give to this holder, in the account's own and in foreign namespaces.
    fn naming(&self, cluster: &ClusterName, holder: &str) -> impl Iterator<Item = &Bound> {
        self.by_holder.get_or_init(|| self.all()).get(&(cluster.clone(), holder.to_owned())).into_iter().flatten()
    }

    fn all(&self) -> BTreeMap<(ClusterName, String), BTreeSet<Bound>> {
        let mut all: BTreeMap<_, BTreeSet<Bound>> = BTreeMap::new();
        for (key, record) in self.ledger.objects.iter().filter(|(key, _)| key.kind.detail() == Detail::Subjects) {
            let Some(role) = role(key) else { continue };
            let subjects = record.detail.as_ref().map(JsonText::value);
            for holder in subjects.iter().filter_map(Value::as_array).flatten().filter_map(named) {
                let bound = Bound { namespace: key.namespace.as_deref().map(str::to_owned), role: role.to_owned() };
                all.entry((key.cluster.clone(), holder)).or_default().insert(bound);
            }
        }
        all
    }

    /// Returns the step that proves that an older credential is refused. `account` is the account's present name, and
    /// `own` is its own namespace.
    pub(super) fn proof(
        &self,
        cluster: &ClusterName,
        account: &AccountName,
        own: Option<String>,
        older: &Certificate,
    ) -> Action {
        let user = older.subject.clone();
        let place = user.strip_prefix(SERVICE_ACCOUNT).and_then(|it| it.rsplit_once(':')).map(|(place, _)| place);
        let (alone, known_as, names) = if let Some(namespace) = place {
            let names = [format!("{SERVICE_ACCOUNT}{namespace}"), String::new()];
            (Holder::User(user.clone()), vec![Holder::User(user)], names)
        } else {
            let names = [user.clone(), account.to_string()];
            let name = user.parse().unwrap_or_else(|_| account.clone());
            let group = Holder::Group(generation_group(&name, older.generation));
            let of_kind = Holder::Group(format!("bursar:{}s", name.kind));
            (group.clone(), vec![Holder::User(user), of_kind, group], names)
        };
        let mut bound: BTreeSet<Bound> = names.iter().flat_map(|name| self.naming(cluster, name)).cloned().collect();
        // If no binding is left, the proof tests a rule that nearly every role contains.
        if bound.is_empty() {
            bound.insert(Bound { namespace: own, role: String::new() });
        }
        Action::ProveRevoked { cluster: cluster.clone(), alone, known_as, bound: bound.into_iter().collect() }
    }
}

/// Returns the holder that a subject of our binding names, without the generation.
fn named(subject: &Value) -> Option<String> {
    let name = subject["name"].as_str()?;
    if subject["kind"] == ManagedKind::ServiceAccount.row().kind {
        of_service_account(name)?;
        return Some(format!("{SERVICE_ACCOUNT}{}", subject["namespace"].as_str()?));
    }
    of_generation_group(name).map(|(account, _)| account.to_string())
}

/// Returns the ClusterRole of our binding by the binding's name: `bursar-ROLE` for a RoleBinding,
/// `bursar-ROLE:KIND:NAME` for a `ClusterRoleBinding`.
fn role(key: &ObjectKey) -> Option<&str> {
    let role = key.name.strip_prefix("bursar-")?;
    if key.namespace.is_some() { Some(role) } else { role.rsplitn(3, ':').nth(2) }
}

/// Whether a subject of a foreign binding is one of `known_as`.
#[must_use]
pub fn names(subject: &Value, known_as: &[Holder]) -> bool {
    holder(subject).is_some_and(|holder| known_as.contains(&holder))
}

/// Whether a subject is an account, a group or a service account for which Bursar issues credentials, or one of Bursar's
/// own programs. All of them are known by their names, so this includes subjects of former ledgers. Users of an OIDC
/// issuer are not included, because they exist without Bursar.
#[must_use]
pub fn is_issued(subject: &Value) -> bool {
    match holder(subject) {
        Some(Holder::User(name)) => match name.strip_prefix(SERVICE_ACCOUNT).and_then(|it| it.rsplit_once(':')) {
            Some((_, account)) => of_service_account(account).is_some(),
            None => name.starts_with(ISSUED) || name.parse::<AccountName>().is_ok(),
        },
        Some(Holder::Group(name)) => name.starts_with(ISSUED),
        None => false,
    }
}

/// Returns the identity that a subject names; `None` if its kind is unknown.
fn holder(subject: &Value) -> Option<Holder> {
    let text = |key: &str| subject[key].as_str().unwrap_or_default();
    match text("kind") {
        "User" => Some(Holder::User(text("name").to_owned())),
        "Group" => Some(Holder::Group(text("name").to_owned())),
        kind if kind == ManagedKind::ServiceAccount.row().kind => {
            Some(Holder::User(format!("{SERVICE_ACCOUNT}{}:{}", text("namespace"), text("name"))))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::OrderKind;
    use crate::plan::testing::{World, prod};
    use serde_json::json;

    fn proofs(world: &World) -> Vec<Action> {
        let plan = world.plan();
        let steps = plan.accounts.iter().flat_map(super::super::AccountPlan::steps);
        steps.filter(|action| matches!(action, Action::ProveRevoked { .. })).cloned().collect()
    }

    #[test]
    fn a_revocation_proves_every_binding_of_a_person_including_workspaces() {
        let (mut world, alice, _) = World::in_course();
        let before = world.ledger.accounts[&alice].generation;
        world.order(&alice, OrderKind::Revoke);
        let [Action::ProveRevoked { cluster, alone, known_as, bound }] = &proofs(&world)[..] else {
            panic!("{}", world.plan());
        };
        let group = Holder::Group(format!("bursar:user:alice#{before}"));
        assert_eq!((cluster, alone), (&prod(), &group));
        let user = Holder::User("user:alice".to_owned());
        assert_eq!(known_as, &[user, Holder::Group("bursar:users".to_owned()), group]);
        let places: BTreeSet<&str> = bound.iter().filter_map(|bound| bound.namespace.as_deref()).collect();
        assert!(places.len() == 2 && places.iter().any(|place| place.contains("algebra")), "{places:?}");
        // If the daemon is killed after it wrote the bindings, the next plan proves the same bindings.
        let (approved, _) = world.guarded();
        let bound = bound.clone();
        let narrowing: usize = approved.accounts().iter().map(|plan| plan.narrowing.len()).sum();
        world.execute_until(&approved, narrowing);
        let again = proofs(&world);
        assert!(matches!(&again[..], [Action::ProveRevoked { bound: found, .. }] if *found == bound), "{again:?}");
    }

    #[test]
    fn a_foreign_binding_is_recognised_by_user_group_and_service_account() {
        let known_as = [
            Holder::User("tool:foo".to_owned()),
            Holder::Group("bursar:tools".to_owned()),
            Holder::User("system:serviceaccount:tool-foo:bursar-g3".to_owned()),
        ];
        let named = |subject: Value| names(&subject, &known_as);
        assert!(named(json!({"kind": "User", "name": "tool:foo"})));
        assert!(named(json!({"kind": "Group", "name": "bursar:tools"})));
        assert!(named(json!({"kind": "ServiceAccount", "namespace": "tool-foo", "name": "bursar-g3"})));
        assert!(!named(json!({"kind": "Group", "name": "tool:foo"})));
        assert!(!named(json!({"kind": "ServiceAccount", "namespace": "tool-bar", "name": "bursar-g3"})));
    }

    #[test]
    fn subjects_of_bursar_are_known_by_their_names() {
        for (kind, name, expected) in [
            ("User", "tool:foo", true),
            ("User", "bursar:daemon", true),
            ("User", "system:serviceaccount:tool-foo:bursar-g3", true),
            ("Group", "bursar:tools", true),
            ("Group", "bursar:tool:foo#1042", true),
            ("Group", "bursar:daemon#11111111", true),
            ("ServiceAccount", "bursar-g3", true),
            ("User", "alice", false),
            ("User", "oidc:alice", false),
            ("User", "system:serviceaccount:tool-foo:default", false),
            ("Group", "tool:foo", false),
            ("Group", "system:masters", false),
            ("ServiceAccount", "bursar-gate", false),
            ("Robot", "bursar:tools", false),
        ] {
            let subject = json!({"kind": kind, "namespace": "tool-foo", "name": name});
            assert_eq!(is_issued(&subject), expected, "{subject}");
        }
    }
}
