//! What is to be done for one account in one cluster, in the order in which it has to happen.
//!
//! First access goes: the seal and the quota that stop new pods, bindings, workloads, kubeconfig. Then come the namespace,
//! quota, policies and volumes, and only then access comes: bindings, workloads, certificate. Whatever fails leaves less
//! access than was wanted, never more.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::bound::Bindings;
use super::credential::{self, Standing};
use super::quota::{self, Adoption};
use super::scan::Scan;
use super::{Action, Reason, Side, adopted, ending, volume};
use crate::desired::credential::{is_ours, is_service_account, of_service_account};
use crate::desired::quota::stops_pods;
use crate::desired::{DesiredAccount, DesiredObject, DesiredTenant, DirectoryTarget, EndOfTenant, Proof, Transition};
use crate::digest::digest;
use crate::identity::{AccountId, ClusterName, NamespaceName};
use crate::inventory::{ClusterInventory, Inventory, ObservedObject};
use crate::json_text::JsonText;
use crate::kinds::{Data, Detail, ManagedKind, ObjectKey, ObjectKind, ObjectName, Stage};
use crate::ledger::{LedgerState, ObjectRecord, Suspension};
use crate::policy::DriftMode;

/// One place of one account, with everything that is known about it.
#[derive(Clone, Copy)]
pub(super) struct Look<'a> {
    pub(super) id: &'a AccountId,
    pub(super) account: &'a DesiredAccount,
    pub(super) cluster: &'a ClusterName,
    pub(super) tenant: &'a DesiredTenant,
    pub(super) ledger: &'a LedgerState,
    pub(super) there: &'a ClusterInventory,
    pub(super) inventory: &'a Inventory,
    pub(super) scan: &'a Scan<'a>,
    pub(super) bindings: &'a Bindings<'a>,
    pub(super) now: Timestamp,
    /// `scan` settles nothing.
    pub(super) closely: bool,
}

/// What the ledger recorded is what we want, and what the server said then is what it says now, as far as it says anything.
pub(super) fn is_as_wanted(
    there: &ClusterInventory,
    key: &ObjectKey,
    wanted: &DesiredObject,
    record: &ObjectRecord,
    found: Option<&ObservedObject>,
) -> bool {
    if there.is_blind_to(key) {
        return record.wanted == wanted.digest;
    }
    found.is_some_and(|found| is_settled(wanted, record, found))
}

/// What the ledger recorded is what we want, and what the server said then is what it says now.
fn is_settled(wanted: &DesiredObject, record: &ObjectRecord, found: &ObservedObject) -> bool {
    record.wanted == wanted.digest
        && record.observed == found.digest
        && record.uid == found.uid
        && !found.deleting
        && quota::edits(wanted, record, found).is_empty()
}

/// What is to be done in one place, and said of it.
#[derive(Default)]
pub(super) struct Found {
    /// What takes access away, which waits for nothing.
    pub(super) narrowing: Vec<Action>,
    /// Everything else, in the order in which it has to happen.
    pub(super) actions: Vec<Action>,
    pub(super) notices: Vec<String>,
    /// Edits that become overrides.
    pub(super) adopted: Vec<Adoption>,
    /// Something waits until the cluster shows objects of its kind again.
    pub(super) waits: bool,
}

impl Found {
    /// Each action to its side. Objects go before workloads and homes, which take their time.
    pub(super) fn take(&mut self, actions: impl IntoIterator<Item = Action>) {
        let (narrowing, others): (Vec<_>, Vec<_>) =
            actions.into_iter().partition(|action| action.side() == Side::Narrowing);
        self.narrowing.extend(narrowing);
        self.narrowing.sort_by_key(|action| match action {
            Action::Apply { key, .. } | Action::Delete { key, .. } => (0, !stops_pods(key)),
            Action::StopWorkloads { .. } => (1, false),
            Action::Evict { .. } => (2, false),
            _ => (3, false),
        });
        self.actions.extend(others);
    }

    /// One action to its side.
    pub(super) fn add(&mut self, action: Option<Action>) {
        self.take(action);
    }

    /// Says that nothing is done about an object, because the cluster does not show its kind.
    fn wait_for(&mut self, key: &ObjectKey) {
        self.waits = true;
        self.notices.push(format!("{} waits: cluster {} shows no objects of its kind", described(key), key.cluster));
    }
}

