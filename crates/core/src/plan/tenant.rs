//! Plans the steps of one account in one cluster, in the order of their execution.
//!
//! The steps that remove access come first: the seal and the quota that stop new pods, and changes of bindings,
//! workloads and the kubeconfig. Then the namespace, quota, policies and volumes are written. The steps that give
//! access come last: bindings, workloads and the certificate. A failure therefore never leaves more access than
//! desired.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::bound::Bindings;
use super::credential::{self, Standing};
use super::quota::{self, Adoption};
use super::scan::Scan;
use super::{Action, Reason, Side, adopted, ending, volume};
use crate::desired::credential::{is_ours, is_service_account, of_service_account};
use crate::desired::quota::stops_pods;
use crate::desired::{
    DesiredAccount, DesiredObject, DesiredTenant, DirectoryTarget, EndOfTenant, Proof, Transition, namespace_detail,
};
use crate::digest::digest;
use crate::identity::{AccountId, ClusterName, NamespaceName};
use crate::inventory::{ClusterInventory, Inventory, ObservedObject};
use crate::json_text::JsonText;
use crate::kinds::{Data, Detail, ManagedKind, ObjectKey, ObjectKind, ObjectName, Stage};
use crate::ledger::{LedgerState, ObjectRecord, Suspension};
use crate::policy::DriftMode;

/// The inputs for one account in one cluster.
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
    /// Whether every object is compared, even if `scan` says that the tenant is settled.
    pub(super) closely: bool,
}

/// Whether the object needs no write: the last write was the desired one, and the object has not changed since. If the
/// cluster does not show objects of this kind, the object is assumed to be unchanged.
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

/// Whether the last write was the desired one, and the object has not changed since.
fn is_settled(wanted: &DesiredObject, record: &ObjectRecord, found: &ObservedObject) -> bool {
    record.wanted == wanted.digest
        && record.observed == found.digest
        && record.uid == found.uid
        && !found.deleting
        && quota::edits(wanted, record, found).is_empty()
}

/// The steps of one account in one cluster, and the findings.
#[derive(Default)]
pub(super) struct Found {
    /// Steps that remove access. They wait for no other step.
    pub(super) narrowing: Vec<Action>,
    /// All other steps, in the order of their execution.
    pub(super) actions: Vec<Action>,
    /// Findings for administrators.
    pub(super) notices: Vec<String>,
    /// Edits that become overrides.
    pub(super) adopted: Vec<Adoption>,
    /// Whether some object waits until the cluster shows objects of its kind again.
    pub(super) waits: bool,
}

impl Found {
    /// Adds each action to the list of its side. Objects come before workloads and homes, because these take longer.
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

    /// Adds an action to the list of its side.
    pub(super) fn add(&mut self, action: Option<Action>) {
        self.take(action);
    }

    /// Records that an object waits, because the cluster does not show objects of its kind.
    fn wait_for(&mut self, key: &ObjectKey) {
        self.waits = true;
        self.notices.push(format!("{key} waits: cluster {} shows no objects of its kind", key.cluster));
    }
}

