//! Quotas in a plan: changes of amounts, edits that are adopted, quotas below the present use, and overrides that end.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::tenant::Look;
use crate::desired::DesiredObject;
use crate::identity::{AccountId, AccountName, ClusterName};
use crate::inventory::ObservedObject;
use crate::inventory::quota::ObservedQuota;
use crate::json_text::JsonText;
use crate::ledger::change::{Change, Event};
use crate::ledger::quota::{OverrideKey, QuotaOverride, UNKNOWN, day};
use crate::ledger::{LedgerState, Note, ObjectRecord};
use crate::policy::DriftMode;
use crate::quantity::{compare, is_count, is_counted, is_quantity, is_resource};

/// An amount that somebody else wrote into a quota and that becomes an override.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Adoption {
    pub cluster: ClusterName,
    /// Name of the resource in `spec.hard`.
    pub resource: String,
    /// The amount that Bursar had written; `None` if the resource had no limit.
    pub before: Option<String>,
    /// The amount in the cluster.
    pub amount: String,
    /// The programs (field managers) that wrote the amount.
    pub editors: Vec<String>,
}

/// A quota that is lower than the present use. Kubernetes does not stop pods because of such a quota, but admits no new
/// ones.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OverQuota {
    pub account: AccountName,
    pub cluster: ClusterName,
    pub namespace: String,
    /// Name of the resource in `spec.hard`.
    pub resource: String,
    /// The desired amount.
    pub amount: String,
    /// The amount in use, as the API server counts it.
    pub used: String,
}

impl std::fmt::Display for OverQuota {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { account: _, cluster, namespace, resource, amount, used } = self;
        write!(
            f,
            "quota {resource} {amount} is below the {used} in use in namespace {namespace} of cluster {cluster}: \
             running pods continue, and new ones are refused"
        )
    }
}

/// Returns the resources whose amounts somebody else changed and that may become overrides, each with the amount that
/// Bursar had written.
pub(super) fn edits(
    wanted: &DesiredObject,
    record: &ObjectRecord,
    found: &ObservedObject,
) -> BTreeMap<String, Option<String>> {
    let (Some(quota), DriftMode::Adopt) = (found.quota(), wanted.drift) else { return BTreeMap::new() };
    let Some(written) = record.detail.as_ref().filter(|_| !quota.edited.is_empty()) else { return BTreeMap::new() };
    let (written, ours) = (amounts(written), amounts_of(wanted));
    let is = |there: Option<&String>, amount: &str| there.is_some_and(|there| same(there, amount));
    let edited = quota.edited.iter().filter(|(resource, amount)| {
        let (resource, amount) = (resource.as_str(), amount.as_str());
        let known = is_resource(resource) && is_quantity(amount) && (!is_counted(resource) || is_count(amount));
        known
            && !wanted.locked.contains(resource)
            && !is(written.get(resource), amount)
            && !is(ours.get(resource), amount)
    });
    edited.map(|(resource, _)| (resource.clone(), written.get(resource).cloned())).collect()
}

/// Returns [`edits`] in the form of the plan.
pub(super) fn adopted(
    look: Look<'_>,
    wanted: &DesiredObject,
    record: &ObjectRecord,
    found: &ObservedObject,
) -> Vec<Adoption> {
    let Some(quota) = found.quota() else { return Vec::new() };
    let adoption = |(resource, before): (String, Option<String>)| Adoption {
        cluster: look.cluster.clone(),
        amount: quota.edited.get(&resource).cloned().unwrap_or_default(),
        resource,
        before,
        editors: quota.editors.clone(),
    };
    edits(wanted, record, found).into_iter().map(adoption).collect()
}

impl Adoption {
    /// Returns a text such as `pods 16 → 32`.
    pub(super) fn said(&self) -> String {
        step(&self.resource, self.before.as_deref(), Some(&self.amount))
    }

    pub(super) fn given(&self, account: &AccountId, now: Timestamp) -> (OverrideKey, QuotaOverride) {
        let key = OverrideKey {
            account: account.clone(),
            resource: self.resource.clone(),
            cluster: Some(self.cluster.clone()),
        };
        let reason = format!("edited in cluster {} with {}", self.cluster, self.editors.join(", "));
        let note = Note { actor: UNKNOWN.to_owned(), reason, ticket: None, at: now };
        (key, QuotaOverride { amount: self.amount.clone(), until: None, note, proved: None })
    }
}

/// Returns a text such as `limits.cpu 2 → 8 (override T123 until 2027-01-01)` for each amount that differs from
/// `before`.
pub(super) fn changed(look: Look<'_>, wanted: &DesiredObject, before: &Amounts) -> Vec<String> {
    let after = amounts_of(wanted);
    let resources = before.keys().chain(after.keys()).collect::<std::collections::BTreeSet<_>>();
    let differs = resources.into_iter().filter(|resource| match (before.get(*resource), after.get(*resource)) {
        (Some(before), Some(after)) => !same(before, after),
        (before, after) => before != after,
    });
    differs
        .map(|resource| {
            let amount = |of: &'_ Amounts| of.get(resource).cloned();
            let (before, after) = (amount(before), amount(&after));
            let (before, after) = (before.as_deref(), after.as_deref());
            let step = step(resource, before, after);
            match override_of(look, resource, after) {
                Some(by) => format!("{step} ({by})"),
                None => step,
            }
        })
        .collect()
}

