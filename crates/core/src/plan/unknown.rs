//! Finds objects with our labels that are not in the ledger. They exist if the daemon was killed between a write and
//! its record, if the ledger was restored, or if somebody else made them. Such bindings are removed, because they give
//! access without a decision; other objects are only reported. Bindings whose account is not in the ledger either are
//! removed by plans of their own ([`super::ownerless`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::loss::has_to_leave;
use super::ownerless::{Makers, Ownerless, cluster_wide};
use super::tenant::Look;
use super::{Action, Reason};
use crate::desired::DesiredState;
use crate::identity::{AccountId, ClusterName};
use crate::inventory::{Inventory, ObservedObject};
use crate::kinds::{ObjectKey, Stage};
use crate::ledger::LedgerState;
use crate::policy::Policy;

/// How long unknown bindings are kept after a takeover, a rebuild or a restore. During this time, an administrator or a
/// directory may still show which account they belong to.
const GRACE: SignedDuration = SignedDuration::from_hours(24);

/// An object with our label that is not in the ledger.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unknown {
    pub cluster: ClusterName,
    /// The object, such as `rolebinding tool-foo/bursar-edit`.
    pub object: String,
    /// What Bursar does with the object, or the remedy, as a text for administrators.
    pub what: String,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, object, what } = self;
        write!(f, "{object} in {cluster} carries Bursar's label and is not in the ledger; {what}")
    }
}

/// All unknown objects, and those bindings among them that are to be removed.
#[derive(Debug, Default)]
pub(super) struct Strays<'a> {
    /// The findings for administrators.
    pub(super) said: Vec<Unknown>,
    bindings: BTreeMap<(&'a AccountId, &'a ClusterName), Vec<(&'a ObjectKey, &'a ObservedObject)>>,
    /// The bindings to remove whose account is not in the ledger; empty during the [`GRACE`] period, and before every
    /// directory has answered ([`Makers::all_have_answered`]).
    pub(super) ownerless: Ownerless<'a>,
    /// Whether the [`GRACE`] period still lasts.
    waits: bool,
}

impl<'a> Strays<'a> {
    /// `passed` has the objects that clusters show and that are not in the ledger.
    pub(super) fn of(
        passed: Vec<(&'a ObjectKey, &'a ObservedObject)>,
        desired: &'a DesiredState,
        ledger: &'a LedgerState,
        inventory: &'a Inventory,
        policy: &'a Policy,
        now: Timestamp,
    ) -> Self {
        let mut strays = Self::default();
        if passed.is_empty() {
            return strays;
        }
        let tenants =
            || desired.accounts.iter().flat_map(|(id, it)| it.clusters.iter().map(move |(at, it)| (id, at, it)));
        let wanted: BTreeSet<&ObjectKey> = tenants().flat_map(|(_, _, tenant)| tenant.objects.keys()).collect();
        let left: Vec<_> =
            passed.into_iter().filter(|(key, found)| stays(key, found) && !wanted.contains(key)).collect();
        if left.is_empty() {
            return strays;
        }
        let own = tenants().filter_map(|(id, at, it)| Some(((at, it.namespace.as_ref()?.as_str()), (id, at))));
        let adopted = ledger.adopted.iter().filter_map(|((at, name), row)| {
            let (id, it) = desired.accounts.get_key_value(row.account.as_ref()?)?;
            Some(((at, name.as_str()), (id, it.clusters.get_key_value(at)?.0)))
        });
        let places: BTreeMap<(&ClusterName, &str), (&AccountId, &ClusterName)> = own.chain(adopted).collect();
        // A time further in the future comes from a wrong clock, and is ignored.
        let learned_at = ledger.learned_at.filter(|at| at.duration_since(now) <= GRACE);
        let waits = learned_at.and_then(|at| at.checked_add(GRACE).ok()).filter(|until| *until > now);
        strays.waits = waits.is_some();
        let makers = Makers::of(policy, ledger, inventory);
        let is_proved = makers.all_have_answered(learned_at, now);
        for (key, found) in left {
            let is_binding = key.kind.stage() == Stage::Access;
            let owner = match &key.namespace {
                _ if !is_binding => None,
                Some(namespace) => places.get(&(&key.cluster, namespace.as_str())).copied(),
                None => holder(key, desired, ledger),
            };
            let maker = if is_binding && owner.is_none() { makers.of_binding(key) } else { None };
            let is_suspended = |(id, at): (&AccountId, &ClusterName)| desired.accounts[id].clusters[at].suspended;
            let what = match owner {
                Some(place) if is_suspended(place) => "it is removed: its account is suspended".to_owned(),
                _ if owner.is_some() || maker.is_some() => {
                    let when = match waits {
                        Some(until) => format!(" after {until:.0}"),
                        None if maker.is_some() && !is_proved => " after a complete read of every directory".to_owned(),
                        None => String::new(),
                    };
                    format!("it is removed{when}, within the limits")
                }
                _ if !is_binding => "delete it if nobody needs it, or remove the label".to_owned(),
                _ => format!("if nobody needs it, run `{}`", key.deletion()),
            };
            strays.said.push(Unknown { cluster: key.cluster.clone(), object: key.said(), what });
            if let Some(place) = owner {
                strays.bindings.entry(place).or_default().push((key, found));
            } else if let Some(maker) = maker.filter(|_| waits.is_none() && is_proved) {
                strays.ownerless.entry(maker).or_default().push((key, found));
            }
        }
        strays.said.sort();
        strays
    }

