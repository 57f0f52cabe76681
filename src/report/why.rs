//! Explains what an account has: the steps from the directory entry and the class to each object, or the step that
//! fails.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::desired::quota::class_of;
use crate::desired::{classes_of, credential};
use crate::identity::{AccountId, AccountKind};
use crate::ledger::adopted::AdoptedNamespace;
use crate::ledger::exception::{Exception, ExceptionKey};
use crate::ledger::quota::{OverrideKey, QuotaOverride, day};
use crate::ledger::realm::RealmAccount;
use crate::ledger::{Account, CredentialKey, Ending, LedgerState, Lifecycle, Suspension};
use crate::plan::pace::PolicyProgress;
use crate::policy::{Class, Policy, Provision, When};
use crate::report::unfinished;
use crate::select::selects;
use crate::snapshot::Completeness;

/// One step of the explanation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The part that the step concerns, for example `directory`, `class.tool` or `certificate`.
    pub at: String,
    /// Whether the step succeeded.
    pub ok: bool,
    /// What was found, or what is missing.
    pub text: String,
}

impl Step {
    fn new(at: impl Into<String>, ok: bool, text: impl Into<String>) -> Self {
        Self { at: at.into(), ok, text: text.into() }
    }
}

/// Explains why the ledger has no account with this name: what the directories last said about it.
#[must_use]
pub fn unknown(kind: AccountKind, name: &str, ledger: &LedgerState) -> Vec<Step> {
    let rejected =
        ledger.rejected.iter().filter(|entry| entry.kind == kind && entry.name.as_deref() == Some(name)).map(|entry| {
            Step::new(format!("source {}", entry.source), false, format!("{} is rejected: {}", entry.dn, entry.why))
        });
    let mut steps: Vec<Step> = rejected.collect();
    if steps.is_empty() {
        steps.extend(ledger.sources.iter().map(|(source, state)| {
            let why = match &state.completeness {
                Completeness::Complete => "has no such entry".to_owned(),
                Completeness::Partial { why } => format!("is partial, and may have it: {why}"),
                Completeness::Stale { server, why } => {
                    format!("was not used, because server {server} is behind: {why}")
                }
            };
            Step::new(format!("source {source}"), false, format!("{why} (read {:.0})", state.read_at))
        }));
    }
    if steps.is_empty() {
        steps.push(Step::new("directory", false, "no source was read yet"));
    }
    steps
}

/// Returns the steps of an account in the ledger.
#[must_use]
pub fn chain(account: &Account, ledger: &LedgerState, policy: &Policy) -> Vec<Step> {
    let mut steps = vec![entry(account, ledger), identity(account), life(account, ledger)];
    let classes = policy.classes.values().filter(|class| class.from.account_kind() == Some(account.kind));
    let rules: Vec<Step> = classes.map(|class| rule(account, ledger, class)).collect();
    let is_taken = rules.iter().any(|rule| rule.ok);
    if !is_taken {
        steps.push(Step::new("class", false, format!("no class takes this {}", account.kind)));
    }
    steps.extend(rules);
    steps.extend(overrides(account, ledger, policy));
    steps.extend(exceptions(account, ledger, policy));
    steps.extend(pace(account, ledger));
    steps.extend(adopted(account, ledger));
    let objects = objects(account, ledger);
    if is_taken && objects.is_empty() {
        steps.push(Step::new("objects", false, "none were made yet"));
    }
    steps.extend(objects);
    steps.extend(credentials(account, ledger));
    steps.extend(realm(account, ledger));
    steps.extend(archives(account, ledger));
    let name = account.account_name();
    let unfinished = unfinished::all(ledger, policy, &BTreeMap::new()).into_iter().filter(|one| one.account == name);
    steps.extend(unfinished.map(|one| {
        let by =
            one.by.as_ref().map(|note| format!(", ordered by {}: {}", note.actor, note.reason)).unwrap_or_default();
        Step::new(one.what.clone(), false, format!("not done yet{by}; waits for {}", one.waits_for.join("; ")))
    }));
    let failures = ledger.failures.iter().filter(|((id, _), _)| *id == account.id);
    // A suspension that has begun is already listed above as not done yet.
    let failures = failures.filter(|(_, failure)| failure.attempts > 0 || !failure.is_begun());
    steps.extend(failures.map(|((_, cluster), failure)| {
        let text = format!(
            "fails in {cluster} since {:.0}: {}; again at {:.0}",
            failure.since, failure.reason, failure.next_try
        );
        Step::new(&failure.step, false, text)
    }));
    steps
}

