//! Plans the delivery, removal and inspection of the credentials and kubeconfigs of one account in one cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bursar_protocol::USUAL_KUBECONFIG;
use jiff::{SignedDuration, Timestamp};

use super::tenant::{Found, Look, is_made};
use super::{Action, Expected, Reason};
use crate::desired::{DesiredCredential, DesiredHome, DesiredNotice, Proof, TokenOf};
use crate::identity::{AccountId, ClusterName, HostName};
use crate::inventory::HomeFinding;
use crate::ledger::change::Change;
use crate::ledger::{Account, Certificate, CredentialKey, Delivery, LedgerState};

/// How often each home is inspected, in seconds. A person who broke their kubeconfig gets it back on the same day, and
/// 10,000 homes cause one inspection every two seconds.
const INSPECT_EVERY: i64 = 6 * 3600;

/// The field in `Reason::Changed` if only the kubeconfig changes, and its credential does not.
pub const KUBECONFIG: &str = "kubeconfig";

/// The steps for the credentials of an account.
#[derive(Debug, Default)]
pub(super) struct Standing {
    pub(super) remove: Vec<Action>,
    pub(super) prove: Vec<Action>,
    pub(super) deliver: Vec<Action>,
    pub(super) inspect: Vec<Action>,
}

/// The credential that was delivered.
#[derive(Clone, Copy)]
struct Held<'a> {
    /// The newest certificate or token. Always `None` for an OIDC credential.
    certificate: Option<&'a Certificate>,
    delivery: Option<&'a Delivery>,
}

pub(super) fn actions(look: Look<'_>, found: &mut Found) -> Standing {
    let mut standing = Standing::default();
    let Some(home) = &look.tenant.home else {
        if !look.tenant.credentials.is_empty() {
            found.notices.push(format!(
                "has no uid or no home in the directory: no credential for cluster {} is delivered",
                look.cluster
            ));
        }
        return Standing { remove: remove(look).collect(), ..standing };
    };
    for credential in &look.tenant.credentials {
        let key = key(look, &credential.host);
        let is_there = |delivery: &&Delivery| delivery.may_hold_a_credential() && !delivery.is_pending();
        let delivery = look.ledger.deliveries.get(&key).filter(is_there);
        let held = Held { certificate: look.ledger.certificates.get(&key), delivery };
        let home = home.on(&credential.host);
        match reason(look, credential, &home, held) {
            Some(reason) => {
                let waits = waits(look, credential);
                // The older credential is proved to be refused before a new one is delivered.
                let proves = reason == Reason::Revoked && (!waits || look.account.regenerated.is_some());
                if proves && standing.prove.is_empty() {
                    standing.prove.extend(proofs(look));
                }
                if waits {
                    found.waits = true;
                } else {
                    standing.deliver.push(deliver(look, credential, home, reason));
                }
            }
            None => standing.inspect.extend(inspect(look, credential, home, held)),
        }
    }
    standing.remove.extend(remove(look));
    standing.inspect.extend(deliveries(look).filter_map(|(key, delivery)| inspect_notice(look, &key.host, delivery)));
    standing
}

fn key(look: Look<'_>, host: &HostName) -> CredentialKey {
    CredentialKey::new(look.id.clone(), look.cluster.clone()).on(host)
}

/// Returns the steps that prove that the API server refuses the account's older credentials. There is a step for each
/// older generation, because hosts may have credentials of different generations.
pub(super) fn proofs(look: Look<'_>) -> Vec<Action> {
    let held = look.ledger.certificates_of(look.id);
    let older = held.filter(|(key, it)| key.cluster == *look.cluster && it.generation != look.account.generation);
    let older: BTreeMap<_, _> = older.map(|(_, it)| ((it.generation, &it.subject), it)).collect();
    let own = || look.tenant.namespace.as_ref().map(ToString::to_string);
    older.into_values().map(|older| look.bindings.proof(look.cluster, &look.account.account, own(), older)).collect()
}