    /// Returns the removal of unknown bindings that belong to the account in the cluster. If the tenant is suspended,
    /// or somebody loses access to it, the bindings are removed at once, without [`GRACE`], because they may name the
    /// person or the generation that has to leave.
    pub(super) fn removals(&self, look: Look<'_>) -> Vec<Action> {
        let Look { id, cluster, .. } = look;
        let suspended = look.tenant.suspended;
        if self.waits && !suspended && !has_to_leave(look.ledger, id, &look.account.intent) {
            return Vec::new();
        }
        let reason = if suspended { Reason::Suspended } else { Reason::Orphaned };
        let bindings = self.bindings.get(&(id, cluster)).into_iter().flatten();
        let remove = |(key, found): &(&ObjectKey, &ObservedObject)| Action::Delete {
            key: (*key).clone(),
            uid: found.uid.to_string(),
            reason: reason.clone(),
        };
        bindings.map(remove).collect()
    }
}

/// Whether the object has an effect without a record. A binding that is being deleted gives its rights as long as a
/// finalizer keeps it and it names somebody.
pub(super) fn stays(key: &ObjectKey, found: &ObservedObject) -> bool {
    !found.deleting || (key.kind.stage() == Stage::Access && !found.is_emptied())
}

/// Returns the account of a `ClusterRoleBinding` by its name, `bursar-ROLE:KIND:NAME`.
fn holder<'a>(
    key: &ObjectKey,
    desired: &'a DesiredState,
    ledger: &LedgerState,
) -> Option<(&'a AccountId, &'a ClusterName)> {
    let (_, kind, name) = cluster_wide(key)?;
    let mut named = ledger.accounts.values().filter(|it| it.kubernetes_name == name && it.kind == kind);
    let (id, account) = named.find_map(|it| desired.accounts.get_key_value(&it.id))?;
    Some((id, account.clusters.get_key_value(&key.cluster)?.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::AccountKind;
    use crate::kinds::ManagedKind;
    use crate::plan::testing::{World, prod};

    fn binding(namespace: &str) -> ObjectKey {
        ObjectKey::new(&prod(), ManagedKind::RoleBinding, Some(namespace), "bursar-admin")
    }

    fn world() -> World {
        let (mut world, _) = World::with_foo();
        world.cycle();
        assert!(world.plan().unknown.is_empty());
        let found = ObservedObject { uid: "stray".into(), ..ObservedObject::default() };
        world.cluster().objects.insert(binding("tool-foo"), found.clone());
        world.cluster().objects.insert(binding("tool-gone"), found.clone());
        world.cluster().objects.insert(
            ObjectKey::namespace(&prod(), &"tool-gone".to_owned().try_into().expect("the text is a namespace name")),
            found,
        );
        world
    }

    /// Returns the namespaces whose unknown binding is still there.
    fn there(world: &World) -> Vec<&'static str> {
        let objects = &world.inventory.clusters[&prod()].objects;
        ["tool-foo", "tool-gone"].into_iter().filter(|namespace| objects.contains_key(&binding(namespace))).collect()
    }

    #[test]
    fn unknown_bindings_are_removed_within_the_limits_and_other_objects_reported() {
        let mut world = world();
        let plan = world.plan();
        assert_eq!(plan.unknown.len(), 3, "{plan}");
        assert!(
            plan.to_string().contains("rolebinding tool-gone/bursar-admin in prod carries Bursar's label"),
            "{plan}"
        );
        world.policy.limits.remove_access_per_cycle = crate::policy::Limit { count: 0, percent: None };
        world.cycle();
        assert_eq!(there(&world), ["tool-foo", "tool-gone"], "the limit keeps the bindings");
        world.policy.limits.remove_access_per_cycle = crate::policy::Limit { count: 1, percent: None };
        world.cycle();
        assert!(there(&world).is_empty());
        let plan = world.plan();
        assert!(plan.is_empty() && plan.unknown.len() == 1, "{plan}");
    }

    #[test]
    fn unknown_bindings_are_kept_for_a_day_after_a_takeover() {
        let mut world = world();
        world.ledger.learned_at = Some(world.now);
        assert!(world.plan().is_empty(), "{}", world.plan());
        world.now += SignedDuration::from_hours(23);
        world.cycle();
        assert_eq!(there(&world), ["tool-foo", "tool-gone"]);
        world.now += SignedDuration::from_hours(2);
        world.cycle();
        assert!(there(&world).is_empty());
    }

    #[test]
    fn unknown_bindings_are_removed_at_once_if_a_credential_is_revoked_or_a_member_leaves() {
        let mut world = world();
        let (foo, ann) = (world.id(AccountKind::Tool, "foo"), world.add(AccountKind::User, "ann", Some(20_001)));
        world.join(&foo, &ann);
        world.policy.limits.remove_access_per_day = crate::policy::Limit { count: 9, percent: None };
        world.cycle();
        world.cluster().objects.insert(binding("tool-foo"), ObservedObject::default());
        world.ledger.learned_at = Some(world.now);
        let is_removed = |world: &World| {
            let mut world = world.clone();
            world.cycle();
            !world.cluster().objects.contains_key(&binding("tool-foo"))
        };
        assert!(!is_removed(&world));
        let mut leaves = world.clone();
        let ann = leaves.account(&ann).directory_id.clone();
        leaves.account(&foo).leaving.insert(ann);
        assert!(is_removed(&leaves));
        leaves.policy.limits.remove_members_per_cycle = crate::policy::Limit { count: 0, percent: None };
        assert!(!is_removed(&leaves), "the member stays for now");
        let mut revoked = world.clone();
        revoked.order(&foo, crate::ledger::OrderKind::Revoke);
        assert!(is_removed(&revoked));
        // No limit, no hold and no kill of the daemon delays a revocation.
        revoked.policy.limits.remove_access_per_cycle = crate::policy::Limit { count: 0, percent: None };
        assert!(is_removed(&revoked), "the limit is 0");
        let mut killed = revoked.clone();
        let (approved, _) = killed.guarded();
        killed.execute_until(&approved, 0);
        assert!(is_removed(&killed), "the daemon was killed");
        for mut held in [revoked, killed] {
            held.hold(&foo);
            assert!(is_removed(&held), "the account is held");
        }
        world.ledger.learned_at = None;
        world.policy.limits.remove_access_per_cycle = crate::policy::Limit { count: 0, percent: None };
        assert!(!is_removed(&world), "nobody has to leave");
    }

    #[test]
    fn an_unknown_binding_that_a_finalizer_keeps_is_reported_until_it_names_nobody() {
        let mut world = world();
        let kept = |emptied| ObservedObject {
            uid: "stray".into(),
            deleting: true,
            rare: crate::inventory::Rare { emptied, ..Default::default() }.if_any(),
            ..ObservedObject::default()
        };
        let bindings = ["tool-foo", "tool-gone"].map(binding);
        for key in &bindings {
            world.cluster().objects.insert(key.clone(), kept(false));
        }
        let plan = world.plan();
        assert_eq!(plan.unknown.len(), 3, "{plan}");
        let deletes = |action: &Action| matches!(action, Action::Delete { key, .. } if *key == binding("tool-foo"));
        assert!(plan.accounts.iter().any(|plan| plan.steps().any(deletes)), "{plan}");
        for key in &bindings {
            world.cluster().objects.insert(key.clone(), kept(true));
        }
        let plan = world.plan();
        assert!(plan.is_empty() && plan.unknown.len() == 1, "{plan}");
    }

    #[test]
    fn a_takeover_dated_in_the_future_gives_no_grace() {
        let mut world = world();
        world.ledger.learned_at = Some(world.now + SignedDuration::from_hours(60 * 24));
        world.cycle();
        assert!(!world.cluster().objects.contains_key(&binding("tool-foo")));
    }

    #[test]
    fn unknown_bindings_of_a_suspended_tenant_are_removed_without_grace() {
        let (mut world, foo) = World::with_foo();
        let bar = world.add(AccountKind::Tool, "bar", Some(52_504));
        world.cycles(2);
        world.ledger.learned_at = Some(world.now);
        world.ledger.objects.clear();
        world.account(&foo).disabled = Some("mark".to_owned());
        world.policy.limits.remove_access_per_cycle = crate::policy::Limit { count: 0, percent: None };
        world.cluster().objects.insert(binding("tool-bar"), ObservedObject::default());
        let plan = world.plan();
        assert!(plan.unknown.iter().any(|it| it.what.contains("its account is suspended")), "{:?}", plan.unknown);
        world.cycle();
        let is_bound = |world: &World, tool: &str| {
            world.bound.keys().any(|key| key.namespace.as_deref().is_some_and(|it| it == format!("tool-{tool}")))
        };
        assert!(!is_bound(&world, "foo") && is_bound(&world, "bar"));
        assert!(world.cluster().objects.contains_key(&binding("tool-bar")), "a held account gets the grace period");
        // The new records are lost too, and both accounts are held.
        let note = world.note("r");
        world.ledger.holds.extend([(foo, note.clone()), (bar, note)]);
        let stray = ObservedObject { uid: "stray".to_owned().into(), ..ObservedObject::default() };
        world.cluster().objects.insert(binding("tool-foo"), stray);
        world.cycle();
        assert!(!world.cluster().objects.contains_key(&binding("tool-foo")));
    }

    #[test]
    fn a_desired_object_missing_from_the_ledger_is_written_and_not_unknown() {
        let (mut world, _) = World::with_foo();
        world.cycle();
        world.ledger.objects.clear();
        let plan = world.plan();
        assert!(plan.unknown.is_empty(), "{plan}");
    }
}