/// See the module.
pub(super) fn actions(look: Look<'_>) -> Found {
    let mut found = Found::default();
    if look.tenant.end == Some(EndOfTenant::Delete) {
        found.take(ending::deletion(look, deletes(look, &mut Found::default())));
        // A home that was broken when the access went is still seen to, and nothing waits for it.
        found.take(credential::leftover(look));
        return found;
    }
    let settled = !look.closely && look.scan.is_settled(look.id, look.cluster);
    let going = if settled { None } else { namespace_on_its_way_out(look) };
    let applies = if settled { Vec::new() } else { applies(look, &mut found) };
    let (elsewhere, applies): (Vec<_>, Vec<_>) = applies.into_iter().partition(|action| is_new_elsewhere(look, action));
    let (namespace, applies): (Vec<_>, Vec<_>) =
        applies.into_iter().partition(|action| stage(action) == Some(Stage::Namespace));
    let (bindings, applies): (Vec<_>, Vec<_>) =
        applies.into_iter().partition(|action| stage(action) == Some(Stage::Access));
    // A binding that is there is changed first: it may name an older generation, and a tenant who makes another step
    // fail must not keep a revoked certificate alive by it.
    let (narrowed, bindings): (Vec<_>, Vec<_>) =
        bindings.into_iter().partition(|action| matches!(action, Action::Apply { uid: Some(_), .. }));
    // It names a service account only after that was made: until then a tenant can make one of that name, and hold
    // tokens of it.
    let mut rebound = Vec::new();
    let mut named = |action: Action| match without_missing_token_holder(look, &action) {
        Some((early, true)) => {
            rebound.push(action);
            early
        }
        Some((early, false)) => early,
        None => action,
    };
    let narrowed = narrowed.into_iter().map(&mut named);
    // While that service account cannot be made, the binding is written once.
    let narrowed: Vec<_> = narrowed.filter(|action| !stands(look, action)).collect();
    // One that is new comes after the service account, unless that is not made now.
    let new = |action: Action| match without_missing_token_holder(look, &action) {
        Some((early, false)) => early,
        Some((_, true)) | None => action,
    };
    let bindings: Vec<_> = bindings.into_iter().map(new).collect();
    let (deleted_bindings, deletes): (Vec<_>, Vec<_>) = deletes(look, &mut found)
        .into_iter()
        .chain(look.scan.strays().removals(look.id, look.cluster, look.tenant.suspended))
        .partition(|action| stage(action) == Some(Stage::Access));
    // At a resumption no pod starts before it is gone.
    let (stoppers, deletes): (Vec<_>, Vec<_>) =
        deletes.into_iter().partition(|action| matches!(action, Action::Delete { key, .. } if stops_pods(key)));
    // Nothing runs in a namespace that is not there.
    let is_new = namespace.iter().any(|action| matches!(action, Action::Apply { uid: None, .. }));
    let stop = stop(look, !namespace.is_empty() && !is_new);
    let Standing { remove, mut prove, deliver, inspect } = credential::actions(look, &mut found);
    // Also where the account has no namespace: its bindings in the whole cluster are gone.
    if evicted(look).is_some() && is_to_stop(look, !namespace.is_empty() && !is_new) {
        prove.extend(credential::proof(look));
    }
    let directories = directories(look, &applies);
    let actions = [
        stoppers,
        namespace,
        deleted_bindings,
        narrowed,
        stop,
        remove,
        directories,
        applies,
        bindings,
        deletes,
        resume(look),
    ];
    let end = ending::archive(look);
    let own = actions.into_iter().flatten().chain(prove).chain(deliver).chain(inspect).chain(end);
    // The level first: no owner is bound where it cannot be set.
    let levels = adopted::levels(look, &mut found.notices);
    let all = own.chain(levels).chain(elsewhere);
    match going {
        // Its quota cannot come before the namespace.
        None if is_new => {
            let (quota, all): (Vec<_>, Vec<_>) =
                all.partition(|action| matches!(action, Action::Apply { key, .. } if stops_pods(key)));
            found.take(all);
            found.actions.extend(quota);
        }
        None => {
            found.take(all);
            let is_later = |action: &Action| action.is_delivery() || matches!(action, Action::Archive { .. });
            let place = found.actions.iter().position(is_later).unwrap_or(found.actions.len());
            found.actions.splice(place..place, rebound);
        }
        Some(notice) => {
            found.notices.push(notice);
            found.take(all.filter(|action| !creates_in_its_namespace(look, action)));
        }
    }
    found
}