fn entry(account: &Account, ledger: &LedgerState) -> Step {
    let at = format!("source {}", account.source);
    let rejected = ledger.rejected.iter().find(|entry| entry.id.as_ref() == Some(&account.directory_id));
    match (rejected, &account.absence) {
        (Some(entry), _) => {
            Step::new(at, false, format!("{} is rejected, the last good identity stays: {}", entry.dn, entry.why))
        }
        (None, Some(absence)) => Step::new(at, false, format!("{} is missing since {:.0}", account.dn, absence.since)),
        (None, None) => Step::new(at, true, format!("{} (id {})", account.dn, account.directory_id)),
    }
}

fn identity(account: &Account) -> Step {
    let home = account.home.as_ref().map_or_else(|| "no home".to_owned(), |home| format!("home {}", home.display()));
    match &account.posix {
        Some(posix) => Step::new("identity", true, format!("uid {}, gid {}, {home}", posix.uid, posix.gid)),
        None => Step::new("identity", account.kind == AccountKind::Group, format!("no uid of its own, {home}")),
    }
}

fn life(account: &Account, ledger: &LedgerState) -> Step {
    let since = format!("{} since {:.0}", account.state.as_str(), account.since);
    let good = matches!(account.state, Lifecycle::New | Lifecycle::Active);
    if let Some(held) = ledger.holds.get(&account.id) {
        return Step::new("life", false, format!("{since}, held by {}: {}", held.actor, held.reason));
    }
    match (account.suspension.as_deref(), &account.disabled) {
        (Some(Suspension::Absent), _) => Step::new("life", false, format!("{since}: missing from the directory")),
        (Some(Suspension::Disabled { mark }), _) | (None, Some(mark)) => {
            Step::new("life", false, format!("{since}: disabled in the directory by {mark}"))
        }
        (Some(Suspension::Idle { since: idle }), _) => {
            let text = format!("{since}: nothing ran since {idle:.0}; `bursar resume` or `bursar ensure` ends it");
            Step::new("life", false, text)
        }
        (Some(Suspension::Left), _) => Step::new("life", false, format!("{since}: no class takes it any more")),
        (Some(suspension @ (Suspension::Ordered { note, .. } | Suspension::Evicted { note, .. })), _) => {
            let ends = if suspension.term().is_some() { "ends it earlier" } else { "ends it" };
            let end = suspension.end();
            let text = format!("{since}{end}: ordered by {}: {}; `bursar resume` {ends}", note.actor, note.reason);
            Step::new("life", false, text)
        }
        (None, None) => Step::new("life", good, since),
    }
}

/// Returns a step for each user of the account in a Keycloak realm.
fn realm(account: &Account, ledger: &LedgerState) -> Vec<Step> {
    let users = ledger.realm_accounts.iter().filter(|((id, _), _)| *id == account.id);
    let step = |((_, realm), user): (&(AccountId, String), &RealmAccount)| {
        let Some(id) = &user.user_id else {
            return Step::new("realm", false, format!("{realm}: its user is not made yet"));
        };
        let state = if user.enabled { "enabled" } else { "disabled, because its account is disabled" };
        let origin = if user.adopted { "adopted" } else { "made by Bursar" };
        let mail = match (user.mail_due, user.mailed_at) {
            (_, Some(at)) => format!(", mail accepted {at:.0}"),
            (true, None) => ", mail not accepted yet".to_owned(),
            (false, None) => String::new(),
        };
        Step::new("realm", user.enabled, format!("user {} ({id}) in {realm}, {origin}, {state}{mail}", user.name))
    };
    users.map(step).collect()
}

