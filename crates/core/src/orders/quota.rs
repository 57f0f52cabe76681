//! Records quota overrides that an administrator sets or removes.

use serde_json::json;

use super::{OrderOutcome, event, is_to_come, refused};
use crate::desired::quota::{class_of, without_default};
use crate::desired::{classes_if_asked, classes_of};
use crate::identity::ClusterName;
use crate::ledger::change::{Change, Event};
use crate::ledger::quota::{OverrideKey, QuotaOverride};
use crate::ledger::{Account, LedgerState, Lifecycle, Note};
use crate::orders::request::{QuotaSet, QuotaUnset, RequestRefusal};
use crate::policy::{Class, Policy};
use crate::quantity::{is_count, is_counted, is_quantity, is_resource};

/// Sets an override for each resource. If any of these overrides is invalid, none is set.
pub(super) fn set(
    ledger: &LedgerState,
    policy: &Policy,
    account: &Account,
    set: &QuotaSet,
    note: &Note,
) -> Result<OrderOutcome, RequestRefusal> {
    let QuotaSet { target: _, amounts, until, cluster } = set;
    let name = account.account_name();
    let class = class_for(account, ledger, policy, cluster.as_ref(), "it has no quota", class_of)?;
    until.map_or(Ok(()), |until| is_to_come(until, note.at))?;
    if amounts.is_empty() {
        return refused(64, "no amount is given; for example limits.cpu=8".to_owned());
    }
    let mut outcome = OrderOutcome::default();
    let mut texts = Vec::new();
    for (resource, amount) in amounts {
        takes(class, resource, amount)?;
        let key = OverrideKey { account: account.id.clone(), resource: resource.clone(), cluster: cluster.clone() };
        let given = QuotaOverride { amount: amount.clone(), until: *until, note: note.clone(), proved: None };
        let before = ledger.overrides.get(&key).map(|before| &before.amount).or_else(|| class.quota.get(resource));
        texts.push(format!("{resource} {} → {amount} ({})", before.map_or("no limit", String::as_str), given.said()));
        let detail = json!({
            "resource": resource, "before": before, "amount": amount, "until": until, "cluster": cluster,
        });
        outcome.events.push(Event { detail: detail.into(), ..event(Some(account), "quota override set", note) });
        outcome.changes.push(Change::Override(key, Some(given)));
    }
    outcome.text = format!("{name}: {}", texts.join(", "));
    let added = amounts.keys().filter(|resource| !class.quota.contains_key(*resource));
    let trap = without_default(class, added.map(String::as_str));
    if !trap.is_empty() {
        let (trap, class) = (trap.join(", "), &class.name);
        let what = format!(
            "; pods that do not name {trap} themselves are refused from now on: class {class} has no default for it \
             (limit_range in bursar.toml)"
        );
        outcome.text.push_str(&what);
    }
    Ok(outcome)
}

/// Removes overrides, so that the class's amounts apply again. If any of these overrides does not exist, none is
/// removed.
pub(super) fn unset(
    ledger: &LedgerState,
    account: &Account,
    unset: &QuotaUnset,
    note: &Note,
) -> Result<OrderOutcome, RequestRefusal> {
    let QuotaUnset { target: _, resources, cluster } = unset;
    let name = account.account_name();
    let mut outcome = OrderOutcome::default();
    for resource in resources {
        let is_meant = |key: &OverrideKey| key.resource == *resource && (cluster.is_none() || key.cluster == *cluster);
        let before = outcome.changes.len();
        for (key, given) in ledger.overrides_of(&account.id).filter(|(key, _)| is_meant(key)) {
            let detail = json!({"resource": resource, "before": given.amount, "cluster": key.cluster});
            outcome.events.push(Event { detail: detail.into(), ..event(Some(account), "quota override unset", note) });
            outcome.changes.push(Change::Override(key.clone(), None));
        }
        if outcome.changes.len() == before {
            return not_given(account, &format!("override of {resource}"), cluster.as_ref(), "quota");
        }
    }
    outcome.text = format!("{name}: no override of {} any more", resources.join(", "));
    Ok(outcome)
}