/// Like [`changed`], for somebody else's edits that are reverted.
pub(super) fn reverted(look: Look<'_>, wanted: &DesiredObject, found: &ObservedObject) -> Vec<String> {
    let edited = found.quota().map(|quota| quota.edited.clone()).filter(|edited| !edited.is_empty());
    let amounts = edited.map(|mut edited| {
        // Resources that Bursar does not set belong to the editor, and stay.
        let ours = amounts_of(wanted);
        edited.retain(|resource, _| ours.contains_key(resource));
        changed(look, wanted, &edited)
    });
    amounts.unwrap_or_default()
}

fn override_of(look: Look<'_>, resource: &str, amount: Option<&str>) -> Option<String> {
    let given = look.ledger.overrides_in(look.id, look.cluster).get(resource).copied();
    if let Some(given) = given.filter(|given| Some(given.amount.as_str()) == amount) {
        return Some(given.said());
    }
    let mut known = look.ledger.overrides_of(look.id).filter(|(key, _)| key.resource == resource);
    let ended = known.find(|(_, given)| !given.is_in_force()).map(|(_, given)| given)?;
    let by = ended.note.ticket.clone().unwrap_or_else(|| format!("by {}", ended.note.actor));
    Some(format!("override {by} ended"))
}

fn step(resource: &str, before: Option<&str>, after: Option<&str>) -> String {
    let amount = |amount: Option<&str>| amount.unwrap_or("no limit").to_owned();
    format!("{resource} {} → {}", amount(before), amount(after))
}

/// Returns the resources whose use exceeds the desired quota: name, amount, and use.
pub(super) fn over(wanted: &DesiredObject, quota: &ObservedQuota) -> Vec<(String, String, String)> {
    let hard = amounts_of(wanted);
    let more = quota.used.iter().filter_map(|(resource, used)| {
        let amount = hard.get(resource)?;
        let is_more = compare(used, amount) == Some(Ordering::Greater);
        is_more.then(|| (resource.clone(), amount.clone(), used.clone()))
    });
    more.collect()
}

/// Returns the changes that remove expired overrides and exceptions from the ledger, with their events. Overrides and
/// exceptions of held accounts stay.
#[must_use]
pub fn lapsed(ledger: &LedgerState) -> (Vec<Change>, Vec<Event>) {
    let is_touched = |account: &AccountId| !ledger.holds.contains_key(account);
    let ended = ledger.overrides.iter().filter(|(key, given)| is_touched(&key.account) && !given.is_in_force());
    let change = |(key, given): (&OverrideKey, &QuotaOverride)| {
        let detail = json!({"resource": key.resource, "amount": given.amount, "cluster": key.cluster});
        let event = ended_event(ledger, &key.account, "quota override ended", (given.until, &given.note), detail);
        (Change::Override(key.clone(), None), event)
    };
    let over = ledger.exceptions.iter().filter(|(key, given)| is_touched(&key.account) && !given.term().is_running());
    let over = over.map(|(key, given)| {
        let detail = json!({"rule": key.rule, "cluster": key.cluster});
        let mut event = ended_event(ledger, &key.account, "exception ended", (Some(given.until), &given.note), detail);
        event.reason.push_str("; objects that it admitted stay, and `bursar webhook audit` lists them");
        (Change::Exception(key.clone(), None), event)
    });
    ended.map(change).chain(over).unzip()
}

fn ended_event(
    ledger: &LedgerState,
    id: &AccountId,
    action: &str,
    (until, note): (Option<Timestamp>, &Note),
    detail: Value,
) -> Event {
    Event {
        account: ledger.accounts.get(id).map(crate::ledger::Account::account_name),
        account_id: Some(id.clone()),
        ticket: note.ticket.clone(),
        ..Event::new(action, format!("it was given until {}", until.map(day).unwrap_or_default()), detail)
    }
}

fn same(one: &str, other: &str) -> bool {
    one == other || compare(one, other) == Some(Ordering::Equal)
}

/// The amounts of a quota by resource.
pub(super) type Amounts = BTreeMap<String, String>;

pub(super) fn amounts(hard: &JsonText) -> Amounts {
    let hard = hard.value();
    let fields = hard.as_object().into_iter().flatten();
    fields.filter_map(|(resource, amount)| Some((resource.clone(), amount.as_str()?.to_owned()))).collect()
}

fn amounts_of(wanted: &DesiredObject) -> Amounts {
    wanted.hard.as_ref().map(amounts).unwrap_or_default()
}