/// The API server refuses whatever is created in a namespace that is on its way out. Everything else goes on there: the
/// deletion may take as long as somebody's finalizer, and until then bindings in it hold.
fn creates_in_its_namespace(look: Look<'_>, action: &Action) -> bool {
    let own = look.tenant.namespace.as_ref().map(NamespaceName::as_str);
    match action {
        Action::Apply { key, uid: None, .. } => key.namespace.as_deref() == own,
        Action::Deliver { credential, .. } => matches!(credential.proof, Proof::Token(_)),
        Action::Archive { .. } | Action::ResumeWorkloads { .. } | Action::WarnIdle { .. } | Action::WarnPod { .. } => {
            true
        }
        Action::Apply { .. }
        | Action::MakeDirectory { .. }
        | Action::SetLevel { .. }
        | Action::Delete { .. }
        | Action::StopWorkloads { .. }
        | Action::Evict { .. }
        | Action::ReapPod { .. }
        | Action::ProveRevoked { .. }
        | Action::DeleteNamespace { .. }
        | Action::AwaitDeletion { .. }
        | Action::RemoveKubeconfig { .. }
        | Action::SshKeys { .. }
        | Action::InspectKubeconfig { .. } => false,
    }
}

/// Where no class has the place any more and its suspension waits: the access of those who have to leave it
/// ([`super::loss::keep_given_up`]), and what is left of revoked credentials, which nobody replaces there.
pub(super) fn given_up(look: Look<'_>) -> Found {
    let mut found = Found::default();
    found.take(deletes(look, &mut Found::default()));
    found.take(credential::revoked(look));
    found
}

/// While the cluster does not answer: what stands in homes of somebody who is suspended goes. The rest waits.
pub(super) fn away(look: Look<'_>) -> Found {
    let mut found = Found::default();
    if look.tenant.suspended {
        found.take(credential::leftover(look));
    }
    found
}

/// Where the configuration names the cluster no more: nobody renews what stands in homes, so it goes. What is in the
/// cluster stays as it is.
pub(super) fn abandoned(look: Look<'_>) -> Found {
    let mut found = Found::default();
    found.take(credential::abandoned(look));
    found
}

/// What a tenant gets in a namespace that others made comes last: others who make that step fail must not keep the
/// tenant from its certificate.
fn is_new_elsewhere(look: Look<'_>, action: &Action) -> bool {
    let own = look.tenant.namespace.as_ref().map(NamespaceName::as_str);
    matches!(action, Action::Apply { key, uid: None, .. } if adopted::is_of_others(key, |there| own == Some(there)))
}

fn stage(action: &Action) -> Option<Stage> {
    match action {
        Action::Apply { key, .. } | Action::Delete { key, .. } => Some(key.kind.stage()),
        _ => None,
    }
}

fn namespace_on_its_way_out(look: Look<'_>) -> Option<String> {
    let namespace = look.tenant.objects.keys().find(|key| key.kind == ManagedKind::Namespace)?;
    look.there.objects.get(namespace).filter(|found| found.deleting).map(|_| {
        format!(
            "namespace {} in cluster {} is being deleted by somebody; it is made again when it is gone",
            namespace.name, look.cluster
        )
    })
}

/// In the order of [`Stage`], then by name.
fn applies(look: Look<'_>, found: &mut Found) -> Vec<Action> {
    let mut objects: Vec<_> = look.tenant.objects.iter().collect();
    objects.sort_by_key(|(key, _)| key.kind.stage());
    let steps = |(key, object)| [unseen(look, key, object), apply(look, key, object, found)];
    objects.into_iter().flat_map(steps).flatten().collect()
}