/// Returns the class that `choose` selects among the classes that give the account a namespace in `cluster`. If the
/// account gets no namespace, the text of the refusal ends with `without`.
pub(super) fn class_for<'p>(
    account: &Account,
    ledger: &LedgerState,
    policy: &'p Policy,
    cluster: Option<&ClusterName>,
    without: &str,
    choose: impl FnOnce(&[&'p Class]) -> Option<&'p Class>,
) -> Result<&'p Class, RequestRefusal> {
    let name = account.account_name();
    if account.state == Lifecycle::Deleted {
        return refused(1, format!("{name} is deleted: {without}"));
    }
    let mut classes = classes_of(account, ledger, policy);
    if classes.is_empty() {
        // No request for the account was made yet. Once the account is created, the order applies from the beginning.
        classes = classes_if_asked(account, ledger, policy);
    }
    let Some(class) = choose(&classes) else {
        return refused(1, format!("{name} gets no namespace from any class, so {without}"));
    };
    known(policy, account, &classes, cluster)?;
    Ok(class)
}

/// Refuses to remove something that the account does not have. `list` is the command that lists what the account has.
pub(super) fn not_given<T>(
    account: &Account,
    what: &str,
    cluster: Option<&ClusterName>,
    list: &str,
) -> Result<T, RequestRefusal> {
    let (name, place) = (account.account_name(), cluster.map(|cluster| format!(" for cluster {cluster}")));
    let place = place.unwrap_or_default();
    refused(1, format!("{name} has no {what}{place}; `bursar {list} list` shows those that exist"))
}

/// Refuses a cluster that none of the classes covers.
fn known(
    policy: &Policy,
    account: &Account,
    classes: &[&Class],
    cluster: Option<&ClusterName>,
) -> Result<(), RequestRefusal> {
    let Some(cluster) = cluster else { return Ok(()) };
    let there = policy.clusters.contains_key(cluster);
    if there && classes.iter().any(|class| class.clusters.contains(cluster)) {
        return Ok(());
    }
    let all: Vec<&str> = classes.iter().flat_map(|class| &class.clusters).map(|name| name.0.as_str()).collect();
    let name = account.account_name();
    refused(64, format!("{name} has no place in cluster {cluster}; its clusters: {}", all.join(", ")))
}

/// Refuses an amount that the class does not allow for the resource.
fn takes(class: &Class, resource: &str, amount: &str) -> Result<(), RequestRefusal> {
    if !is_resource(resource) {
        return refused(64, format!("{resource:?} is not a resource of a quota; use a name such as limits.cpu"));
    }
    if !is_quantity(amount) || (is_counted(resource) && !is_count(amount)) {
        return refused(64, format!("{resource}: {amount:?} is not a quantity; for example {resource}=16"));
    }
    if class.quota_locked.contains(resource) {
        return refused(
            64,
            format!("{resource} cannot be overridden: quota_locked of class {} in bursar.toml names it", class.name),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::identity::AccountKind;
    use crate::orders::request::Target;
    use crate::plan::testing::World;

    #[test]
    fn an_override_of_a_resource_without_a_default_warns() {
        let (mut world, foo) = World::with_foo();
        let note = world.note("");
        let told = |world: &World, resource: &str| {
            let target = Target { kind: AccountKind::Tool, name: "foo".to_owned(), reason: None, ticket: None };
            let amounts = BTreeMap::from([(resource.to_owned(), "8".to_owned())]);
            let order = QuotaSet { target, amounts, until: None, cluster: None };
            set(&world.ledger, &world.policy, &world.ledger.accounts[&foo], &order, &note)
                .expect("there is an override")
                .text
        };
        assert!(!told(&world, "limits.cpu").contains("are refused"), "the class has a default");
        let class = world.class("tool");
        class.limit_range = None;
        class.quota.remove("limits.cpu");
        assert!(told(&world, "limits.cpu").contains("pods that do not name limits.cpu themselves are refused"));
        assert!(!told(&world, "pods").contains("are refused"));
    }
}