/// Returns the steps in a cluster that answers.
pub(super) fn actions(look: Look<'_>) -> Found {
    let mut found = Found::default();
    if look.tenant.end == Some(EndOfTenant::Delete) {
        found.take(ending::deletion(look, deletes(look, &mut Found::default())));
        // The removal from a broken home is still retried, but the deletion of the namespace does not wait for it.
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
    // Existing bindings are changed first. They may name an older generation, and a tenant must not be able to keep a
    // revoked certificate valid by making another step fail.
    let (narrowed, bindings): (Vec<_>, Vec<_>) =
        bindings.into_iter().partition(|action| matches!(action, Action::Apply { uid: Some(_), .. }));
    // A binding names a service account only after Bursar has created the account. Otherwise a tenant could create an
    // account of that name and hold its tokens. So the binding is written first without the missing account, and again
    // after the account was created.
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
    // The first write is left out if it was done already.
    let narrowed: Vec<_> = narrowed.filter(|action| !stands(look, action)).collect();
    // A new binding is written once, after the service account. If the service account cannot be created now, the
    // binding omits it.
    let new = |action: Action| match without_missing_token_holder(look, &action) {
        Some((early, false)) => early,
        Some((_, true)) | None => action,
    };
    let bindings: Vec<_> = bindings.into_iter().map(new).collect();
    let (deleted_bindings, deletes): (Vec<_>, Vec<_>) = deletes(look, &mut found)
        .into_iter()
        .chain(look.scan.strays().removals(look))
        .partition(|action| stage(action) == Some(Stage::Access));
    // At a resumption, no pod starts before the quota that stops pods is deleted.
    let (stoppers, deletes): (Vec<_>, Vec<_>) =
        deletes.into_iter().partition(|action| matches!(action, Action::Delete { key, .. } if stops_pods(key)));
    // Nothing runs in a namespace that does not exist yet.
    let is_new = namespace.iter().any(|action| matches!(action, Action::Apply { uid: None, .. }));
    let stop = stop(look, !namespace.is_empty() && !is_new);
    let Standing { remove, mut prove, deliver, inspect } = credential::actions(look, &mut found);
    // An account without a namespace needs the proof too, because it may have had bindings in the whole cluster.
    if evicted(look).is_some() && is_to_stop(look, !namespace.is_empty() && !is_new) {
        prove.extend(credential::proofs(look));
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
    // The level comes before the bindings, so that no owner is bound in a foreign namespace without a level.
    let levels = adopted::levels(look, &mut found.notices);
    let all = own.chain(levels).chain(elsewhere);
    match going {
        // The namespace is new, so its quota is written after it, and not with the removals of access.
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

/// Whether the action creates something in the account's namespace, which the API server refuses while the namespace is
/// being deleted. Other actions continue: a finalizer may delay the deletion, and bindings in the namespace apply until
/// it is gone.
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

/// Returns the steps in a cluster that the account's class gave up, while the suspension there is refused. Only people
/// who have to leave lose their access ([`super::loss::keep_given_up`]). Revoked credentials are removed and not
/// replaced.
pub(super) fn given_up(look: Look<'_>) -> Found {
    let mut found = Found::default();
    found.take(deletes(look, &mut Found::default()));
    found.take(look.scan.strays().removals(look));
    found.take(credential::revoked(look));
    found
}

/// Returns the steps while the cluster does not answer: only kubeconfigs of a suspended tenant are removed.
pub(super) fn away(look: Look<'_>) -> Found {
    let mut found = Found::default();
    if look.tenant.suspended {
        found.take(credential::leftover(look));
    }
    found
}

/// Returns the steps for a cluster that the configuration no longer names. Kubeconfigs are removed, because nothing
/// renews their credentials. The cluster itself stays as it is.
pub(super) fn abandoned(look: Look<'_>) -> Found {
    let mut found = Found::default();
    found.take(credential::abandoned(look));
    found
}

/// Whether the action creates an object in a foreign namespace. Such actions come last: if the owners of that namespace
/// make them fail, the tenant still gets its certificate.
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
            "namespace {} in cluster {} is being deleted by somebody; it is created again when it is gone",
            namespace.name, look.cluster
        )
    })
}