fn apply(look: Look<'_>, key: &ObjectKey, object: &DesiredObject, said: &mut Found) -> Option<Action> {
    let found = look.there.objects.get(key);
    let record = look.ledger.objects.get(key).filter(|record| record.account == *look.id);
    if look.there.is_blind_to(key) {
        if !record.is_some_and(|record| is_as_wanted(look.there, key, object, record, found)) {
            said.wait_for(key);
        }
        return None;
    }
    let reason = match (record, found) {
        (record, Some(found)) if found.deleting => return ended(key, object, record?, found),
        (Some(record), Some(found)) if is_settled(object, record, found) => return None,
        (_, None) | (None, Some(_)) => Reason::Missing,
        (Some(record), Some(found)) if !quota::edits(object, record, found).is_empty() => {
            // What was edited is what is wanted, from the next plan on.
            said.adopted.extend(quota::adopted(look, object, record, found));
            return None;
        }
        (Some(record), Some(_)) if record.wanted != object.digest => {
            if let Some(why) = volume::immovable(key, record, &object.manifest.as_ref()?.value()) {
                said.notices.push(why);
                return None;
            }
            let before = record.detail.as_ref().filter(|_| key.kind.detail() == Detail::QuotaHard).map(quota::amounts);
            Reason::Changed(before.map(|before| quota::changed(look, object, &before)).unwrap_or_default())
        }
        (Some(_), Some(_)) if object.drift == DriftMode::Report => {
            said.notices.push(format!(
                "{} was edited by somebody else, and its class says report: it stays; to write ours back, drift = \
                 {{ {} = \"revert\" }}",
                described(key),
                key.kind.drift().as_str()
            ));
            return None;
        }
        (Some(_), Some(found)) => {
            if let Some(why) = waits(look, key, found) {
                said.notices.push(why);
                return None;
            }
            Reason::Drifted(quota::reverted(look, object, found))
        }
    };
    Some(Action::Apply {
        key: key.clone(),
        manifest: object.manifest.clone()?,
        wanted: object.digest.clone(),
        uid: found.map(|found| found.uid.to_string()),
        reason,
    })
}

/// A binding without our service account where that is not there yet, and whether it is about to be made; `None`: it names
/// none, or it is there.
fn without_missing_token_holder(look: Look<'_>, action: &Action) -> Option<(Action, bool)> {
    let Action::Apply { key, manifest, uid, reason, .. } = action else { return None };
    let missing = |subject: &Value| {
        let account = holder_of_tokens(key, subject)?;
        let found = look.there.objects.get(&account);
        let is_blind = look.there.is_blind_to(&account);
        let is_there = if is_blind { is_made(look, &account) } else { found.is_some_and(|found| !found.deleting) };
        (!is_there).then_some(is_blind)
    };
    let mut manifest = manifest.value();
    let subjects = manifest["subjects"].as_array()?;
    let (there, others): (Vec<&Value>, Vec<&Value>) = subjects.iter().partition(|subject| missing(subject).is_none());
    if others.is_empty() {
        return None;
    }
    let comes = others.iter().all(|subject| missing(subject) == Some(false));
    manifest["subjects"] = json!(there);
    let (wanted, manifest) = (digest(&manifest).into(), JsonText::from(&manifest));
    Some((Action::Apply { key: key.clone(), manifest, wanted, uid: uid.clone(), reason: reason.clone() }, comes))
}

/// Whether we made the object, as far as the ledger knows.
pub(super) fn is_made(look: Look<'_>, key: &ObjectKey) -> bool {
    look.ledger.objects.get(key).is_some_and(|record| record.account == *look.id)
}

/// Whether the last write of the object was the same, and nobody changed it since.
fn stands(look: Look<'_>, action: &Action) -> bool {
    let Action::Apply { key, wanted, .. } = action else { return false };
    let known = look.ledger.objects.get(key).zip(look.there.objects.get(key));
    known.is_some_and(|(record, found)| {
        record.wanted == *wanted && record.observed == found.digest && record.uid == found.uid && !found.deleting
    })
}

/// The service account of ours that a subject of a binding names.
fn holder_of_tokens(binding: &ObjectKey, subject: &Value) -> Option<ObjectKey> {
    let name = subject["name"].as_str().filter(|_| is_service_account(subject))?;
    of_service_account(name)?;
    Some(ObjectKey::from(ObjectName {
        cluster: binding.cluster.clone(),
        kind: ManagedKind::ServiceAccount.into(),
        namespace: subject["namespace"].as_str().map(str::to_owned),
        name: name.to_owned(),
    }))
}