fn deliver(look: Look<'_>, credential: &DesiredCredential, home: DesiredHome, reason: Reason) -> Action {
    Action::Deliver {
        cluster: look.cluster.clone(),
        credential: Box::new(credential.clone()),
        generation: look.account.generation,
        former: former(look, &credential.host, &home).map(Box::new),
        replaced: replaced(look, &credential.host, &home).collect(),
        home: Box::new(home),
        reason,
    }
}

/// Returns why a new delivery is needed; `None` if the present delivery is still valid.
fn reason(look: Look<'_>, credential: &DesiredCredential, home: &DesiredHome, held: Held<'_>) -> Option<Reason> {
    let place = (look.id.clone(), look.cluster.clone());
    let broken = || matches!(look.inventory.homes.get(&place), Some(HomeFinding::Broken { .. }));
    let changed = |what: &str| Some(Reason::Changed(vec![what.to_owned()]));
    let replaces = || replaced(look, &credential.host, home).next().is_some();
    let Some(delivery) = held.delivery else {
        return match (is_only_revoked(look), replaces()) {
            (true, _) => Some(Reason::Revoked),
            (false, true) => changed("credential"),
            (false, false) => Some(Reason::Missing),
        };
    };
    match (&credential.proof, held.certificate) {
        (Proof::Oidc(_), _) => {}
        (Proof::Certificate { .. } | Proof::Token(_), None) => return Some(Reason::Missing),
        (proof, Some(certificate)) => {
            if certificate.generation != look.account.generation {
                return Some(Reason::Revoked);
            }
            if proof.name().as_ref() != Some(&certificate.subject) {
                return changed("name");
            }
            if let Proof::Token(token) = proof
                && !look.there.is_blind_to(&token.secret_key(look.cluster))
                && certificate.bound_to != uid_of_secret(look, token)
            {
                return Some(Reason::Drifted(vec![format!("secret {}", token.secret)]));
            }
        }
    }
    if delivery.path != home.file() {
        changed("home")
    } else if replaces() {
        changed("credential")
    } else if delivery.digest != credential.digest {
        changed(KUBECONFIG)
    } else if delivery.checked_at.is_none() || broken() {
        Some(Reason::Drifted(vec![KUBECONFIG.to_owned()]))
    } else {
        let due = held.certificate.filter(|certificate| look.now >= certificate.renew_after);
        due.filter(|_| credential.proof.name().is_some()).map(|certificate| Reason::Expiring(certificate.not_after))
    }
}

/// Whether all credentials of the account in the cluster are revoked. By now, the class may give another kind of
/// credential, or a credential for another host.
fn is_only_revoked(look: Look<'_>) -> bool {
    let mut generations =
        look.ledger.certificates_of(look.id).filter(|(key, _)| key.cluster == *look.cluster).peekable();
    generations.peek().is_some() && generations.all(|(_, held)| held.generation != look.account.generation)
}

/// Whether the delivery of a token waits. It waits if its Secret or service account does not exist, and is not created
/// because the cluster does not show objects of this kind.
fn waits(look: Look<'_>, credential: &DesiredCredential) -> bool {
    let Proof::Token(token) = &credential.proof else { return false };
    let objects = [token.secret_key(look.cluster), token.service_account_key(look.cluster)];
    objects.iter().any(|key| look.there.is_blind_to(key) && !is_made(look, key))
}

/// Returns the UID of the present Secret of a token. If somebody deleted the Secret, its tokens are invalid, and Secret
/// and token are created again.
fn uid_of_secret(look: Look<'_>, token: &TokenOf) -> Option<String> {
    look.there.objects.get(&token.secret_key(look.cluster)).map(|found| found.uid.to_string())
}

/// Returns the hosts whose credentials a delivery into this file replaces. There are such hosts if the class now gives
/// a credential of another kind, or for another host, in the same home.
fn replaced<'a>(look: Look<'a>, host: &'a HostName, home: &DesiredHome) -> impl Iterator<Item = HostName> + use<'a> {
    let file = home.file();
    let others = deliveries(look).filter(move |(key, delivery)| key.host != *host && delivery.path == file);
    others.map(|(key, _)| key.host.clone())
}