/// Returns the account's archives, and the next step towards its deletion.
fn archives(account: &Account, ledger: &LedgerState) -> Vec<Step> {
    let next = match (account.state, account.ending) {
        (_, Some(Ending::Deletion { at })) => Some(format!("its deletion was approved {at:.0}")),
        (Lifecycle::Suspended, Some(Ending::Waits(counted))) => {
            Some(format!("archived {:.0} at the earliest", counted.due))
        }
        (Lifecycle::Archived, Some(Ending::Waits(counted))) => {
            Some(format!("deleted {:.0} at the earliest", counted.due))
        }
        _ => None,
    };
    let files = ledger.archives.iter().filter(|(_, archive)| archive.account == account.id);
    let files = files.map(|(file, archive)| {
        let text = format!("{} in {}, {:.0}: {file}", archive.namespace, archive.cluster, archive.at);
        Step::new("archive", true, text)
    });
    files.chain(next.map(|next| Step::new("end", false, next))).collect()
}

/// Says whether the class selects the account, and if not, why.
fn rule(account: &Account, ledger: &LedgerState, class: &Class) -> Step {
    let at = format!("class.{}", class.name);
    let in_group = |group: &str| is_member(ledger, group, account);
    if !selects(class, account.kind, &account.dn, in_group) {
        let text = match &class.when {
            Some(When::Group(group)) => format!("does not take it: it is not in group {group}"),
            Some(When::Base(base)) => format!("does not take it: it is not beneath {base}"),
            None => "does not take it".to_owned(),
        };
        return Step::new(at, false, text);
    }
    let pattern = class.name_pattern.0.as_str();
    if !class.name_pattern.0.is_match(&account.name) {
        return Step::new(at, false, format!("does not take it: name_pattern {pattern} does not fit"));
    }
    let clusters: Vec<&str> = class.clusters.iter().map(|cluster| cluster.0.as_str()).collect();
    let home = if class.home.is_none() { "; no kubeconfig: the class has no home" } else { "" };
    let asked = class.provision == Provision::Always || ledger.last_use.contains_key(&account.id);
    let wait = if asked {
        String::new()
    } else {
        format!("; nobody asked for it yet: bursar ensure {} {}", account.kind, account.name)
    };
    Step::new(at, true, format!("takes it, in {}{home}{wait}", clusters.join(", ")))
}

fn is_member(ledger: &LedgerState, group: &str, person: &Account) -> bool {
    let groups = ledger.accounts.values().filter(|account| account.kind == AccountKind::Group && account.name == group);
    groups.into_iter().any(|group| group.has_member(person) && !group.leaving.contains(&person.directory_id))
}

/// Returns the account's quota overrides, and who gave them.
fn overrides(account: &Account, ledger: &LedgerState, policy: &Policy) -> Vec<Step> {
    let classes = classes_of(account, ledger, policy);
    let class = class_of(&classes);
    let step = |(key, given): (&OverrideKey, &QuotaOverride)| {
        let before = class.and_then(|class| class.quota.get(&key.resource)).map_or("no limit", String::as_str);
        let place = key.cluster.as_ref().map(|cluster| format!(" in {cluster}")).unwrap_or_default();
        let note = &given.note;
        let why = if note.reason.is_empty() { String::new() } else { format!(": {}", note.reason) };
        let locked = class.is_some_and(|class| class.quota_locked.contains(&key.resource));
        let lock = if locked { "; not in force, because the class locks this resource" } else { "" };
        let text = format!(
            "{} {} instead of {before}{place}, {}, given by {} {:.0}{why}{lock}",
            key.resource,
            given.amount,
            given.said(),
            note.actor,
            note.at
        );
        Step::new("quota", !locked, text)
    };
    ledger.overrides_of(&account.id).map(step).collect()
}

/// Returns the account's exceptions from admission rules, and who gave them.
fn exceptions(account: &Account, ledger: &LedgerState, policy: &Policy) -> Vec<Step> {
    let classes = classes_of(account, ledger, policy);
    let class = classes.iter().find(|class| class.namespace.is_some());
    let step = |(key, given): (&ExceptionKey, &Exception)| {
        let place = key.cluster.as_ref().map(|cluster| format!(" in {cluster}")).unwrap_or_default();
        let Exception { until, note, proved: _ } = given;
        let by = note.ticket.clone().unwrap_or_else(|| note.reason.clone());
        let why_not = class.and_then(|class| class.excepts(key.rule).err());
        let not = why_not.map(|why| format!("; not in force: {why}")).unwrap_or_default();
        let (until, actor, at) = (day(*until), &note.actor, note.at);
        let text =
            format!("excepted from rule {}{place} until {until} ({by}), given by {actor} {at:.0}{not}", key.rule);
        Step::new("exception", why_not.is_none(), text)
    };
    ledger.exceptions_of(&account.id).map(step).collect()
}