/// A finalizer may keep a binding that somebody deleted for long, and until then it holds. It is made again when it is
/// gone.
fn ended(key: &ObjectKey, object: &DesiredObject, record: &ObjectRecord, found: &ObservedObject) -> Option<Action> {
    if record.uid == found.uid { taken(key, object, record) } else { None }
}

/// A binding that the cluster does not show holds all the same if it lost its label. It is made again at once, unless the
/// account is held.
fn unseen(look: Look<'_>, key: &ObjectKey, object: &DesiredObject) -> Option<Action> {
    let record = look.ledger.objects.get(key).filter(|record| record.account == *look.id)?;
    if look.there.objects.contains_key(key) { None } else { taken(key, object, record) }
}

/// The deletion of a binding that names somebody whom it should not name any more.
fn taken(key: &ObjectKey, object: &DesiredObject, record: &ObjectRecord) -> Option<Action> {
    if key.kind.stage() != Stage::Access || record.wanted == object.digest {
        return None;
    }
    let manifest = object.manifest.as_ref()?.value();
    let (before, wanted) = (record.detail.as_ref().map(JsonText::value), manifest["subjects"].as_array());
    let stays = |subject: &Value| wanted.is_some_and(|wanted| wanted.contains(subject));
    if before.as_ref().and_then(Value::as_array).is_some_and(|before| before.iter().all(stays)) {
        return None;
    }
    let reason = Reason::Changed(vec!["subjects".to_owned()]);
    Some(Action::Delete { key: key.clone(), uid: record.uid.to_string(), reason })
}

/// Why a repair waits: somebody undid the last ones.
fn waits(look: Look<'_>, key: &ObjectKey, found: &ObservedObject) -> Option<String> {
    let repairs = look.there.repairs.get(key)?;
    let narrows = matches!(key.kind.stage(), Stage::Access | Stage::Namespace) || stops_pods(key);
    let until = repairs.wait(narrows, look.now)?;
    Some(format!(
        "{} was changed again by {} after each of {} repairs; the next one is at {until:.0}. Let that program leave it \
         alone, or set drift = {{ {} = \"report\" }} in the class",
        described(key),
        found.rival.as_deref().unwrap_or("somebody"),
        repairs.count,
        key.kind.drift().as_str()
    ))
}

/// The directories of volumes that are about to be made.
fn directories(look: Look<'_>, applies: &[Action]) -> Vec<Action> {
    let new = applies.iter().filter_map(|action| match action {
        Action::Apply { key, uid: None, .. } if key.kind.data() == Data::Volume => {
            look.tenant.directories.get(&key.name)
        }
        _ => None,
    });
    let make = |directory: &DirectoryTarget| Action::MakeDirectory {
        cluster: look.cluster.clone(),
        directory: directory.clone(),
    };
    new.map(make).collect()
}

/// `ResourceQuota bursar in namespace tool-foo`.
fn described(key: &ObjectKey) -> String {
    match &key.namespace {
        Some(namespace) => format!("{} {} in namespace {namespace}", key.kind, key.name),
        None => format!("{} {}", key.kind, key.name),
    }
}

/// What nobody wants any more: in the reverse of the order in which it was made. A namespace is never deleted here, and
/// nothing but a binding that the cluster does not show us with our label and the uid that we know: a binding holds also
/// without its label, and while a finalizer keeps it. While their kinds are not shown, what tokens of ours rest on goes by
/// the uid that we know, too, and all else waits.
fn deletes(look: Look<'_>, said: &mut Found) -> Vec<Action> {
    let mut orphans: Vec<&ObjectKey> = look
        .scan
        .orphans((look.id, look.cluster), look.tenant)
        .filter(|key| key.kind != ManagedKind::Namespace)
        .filter(|key| !look.tenant.keep_unknown || key.kind.stage() == Stage::Access)
        .collect();
    orphans.sort_by_key(|key| std::cmp::Reverse(key.kind.stage()));
    let reason = if look.tenant.suspended { Reason::Suspended } else { Reason::Orphaned };
    orphans
        .into_iter()
        .filter_map(|key| {
            let record = look.ledger.objects.get(key)?;
            let (found, is_blind) = (look.there.objects.get(key), look.there.is_blind_to(key));
            let holds = key.kind.stage() == Stage::Access && found.is_none_or(|found| found.uid == record.uid);
            if holds || (is_blind && is_ours(key)) {
                return Some(Action::Delete { key: key.clone(), uid: record.uid.to_string(), reason: reason.clone() });
            }
            if is_blind {
                said.wait_for(key);
                return None;
            }
            let found = found?;
            if volume::holds_data(key, record) {
                said.notices.push(volume::kept(key));
                return None;
            }
            (record.uid == found.uid && !found.deleting).then(|| Action::Delete {
                key: key.clone(),
                uid: found.uid.to_string(),
                reason: reason.clone(),
            })
        })
        .collect()
}