/// Returns the changes that forget the credentials which a delivery replaced in its file.
#[must_use]
pub fn forget(account: &AccountId, cluster: &ClusterName, replaced: &[HostName]) -> Vec<Change> {
    let keys = replaced.iter().map(|host| CredentialKey::new(account.clone(), cluster.clone()).on(host));
    keys.flat_map(|key| [Change::Certificate(key.clone(), None), Change::Delivery(key, None)]).collect()
}

/// Removes deliveries that are no longer desired from homes, or replaces them with a notice. A delivery in the file of
/// a desired credential is not removed, because a retry could remove the new credential. The new delivery replaces it.
fn remove(look: Look<'_>) -> impl Iterator<Item = Action> {
    let wanted = move |host: &HostName| look.tenant.credentials.iter().any(|credential| credential.host == *host);
    let is_replaced = move |delivery: &Delivery| {
        let mut files = look.tenant.credentials.iter().filter_map(|it| Some(look.tenant.home.as_ref()?.on(&it.host)));
        files.any(|home| home.file() == delivery.path)
    };
    let reason = if look.tenant.suspended { Reason::Suspended } else { Reason::Orphaned };
    let stands = move |host: &HostName, delivery: &Delivery| standing_notice(look, host, delivery).is_some();
    deliveries(look)
        .filter(move |(key, delivery)| !wanted(&key.host) && !stands(&key.host, delivery) && !is_replaced(delivery))
        .filter_map(move |(key, delivery)| removal(look, &key.host, delivery, reason.clone()))
}

/// Returns the notice that replaces a delivery while the account is suspended. If the home moved, there is no notice.
fn notice<'a>(look: Look<'a>, host: &HostName, delivery: &Delivery) -> Option<&'a DesiredNotice> {
    let home = look.tenant.home.as_ref()?.on(host);
    let notice = look.tenant.notices.iter().find(|notice| notice.credential.host == *host)?;
    (home.file() == delivery.path).then_some(notice)
}

/// Like [`notice`], but `None` if the file contains something else.
fn standing_notice<'a>(look: Look<'a>, host: &HostName, delivery: &Delivery) -> Option<&'a DesiredNotice> {
    notice(look, host, delivery).filter(|notice| delivery.digest == notice.digest())
}

/// Returns the removal of the deliveries that homes still hold for a tenant that is suspended or about to be deleted.
pub(super) fn leftover(look: Look<'_>) -> impl Iterator<Item = Action> {
    remove(look)
}

/// Proves that older credentials are refused, and removes them from homes without a replacement.
pub(super) fn revoked(look: Look<'_>) -> impl Iterator<Item = Action> {
    let is_older = |key: &CredentialKey| {
        let held = look.ledger.certificates.get(key);
        held.is_some_and(|certificate| certificate.generation != look.account.generation)
    };
    let older = deliveries(look).filter(|(key, delivery)| is_older(key) && !delivery.is_notice());
    let remove = |(key, delivery): (&CredentialKey, &Delivery)| removal(look, &key.host, delivery, Reason::Revoked);
    let removals: Vec<Action> = older.filter_map(remove).collect();
    let proofs = if removals.iter().all(Action::is_look) { Vec::new() } else { proofs(look) };
    proofs.into_iter().chain(removals)
}

/// Removes all deliveries from homes. No notice replaces them, because nothing would keep a notice up to date.
pub(super) fn abandoned(look: Look<'_>) -> impl Iterator<Item = Action> {
    let removals = deliveries(look).filter_map(move |(key, it)| removal(look, &key.host, it, Reason::Orphaned));
    removals.map(|mut action| {
        if let Action::RemoveKubeconfig { notice, .. } = &mut action {
            *notice = None;
        }
        action
    })
}

fn deliveries(look: Look<'_>) -> impl Iterator<Item = (&CredentialKey, &Delivery)> {
    look.ledger.deliveries_of(look.id).filter(move |(key, _)| key.cluster == *look.cluster)
}

