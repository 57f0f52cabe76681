//! Certificates and kubeconfigs of one account in one cluster: issue, remove, look after. PURE: no runtime, no client,
//! no file system, no clock.

use jiff::Timestamp;

use super::tenant::Look;
use super::{Action, Reason};
use crate::desired::{DesiredCredential, HomeTarget};
use crate::identity::{AccountId, ClusterName};
use crate::ledger::{Certificate, Delivery};
use crate::observed::HomeFinding;

/// How often each home is looked into. Often enough that a person who broke their kubeconfig gets it back the same day,
/// seldom enough that 10,000 homes are a look every two seconds.
const INSPECT_EVERY: i64 = 6 * 3600;

/// What changed where only the file around a certificate is to be another: `Reason::Changed`.
pub const KUBECONFIG: &str = "kubeconfig";

/// What is to be done about a credential.
#[derive(Debug, Default)]
pub(super) struct Standing {
    pub(super) remove: Option<Action>,
    pub(super) prove: Option<Action>,
    pub(super) issue: Option<Action>,
    pub(super) inspect: Option<Action>,
}

pub(super) fn actions(look: Look<'_>, notices: &mut Vec<String>) -> Standing {
    let place = (look.id.clone(), look.cluster.clone());
    let delivery = look.ledger.deliveries.get(&place);
    match (&look.tenant.credential, &look.tenant.home) {
        (Some(credential), Some(home)) => {
            let held = look.ledger.certificates.get(&place).zip(delivery);
            match (reason(look, &place, credential, home, held), held) {
                (Some(reason), held) => Standing {
                    prove: held.filter(|_| reason == Reason::Revoked).map(|(older, _)| prove(look, credential, older)),
                    issue: Some(issue(look, credential, home, reason)),
                    ..Standing::default()
                },
                (None, held) => Standing {
                    inspect: held.and_then(|(certificate, delivery)| inspect(look, home, certificate, delivery)),
                    ..Standing::default()
                },
            }
        }
        (Some(_), None) => {
            notices.push(format!(
                "has no uid or no home in the directory: no certificate for cluster {} is delivered",
                look.cluster
            ));
            Standing::default()
        }
        (None, _) => Standing { remove: delivery.and_then(|delivery| remove(look, delivery)), ..Standing::default() },
    }
}

/// The older certificate is worth nothing before there is a new one.
fn prove(look: Look<'_>, credential: &DesiredCredential, older: &Certificate) -> Action {
    Action::ProveRevoked {
        cluster: look.cluster.clone(),
        namespace: look.tenant.namespace.clone(),
        user: older.subject.clone(),
        groups: vec![credential.subject.kind_group.clone(), format!("bursar:{}#{}", older.subject, older.generation)],
    }
}

fn issue(look: Look<'_>, credential: &DesiredCredential, home: &HomeTarget, reason: Reason) -> Action {
    Action::IssueCertificate {
        cluster: look.cluster.clone(),
        credential: credential.clone(),
        generation: look.account.generation,
        home: home.clone(),
        reason,
    }
}

/// Why another certificate is needed; `None`: the one that is there is good.
fn reason(
    look: Look<'_>,
    place: &(AccountId, ClusterName),
    credential: &DesiredCredential,
    home: &HomeTarget,
    held: Option<(&Certificate, &Delivery)>,
) -> Option<Reason> {
    let Some((certificate, delivery)) = held else { return Some(Reason::Missing) };
    let broken = || matches!(look.inventory.homes.get(place), Some(HomeFinding::Broken { .. }));
    let changed = |what: &str| Some(Reason::Changed(vec![what.to_owned()]));
    if certificate.generation != look.account.generation {
        Some(Reason::Revoked)
    } else if certificate.subject != credential.subject.common_name {
        changed("name")
    } else if delivery.path != home.home.join(&home.kubeconfig) {
        changed("home")
    } else if delivery.digest != credential.digest {
        changed(KUBECONFIG)
    } else if delivery.checked_at.is_none() || broken() {
        Some(Reason::Drifted(vec![KUBECONFIG.to_owned()]))
    } else if look.now >= certificate.renew_after {
        Some(Reason::Expiring(certificate.not_after))
    } else {
        None
    }
}

/// The home as the class describes it, or as the file that we put there does.
fn remove(look: Look<'_>, delivery: &Delivery) -> Option<Action> {
    let account = look.ledger.accounts.get(look.id)?;
    let home = match &look.tenant.home {
        Some(home) if home.home.join(&home.kubeconfig) == delivery.path => home.clone(),
        _ => {
            let home = account.home.clone()?;
            let kubeconfig = delivery.path.strip_prefix(&home).ok()?.to_owned();
            HomeTarget { home, posix: account.posix.clone()?, kubeconfig, create: false }
        }
    };
    let reason = if look.tenant.suspended { Reason::Suspended } else { Reason::Orphaned };
    Some(Action::RemoveKubeconfig { cluster: look.cluster.clone(), home, reason })
}

fn inspect(look: Look<'_>, home: &HomeTarget, certificate: &Certificate, delivery: &Delivery) -> Option<Action> {
    let seen = delivery.checked_at.unwrap_or(delivery.at);
    (seen.as_second() < last_slot(look.id, look.now)).then(|| Action::InspectKubeconfig {
        cluster: look.cluster.clone(),
        home: home.clone(),
        fingerprint: certificate.fingerprint.clone(),
    })
}

/// The last moment at which this account's homes were to be looked into: every [`INSPECT_EVERY`] seconds, and at
/// another second for each account. The id is a hash already.
fn last_slot(id: &AccountId, now: Timestamp) -> i64 {
    let hash = id.0.bytes().fold(0_i64, |hash, byte| (hash * 31 + i64::from(byte)) % INSPECT_EVERY);
    now.as_second() - (now.as_second() - hash).rem_euclid(INSPECT_EVERY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_are_looked_into_every_six_hours_and_not_all_at_once() {
        let at = |second| Timestamp::from_second(second).expect("in range");
        let id = |number: i64| crate::identity::DirectoryId(number.to_string());
        let ids: Vec<AccountId> = (0..1000).map(|number| AccountId::derive("ledger", "people", &id(number))).collect();
        let due = |id: &AccountId, minute: i64| {
            last_slot(id, at(1_800_000_000 + minute * 60)) > 1_800_000_000 + (minute - 1) * 60
        };
        let by_minute: Vec<usize> = (1..=360).map(|minute| ids.iter().filter(|id| due(id, minute)).count()).collect();
        assert_eq!(by_minute.iter().sum::<usize>(), 1000, "each once in six hours");
        assert!(by_minute.iter().max() < Some(&20), "{by_minute:?}");
    }
}