/// What nobody wants any more and is gone already, or is another object by now: the ledger need not know of it. Only the
/// answer to its deletion proves that a binding is gone; one in a namespace that is deleted goes with it.
pub(super) fn forgotten(look: Look<'_>) -> Vec<ObjectKey> {
    let orphans = look.scan.orphans((look.id, look.cluster), look.tenant);
    let gone = orphans.filter(|key| !look.there.is_blind_to(key)).filter(|key| {
        let known = look.ledger.objects.get(key).map(|record| &record.uid);
        let found = look.there.objects.get(key).map(|found| &found.uid);
        let may_hold = key.kind.stage() == Stage::Access && found.is_none() && !goes_with_its_namespace(look, key);
        found != known && !may_hold
    });
    gone.cloned().collect()
}

fn goes_with_its_namespace(look: Look<'_>, key: &ObjectKey) -> bool {
    look.tenant.end == Some(EndOfTenant::Delete)
        && key.namespace.as_deref() == look.tenant.namespace.as_ref().map(NamespaceName::as_str)
}

/// When the suspension begins, and again as long as something of it failed: `intents` writes a failure down that only
/// the end of the account's actions clears, so that a daemon killed in between finds out.
fn stop(look: Look<'_>, sealed_now: bool) -> Vec<Action> {
    let namespace = look.tenant.namespace.clone().filter(|_| is_to_stop(look, sealed_now));
    let Some(namespace) = namespace else { return Vec::new() };
    let cluster = || look.cluster.clone();
    let evict =
        evicted(look).map(|since| Action::Evict { cluster: cluster(), namespace: namespace.clone(), since: *since });
    [Action::StopWorkloads { cluster: cluster(), namespace: namespace.clone() }].into_iter().chain(evict).collect()
}

fn is_to_stop(look: Look<'_>, sealed_now: bool) -> bool {
    let begins = sealed_now || matches!(look.account.transition, Some(Transition::Suspend(_)));
    let failure = look.ledger.failures.get(&(look.id.clone(), look.cluster.clone()));
    let unfinished = failure.is_some_and(|failure| !failure.waits(look.now));
    look.tenant.suspended && (begins || unfinished)
}

/// The time from which on an eviction lists changes; `None` if the suspension is no eviction.
fn evicted(look: Look<'_>) -> Option<&Option<Timestamp>> {
    let suspension = match &look.account.transition {
        Some(Transition::Suspend(why)) => Some(why),
        _ => look.ledger.accounts.get(look.id).and_then(|account| account.suspension.as_ref()),
    };
    match suspension {
        Some(Suspension::Evicted { since, .. }) => Some(since),
        _ => None,
    }
}

fn resume(look: Look<'_>) -> Vec<Action> {
    let Some(namespace) = look.tenant.namespace.clone().filter(|_| !look.tenant.suspended) else { return Vec::new() };
    let from = (look.id.clone(), first_key());
    let stopped: Vec<_> = look
        .ledger
        .stopped
        .range(from..)
        .take_while(|((id, _), _)| id == look.id)
        .filter(|((_, key), _)| key.cluster == *look.cluster)
        .map(|((_, key), stopped)| (key.clone(), stopped.clone()))
        .collect();
    if stopped.is_empty() {
        return Vec::new();
    }
    vec![Action::ResumeWorkloads { cluster: look.cluster.clone(), namespace, stopped }]
}

/// Lower than every other.
fn first_key() -> ObjectKey {
    ObjectKey::from(ObjectName {
        cluster: ClusterName(String::new()),
        kind: ObjectKind::of("", ""),
        namespace: None,
        name: String::new(),
    })
}