/// Returns the file of a delivery. If the file is not in the home of the class, the home is derived from the file's
/// path.
fn delivered_to(look: Look<'_>, host: &HostName, delivery: &Delivery) -> Option<DesiredHome> {
    match look.tenant.home.as_ref().map(|home| home.on(host)) {
        Some(home) if home.file() == delivery.path => Some(home),
        _ => {
            let account = look.ledger.accounts.get(look.id)?;
            let (home, kubeconfig) = place(look, delivery, account)?;
            let posix = account.posix.clone()?;
            Some(DesiredHome { home, posix, kubeconfig, create: false, replace_unparsable: false })
        }
    }
}

/// Returns the removal of a delivery. If our entries were removed already, returns the inspection that is due after the
/// removal: kubectl may have read the file before, and write the credential back.
fn removal(look: Look<'_>, host: &HostName, delivery: &Delivery, reason: Reason) -> Option<Action> {
    let home = delivered_to(look, host, delivery)?;
    if delivery.is_removed() {
        next_look(delivery).filter(|at| *at <= look.now)?;
        let (cluster, host, expected) = (look.cluster.clone(), host.clone(), Expected::Nothing);
        return Some(Action::InspectKubeconfig { cluster, host, home: Box::new(home), expected });
    }
    let notice = notice(look, host, delivery).cloned().map(Box::new);
    // The request is recorded before the delivery, and forgotten together with the removal from the former home.
    let is_unrecorded =
        |present: &DesiredHome| present.file() != home.file() && look.ledger.requested.contains_key(&key(look, host));
    let present = look.tenant.home.as_ref().map(|home| home.on(host));
    let unrecorded = present.filter(is_unrecorded).map(Box::new);
    let (cluster, host) = (look.cluster.clone(), host.clone());
    Some(Action::RemoveKubeconfig { cluster, host, home: Box::new(home), unrecorded, notice, reason })
}

/// Returns the home of a delivery, and the kubeconfig in it. Most rows of older versions name no home. If the file of
/// such a row is not in the account's present home, the home is derived from the end of the path.
fn place(look: Look<'_>, delivery: &Delivery, account: &Account) -> Option<(PathBuf, PathBuf)> {
    let mut known = delivery.home.iter().chain(&account.home);
    if let Some(home) = known.find(|home| delivery.path.starts_with(home)) {
        return Some((home.clone(), delivery.path.strip_prefix(home).ok()?.to_owned()));
    }
    let of_class = look.tenant.home.as_ref().map(|home| home.kubeconfig.as_path());
    let mut usual = of_class.into_iter().chain([Path::new(USUAL_KUBECONFIG)]);
    let kubeconfig = usual.find(|kubeconfig| delivery.path.ends_with(kubeconfig))?;
    let home = delivery.path.ancestors().nth(kubeconfig.components().count())?;
    Some((home.to_owned(), kubeconfig.to_owned()))
}

/// Returns the file of the last delivery, if it is another file. A file from which our entries were removed already does
/// not count: its home may be gone, and the new delivery would wait for it.
fn former(look: Look<'_>, host: &HostName, home: &DesiredHome) -> Option<DesiredHome> {
    let is_left = |delivery: &&Delivery| !delivery.is_removed() && delivery.path != home.file();
    let delivery = look.ledger.deliveries.get(&key(look, host)).filter(is_left)?;
    delivered_to(look, host, delivery)
}

fn inspect(look: Look<'_>, credential: &DesiredCredential, home: DesiredHome, held: Held<'_>) -> Option<Action> {
    let delivery = held.delivery?;
    let expected = Expected::of(credential, held.certificate)?;
    let is_due = is_due(look, delivery) || next_look(delivery).is_some_and(|at| at <= look.now);
    is_due.then(|| Action::InspectKubeconfig {
        cluster: look.cluster.clone(),
        host: credential.host.clone(),
        home: Box::new(home),
        expected,
    })
}