/// Returns the changes of the policy that may not have reached the account yet.
fn pace(account: &Account, ledger: &LedgerState) -> Vec<Step> {
    let classes: BTreeSet<&str> = ledger.tenants_of(&account.id).map(|(_, tenant)| tenant.class.as_str()).collect();
    let under_way = PolicyProgress::of(ledger).into_iter().filter(|progress| classes.contains(progress.class.as_str()));
    under_way.map(|progress| Step::new("pace", progress.stopped_by.is_empty(), progress.to_string())).collect()
}

/// Returns the adopted namespaces whose annotation names the account as owner.
fn adopted(account: &Account, ledger: &LedgerState) -> Vec<Step> {
    let named = ledger.adopted.iter().filter(|(_, adopted)| adopted.named.as_ref() == Some(&account.id));
    let step = |((cluster, namespace), adopted): (&(_, _), &AdoptedNamespace)| {
        let said = adopted.owner.as_deref().unwrap_or_default();
        let text = format!("{namespace} in {cluster}, by class.{}: its annotation says {said:?}", adopted.class);
        match (&adopted.account, &adopted.why) {
            (Some(_), _) => Step::new("adopted", true, text),
            (None, Some(why)) => Step::new("adopted", false, format!("{text}; {why}")),
            (None, None) => Step::new("adopted", false, format!("{text}; it is being taken from its former owner")),
        }
    };
    named.map(step).collect()
}

/// Returns the account's objects, each with the key of the class that it comes from.
fn objects(account: &Account, ledger: &LedgerState) -> Vec<Step> {
    let classes = |cluster| ledger.tenants.get(&(account.id.clone(), cluster)).map(|tenant| tenant.class.clone());
    let objects = ledger.objects.iter().filter(|(_, record)| record.account == account.id);
    objects
        .map(|(key, _)| {
            let from = if credential::is_ours(key) { "credential" } else { key.kind.drift().as_str() };
            let adopted = ledger.adopted.iter().find(|((cluster, namespace), _)| {
                *cluster == key.cluster && key.namespace.as_deref() == Some(namespace.as_str())
            });
            let class = adopted.map(|(_, adopted)| adopted.class.clone()).or_else(|| classes(key.cluster.clone()));
            let class = class.unwrap_or_else(|| "?".to_owned());
            let place = key.namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
            let text = format!("{place}{} in {}, from class.{class}.{from}", key.name, key.cluster);
            Step::new(key.kind.as_str(), true, text)
        })
        .collect()
}

/// For example `prod` or `prod on ce1`.
fn place(key: &CredentialKey) -> String {
    if key.host.is_any() { key.cluster.to_string() } else { format!("{} on {}", key.cluster, key.host) }
}

fn credentials(account: &Account, ledger: &LedgerState) -> Vec<Step> {
    let certificates = ledger.certificates_of(&account.id).map(|(key, certificate)| {
        let place = place(key);
        let good = certificate.generation == account.generation && account.state == Lifecycle::Active;
        let text = format!(
            "{} in {place} until {:.0}, generation {}",
            certificate.subject, certificate.not_after, certificate.generation
        );
        let what = if certificate.bound_to.is_some() { "token" } else { "certificate" };
        Step::new(what, good, if good { text } else { text + ": no longer valid" })
    });
    let present = ledger.deliveries_of(&account.id).filter(|(_, delivery)| !delivery.is_removed());
    let deliveries = present.map(|(key, delivery)| {
        let place = place(key);
        let path = delivery.path.display();
        match delivery.checked_at {
            _ if delivery.is_notice() => {
                Step::new("kubeconfig", false, format!("{path} for {place}: says that the account is suspended"))
            }
            Some(checked) => Step::new("kubeconfig", true, format!("{path} for {place}, checked {checked:.0}")),
            None => Step::new(
                "kubeconfig",
                false,
                format!("{path} for {place}: missing or changed at the last check; bursard writes it again"),
            ),
        }
    });
    certificates.chain(deliveries).collect()
}