/// Returns the writes of objects, in the order of [`Stage`], then by name.
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
        (Some(record), None) if record.wanted == object.digest && !must_exist(look, key) => {
            if let Some(why) = waits(look, key, None) {
                said.notices.push(why);
                return None;
            }
            Reason::Missing
        }
        (_, None) | (None, Some(_)) => Reason::Missing,
        (Some(record), Some(found)) if !quota::edits(object, record, found).is_empty() => {
            // The edit becomes an override, so the next plan desires it.
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
                "{key} was edited by somebody else, and stays so, because its class has drift = report; to revert the \
                 edit, set drift = {{ {} = \"revert\" }}",
                key.kind.drift().as_str()
            ));
            return None;
        }
        (Some(_), Some(found)) => {
            if let Some(why) = waits(look, key, Some(found)) {
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

/// Returns the binding of `action` without our service accounts that do not exist yet, and whether they are about to be
/// created. Returns `None` if the binding names no missing service account.
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

/// Whether the ledger records that Bursar created the object for this account.
pub(super) fn is_made(look: Look<'_>, key: &ObjectKey) -> bool {
    look.ledger.objects.get(key).is_some_and(|record| record.account == *look.id)
}

/// Whether the last write of the object was the same, and the object has not changed since.
fn stands(look: Look<'_>, action: &Action) -> bool {
    let Action::Apply { key, wanted, .. } = action else { return false };
    let known = look.ledger.objects.get(key).zip(look.there.objects.get(key));
    known.is_some_and(|(record, found)| {
        record.wanted == *wanted && record.observed == found.digest && record.uid == found.uid && !found.deleting
    })
}

/// Returns the service account of Bursar that a subject of a binding names, if any.
fn holder_of_tokens(binding: &ObjectKey, subject: &Value) -> Option<ObjectKey> {
    let name = subject["name"].as_str().filter(|_| is_service_account(subject))?;
    of_service_account(name)?;
    Some(ObjectKey::from(ObjectName {
        cluster: binding.cluster.clone(),
        kind: ManagedKind::ServiceAccount.into(),
        namespace: subject["namespace"].as_str().map(Into::into),
        name: name.into(),
    }))
}

/// Handles a binding that somebody is deleting. A finalizer may delay the deletion for long, and the binding applies
/// until it is gone. The binding is created again when it is gone. If it names a subject that is no longer desired, our
/// own deletion is planned too.
fn ended(key: &ObjectKey, object: &DesiredObject, record: &ObjectRecord, found: &ObservedObject) -> Option<Action> {
    if record.uid == found.uid { taken(key, object, record) } else { None }
}

/// Handles a binding that the cluster does not show. The binding may only have lost our label, in which case it still
/// applies. If it names a subject that is no longer desired, it is deleted and, unless the account is held, created
/// again in the same plan.
fn unseen(look: Look<'_>, key: &ObjectKey, object: &DesiredObject) -> Option<Action> {
    let record = look.ledger.objects.get(key).filter(|record| record.account == *look.id)?;
    if look.there.objects.contains_key(key) { None } else { taken(key, object, record) }
}

/// Returns the deletion of a binding, if the last write has a subject that is no longer desired.
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

/// Whether a missing object is created again at once, however often somebody deletes it. This applies to the namespace
/// and everything that was deleted with it, because a namespace must not exist without its limits. It also applies to
/// our service accounts: a binding names them, and a tenant could create an account of that name and hold its tokens.
fn must_exist(look: Look<'_>, key: &ObjectKey) -> bool {
    let own = look.tenant.namespace.as_ref().filter(|own| key.namespace.as_deref() == Some(own.as_str()));
    let is_gone = own.map(|own| ObjectKey::namespace(look.cluster, own)).is_some_and(|namespace| {
        look.tenant.objects.contains_key(&namespace) && !look.there.objects.contains_key(&namespace)
    });
    is_gone || is_ours(key) || key.kind.stage() == Stage::Namespace
}

/// Returns why a repair waits, if another program undid the last repairs. `found` is `None` if the program deletes the
/// object each time.
fn waits(look: Look<'_>, key: &ObjectKey, found: Option<&ObservedObject>) -> Option<String> {
    let repairs = look.there.repairs.get(key)?;
    let until = repairs.wait(key.kind.stage(), look.now)?;
    let Some(found) = found else {
        return Some(format!(
            "{key} was deleted again after each of {} repairs; the next one is at {until:.0}, or at once by `bursar sync`. \
             Find the program in the audit log of the API server, and let it leave the object alone",
            repairs.count
        ));
    };
    Some(format!(
        "{key} was changed again by {} after each of {} repairs; the next one is at {until:.0}, or at once by \
         `bursar sync`. Let that program leave it alone, or set drift = {{ {} = \"report\" }} in the class",
        found.rival().unwrap_or("somebody"),
        repairs.count,
        key.kind.drift().as_str()
    ))
}

/// Returns the steps that create the directories of new volumes.
fn directories(look: Look<'_>, applies: &[Action]) -> Vec<Action> {
    let new = applies.iter().filter_map(|action| match action {
        Action::Apply { key, uid: None, .. } if key.kind.data() == Data::Volume => {
            look.tenant.directories.get(key.name.as_str())
        }
        _ => None,
    });
    let make = |directory: &DirectoryTarget| Action::MakeDirectory {
        cluster: look.cluster.clone(),
        directory: directory.clone(),
    };
    new.map(make).collect()
}

/// Returns the deletions of objects that are no longer desired, in the reverse of the order of [`Stage`].
///
/// Namespaces are never deleted here. An object is deleted only if the cluster shows it with our label and the UID of
/// the ledger. A binding gives its rights even without that label, and even while a finalizer keeps it. It is therefore
/// deleted even if the cluster does not show it, or shows that it is being deleted. If the cluster does not show
/// objects of a kind, only the Secrets and service accounts of our tokens are deleted, by the UID of the ledger. All
/// other objects wait.
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
            let gives = key.kind.stage() == Stage::Access;
            // If somebody recreated a binding of a suspended account, the new one is deleted at once.
            let uid = found.filter(|_| gives && look.tenant.suspended).map_or(&record.uid, |found| &found.uid);
            let holds = gives && found.is_none_or(|found| found.uid == *uid);
            if holds || (is_blind && is_ours(key)) {
                return Some(Action::Delete { key: key.clone(), uid: uid.to_string(), reason: reason.clone() });
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

/// Returns the objects that the ledger may forget: they are no longer desired, and are gone or were replaced by an
/// object with another UID. A binding that the cluster does not show may exist without its label. It is therefore
/// forgotten only after the API server has answered its deletion, or together with its namespace. The same applies to a
/// binding of a suspended account.
pub(super) fn forgotten(look: Look<'_>) -> Vec<ObjectKey> {
    let orphans = look.scan.orphans((look.id, look.cluster), look.tenant);
    let gone = orphans.filter(|key| !look.there.is_blind_to(key)).filter(|key| {
        let known = look.ledger.objects.get(key).map(|record| &record.uid);
        let found = look.there.objects.get(key).map(|found| &found.uid);
        let may_hold = key.kind.stage() == Stage::Access
            && (found.is_none() || look.tenant.suspended)
            && !goes_with_its_namespace(look, key);
        found != known && !may_hold
    });
    gone.cloned().collect()
}

/// Returns the record of the namespace with its class added, if an older version wrote the record without a class, and
/// the namespace needs no write.
pub(super) fn labelled(look: Look<'_>) -> Option<(ObjectKey, ObjectRecord)> {
    let key = ObjectKey::namespace(look.cluster, look.tenant.namespace.as_ref()?);
    let record = look.ledger.objects.get(&key).filter(|it| it.account == *look.id && it.detail.is_none())?;
    let (object, found) = (look.tenant.objects.get(&key)?, look.there.objects.get(&key)?);
    let written = || ObjectRecord { detail: Some(namespace_detail(&look.tenant.class)), ..record.clone() };
    is_settled(object, record, found).then(|| (key, written()))
}

fn goes_with_its_namespace(look: Look<'_>, key: &ObjectKey) -> bool {
    look.tenant.end == Some(EndOfTenant::Delete)
        && key.namespace.as_deref() == look.tenant.namespace.as_ref().map(NamespaceName::as_str)
}

/// Returns the steps that stop workloads: when the suspension begins, and again while it is unfinished. `intents`
/// records a failure before the first step, and the record is cleared only after the last step. So a daemon that was
/// killed repeats these steps.
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

/// Returns the time from which an eviction lists changes; `None` if the suspension is not an eviction.
fn evicted(look: Look<'_>) -> Option<&Option<Timestamp>> {
    let suspension = match &look.account.transition {
        Some(Transition::Suspend(why)) => Some(why),
        _ => look.ledger.accounts.get(look.id).and_then(|account| account.suspension.as_deref()),
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

/// Returns a key that sorts before every other key.
fn first_key() -> ObjectKey {
    ObjectKey::from(ObjectName {
        cluster: ClusterName::default(),
        kind: ObjectKind::of("", ""),
        namespace: None,
        name: "".into(),
    })
}