/// Returns the inspection of a notice, because kubectl may have written the credential back. A notice is inspected only
/// in the first minute after its delivery. The inspections are given up if they fail for an hour, or if an older
/// version, which made no inspections, wrote the notice.
fn inspect_notice(look: Look<'_>, host: &HostName, delivery: &Delivery) -> Option<Action> {
    next_look(delivery).filter(|at| delivery.is_notice() && *at <= look.now)?;
    if look.now.duration_since(delivery.at).abs() > SignedDuration::from_hours(1) {
        return None;
    }
    Some(Action::InspectKubeconfig {
        cluster: look.cluster.clone(),
        host: host.clone(),
        home: Box::new(look.tenant.home.as_ref()?.on(host)),
        expected: Expected::Notice(Box::new(standing_notice(look, host, delivery)?.clone())),
    })
}

/// The file is inspected again this many seconds after a delivery. kubectl reads the file before it takes the lock, so
/// it may then write the old content back (client-go, `ModifyConfig`). A `kubectl config` that ran during the delivery
/// has ended by the first inspection. An editor or a script has usually ended by the second.
const LOOKS: [i64; 2] = [2, 60];

/// Returns the time of the next inspection after a delivery; `None` if all inspections are done, or if the file is to
/// be delivered again.
#[must_use]
pub fn next_look(delivery: &Delivery) -> Option<Timestamp> {
    let checked = delivery.checked_at?;
    let looks = LOOKS.iter().filter_map(|after| Timestamp::from_second(delivery.at.as_second() + after).ok());
    looks.into_iter().find(|look| checked < *look)
}

/// Whether the ledger keeps the row of a delivery after an inspection. The row of a removal is forgotten after the last
/// one.
#[must_use]
pub fn lasts(delivery: &Delivery) -> bool {
    !delivery.is_removed() || next_look(delivery).is_some()
}

/// Whether an inspection after a delivery is still to be done in the cluster, or a delivery is to be repeated.
pub(super) fn awaits_look(ledger: &LedgerState, id: &AccountId, cluster: &ClusterName) -> bool {
    let mut deliveries =
        ledger.deliveries_of(id).filter(|(key, delivery)| key.cluster == *cluster && delivery.may_hold_a_credential());
    deliveries.any(|(_, delivery)| delivery.checked_at.is_none() || next_look(delivery).is_some())
}

/// Whether the regular inspection of a home is due. If the last inspection is dated far in the future, the date comes
/// from a wrong clock, and the inspection is repeated.
pub(super) fn is_due(look: Look<'_>, delivery: &Delivery) -> bool {
    let checked = delivery.checked_at.unwrap_or(delivery.at).as_second();
    checked < last_slot(look.id, look.now) || checked > look.now.as_second() + INSPECT_EVERY
}

/// Returns the last time, in seconds, at which this account's homes were due for an inspection. The times are
/// [`INSPECT_EVERY`] apart, and a hash of the id spreads the accounts over this period.
fn last_slot(id: &AccountId, now: Timestamp) -> i64 {
    let hash = id.0.to_string().bytes().fold(0_i64, |hash, byte| (hash * 31 + i64::from(byte)) % INSPECT_EVERY);
    now.as_second() - (now.as_second() - hash).rem_euclid(INSPECT_EVERY)
}

/// Returns when a renewal or an inspection of the account becomes due next. If nothing else changes, the account's plan
/// stays the same until then.
pub(super) fn next_due(ledger: &LedgerState, id: &AccountId, now: Timestamp) -> Timestamp {
    let renewals = ledger.certificates_of(id).map(|(_, certificate)| certificate.renew_after);
    let delivered = ledger.deliveries_of(id).map(|(_, delivery)| delivery);
    let delivered: Vec<&Delivery> = delivered.chain(ledger.ssh_deliveries.get(id)).collect();
    let slot = last_slot(id, now) + INSPECT_EVERY;
    let slot = delivered.first().and_then(|_| Timestamp::from_second(slot).ok());
    let looks = delivered.into_iter().filter_map(next_look);
    renewals.chain(slot).chain(looks).filter(|due| *due > now).min().unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
