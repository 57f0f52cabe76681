//! Plans the delivery, removal and inspection of the credentials and kubeconfigs of one account in one cluster.

use std::path::{Path, PathBuf};

use bursar_protocol::USUAL_KUBECONFIG;
use jiff::Timestamp;

use super::tenant::{Found, Look, is_made};
use super::{Action, Expected, Reason};
use crate::desired::{DesiredCredential, DesiredNotice, HomeTarget, Proof, TokenOf};
use crate::identity::{AccountId, HostName};
use crate::inventory::HomeFinding;
use crate::ledger::{Account, Certificate, CredentialKey, Delivery, LedgerState};

/// How often each home is inspected, in seconds. A person who broke their kubeconfig gets it back the same day, and
/// 10,000 homes cause one inspection every two seconds.
const INSPECT_EVERY: i64 = 6 * 3600;

/// The field in `Reason::Changed` if only the kubeconfig changes, and not the credential in it.
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
    /// Always `None` for an OIDC credential.
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
        let delivery = look.ledger.deliveries.get(&key).filter(|delivery| !delivery.is_notice());
        let held = Held { certificate: look.ledger.certificates.get(&key), delivery };
        let home = home.on(&credential.host);
        match reason(look, credential, &home, held) {
            Some(reason) => {
                let waits = waits(look, credential);
                // The older credential is proved to be refused before a new one is delivered.
                let proves = reason == Reason::Revoked && (!waits || look.account.regenerated.is_some());
                if proves && standing.prove.is_empty() {
                    standing.prove.extend(proof(look));
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
    standing
}

fn key(look: Look<'_>, host: &HostName) -> CredentialKey {
    CredentialKey::new(look.id.clone(), look.cluster.clone()).on(host)
}

/// Returns the step that proves that the API server refuses the account's older credentials; `None` if there are none.
pub(super) fn proof(look: Look<'_>) -> Option<Action> {
    let held = look.ledger.certificates_of(look.id);
    let mut older = held.filter(|(key, it)| key.cluster == *look.cluster && it.generation != look.account.generation);
    let own = || look.tenant.namespace.as_ref().map(ToString::to_string);
    older.next().map(|(_, older)| look.bindings.proof(look.cluster, &look.account.account, own(), older))
}

fn deliver(look: Look<'_>, credential: &DesiredCredential, home: HomeTarget, reason: Reason) -> Action {
    Action::Deliver {
        cluster: look.cluster.clone(),
        credential: credential.clone(),
        generation: look.account.generation,
        former: former(look, &credential.host, &home).map(Box::new),
        home,
        reason,
    }
}

/// Returns why a new delivery is needed; `None` if the present one is good.
fn reason(look: Look<'_>, credential: &DesiredCredential, home: &HomeTarget, held: Held<'_>) -> Option<Reason> {
    let place = (look.id.clone(), look.cluster.clone());
    let broken = || matches!(look.inventory.homes.get(&place), Some(HomeFinding::Broken { .. }));
    let changed = |what: &str| Some(Reason::Changed(vec![what.to_owned()]));
    let Some(delivery) = held.delivery else {
        return Some(if is_only_revoked(look) { Reason::Revoked } else { Reason::Missing });
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
    } else if delivery.digest != credential.digest {
        changed(KUBECONFIG)
    } else if delivery.checked_at.is_none() || broken() {
        Some(Reason::Drifted(vec![KUBECONFIG.to_owned()]))
    } else {
        let due = held.certificate.filter(|certificate| look.now >= certificate.renew_after);
        due.filter(|_| credential.proof.name().is_some()).map(|certificate| Reason::Expiring(certificate.not_after))
    }
}

/// Whether all credentials of the account in the cluster are revoked. The class may give another kind of credential by
/// now, or one for another host.
fn is_only_revoked(look: Look<'_>) -> bool {
    let mut generations =
        look.ledger.certificates_of(look.id).filter(|(key, _)| key.cluster == *look.cluster).peekable();
    generations.peek().is_some() && generations.all(|(_, held)| held.generation != look.account.generation)
}

/// Whether the delivery of a token waits: its Secret or service account does not exist, and is not created while the
/// cluster does not show objects of this kind.
fn waits(look: Look<'_>, credential: &DesiredCredential) -> bool {
    let Proof::Token(token) = &credential.proof else { return false };
    let objects = [token.secret_key(look.cluster), token.service_account_key(look.cluster)];
    objects.iter().any(|key| look.there.is_blind_to(key) && !is_made(look, key))
}

/// Returns the UID of the present Secret of a token. If somebody deleted the Secret, its tokens are invalid, and both
/// are created again.
fn uid_of_secret(look: Look<'_>, token: &TokenOf) -> Option<String> {
    look.there.objects.get(&token.secret_key(look.cluster)).map(|found| found.uid.to_string())
}

/// Removes deliveries that are no longer desired from homes, or replaces them with a notice.
fn remove(look: Look<'_>) -> impl Iterator<Item = Action> {
    let wanted = move |host: &HostName| look.tenant.credentials.iter().any(|credential| credential.host == *host);
    let reason = if look.tenant.suspended { Reason::Suspended } else { Reason::Orphaned };
    let stands = move |host: &HostName, delivery: &Delivery| {
        notice(look, host, delivery).is_some_and(|notice| notice.digest() == delivery.digest)
    };
    deliveries(look)
        .filter(move |(key, delivery)| !wanted(&key.host) && !stands(&key.host, delivery))
        .filter_map(move |(key, delivery)| removal(look, &key.host, delivery, reason.clone()))
}

/// Returns the notice that replaces a delivery while the account is suspended. If the home moved, there is none.
fn notice<'a>(look: Look<'a>, host: &HostName, delivery: &Delivery) -> Option<&'a DesiredNotice> {
    let home = look.tenant.home.as_ref()?.on(host);
    let notice = look.tenant.notices.iter().find(|notice| notice.credential.host == *host)?;
    (home.file() == delivery.path).then_some(notice)
}

/// Returns the removal of what homes still hold of a tenant that is suspended or about to be deleted.
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
    let proof = removals.first().and_then(|_| proof(look));
    proof.into_iter().chain(removals)
}

/// Removes all deliveries from homes. No notice replaces them, because nothing would keep it up to date.
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

/// Returns the file of a delivery. If it is not in the home of the class, the home is derived from its path.
fn delivered_to(look: Look<'_>, host: &HostName, delivery: &Delivery) -> Option<HomeTarget> {
    match look.tenant.home.as_ref().map(|home| home.on(host)) {
        Some(home) if home.file() == delivery.path => Some(home),
        _ => {
            let account = look.ledger.accounts.get(look.id)?;
            let (home, kubeconfig) = place(look, delivery, account)?;
            let posix = account.posix.clone()?;
            Some(HomeTarget { home, posix, kubeconfig, create: false, replace_unparsable: false })
        }
    }
}

/// Returns the removal of a delivery.
fn removal(look: Look<'_>, host: &HostName, delivery: &Delivery, reason: Reason) -> Option<Action> {
    let home = delivered_to(look, host, delivery)?;
    let notice = notice(look, host, delivery).cloned().map(Box::new);
    Some(Action::RemoveKubeconfig { cluster: look.cluster.clone(), host: host.clone(), home, notice, reason })
}

/// Returns the home of a delivery, and the kubeconfig in it. Rows of older versions name the home only if it is the
/// folder of a host; if the account's home changed since, the end of the path shows it.
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

/// Returns the file that had the last delivery, if it is another one.
fn former(look: Look<'_>, host: &HostName, home: &HomeTarget) -> Option<HomeTarget> {
    let delivery = look.ledger.deliveries.get(&key(look, host)).filter(|delivery| delivery.path != home.file())?;
    delivered_to(look, host, delivery)
}

fn inspect(look: Look<'_>, credential: &DesiredCredential, home: HomeTarget, held: Held<'_>) -> Option<Action> {
    let delivery = held.delivery?;
    let expected = match (&credential.proof, held.certificate) {
        (Proof::Oidc(_), _) => Expected::Entries(Box::new(credential.clone())),
        (_, certificate) => Expected::Issued(certificate?.fingerprint.clone()),
    };
    let is_due = is_due(look, delivery) || next_look(delivery).is_some_and(|at| at <= look.now);
    is_due.then(|| Action::InspectKubeconfig {
        cluster: look.cluster.clone(),
        host: credential.host.clone(),
        home,
        expected,
    })
}

/// The file is inspected again this many seconds after a delivery, because kubectl reads it before taking the lock and
/// then writes back what it read (client-go, `ModifyConfig`). A `kubectl config` that ran during the delivery is over
/// by the first inspection, an editor or a script usually by the second.
const LOOKS: [i64; 2] = [2, 60];

/// Returns the time of the next inspection after a delivery; `None` if all are done, or if it is to be delivered again.
#[must_use]
pub fn next_look(delivery: &Delivery) -> Option<Timestamp> {
    let checked = delivery.checked_at.filter(|_| !delivery.is_notice())?;
    let looks = LOOKS.iter().filter_map(|after| Timestamp::from_second(delivery.at.as_second() + after).ok());
    looks.into_iter().find(|look| checked < *look)
}

/// Whether the regular inspection of a home is due. An inspection dated far in the future comes from a wrong clock, and
/// is repeated.
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
mod tests {
    use std::time::Duration;

    use bursar_protocol::Grant;

    use super::*;
    use crate::identity::AccountKind;
    use crate::kinds::ManagedKind;
    use crate::ledger::change::Change;
    use crate::ledger::{Note, Order, OrderKind};
    use crate::plan::Holder;
    use crate::plan::testing::World;
    use crate::policy::{CredentialKind, OidcRule};

    fn world(kind: CredentialKind) -> (World, AccountId) {
        let mut world = World::new();
        world
            .policy
            .classes
            .get_mut("tool")
            .expect("the policy has this class")
            .credential
            .as_mut()
            .expect("the class has a credential")
            .kind = kind;
        let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
        world.cycle();
        assert!(world.plan().is_empty(), "{}", world.plan());
        (world, foo)
    }

    fn tokens() -> (World, AccountId) {
        let hosts = ["ce1", "ce2"].map(|host| HostName(host.to_owned())).to_vec();
        let directory = Some("/srv/{host}/{name}".into());
        world(CredentialKind::ServiceAccount { lifetime: Duration::from_hours(1), hosts, directory })
    }

    fn said(world: &World) -> String {
        world.plan().to_string().lines().next().unwrap_or_default().to_owned()
    }

    fn order(world: &mut World, account: &AccountId, what: OrderKind) {
        let note = Note { actor: "ann".to_owned(), reason: "r".to_owned(), ticket: None, at: world.now };
        let order = Order { id: 1, account: account.clone(), what, note, bulk: None, object: None };
        world.ledger.apply(&Change::Order(order));
    }

    #[test]
    fn each_host_has_its_token_and_only_the_token_of_a_deleted_secret_is_replaced() {
        let (mut world, foo) = tokens();
        let places: Vec<_> = world.ledger.deliveries.values().map(|delivery| delivery.path.clone()).collect();
        assert_eq!(places, ["/srv/ce1/foo/.kube/config", "/srv/ce2/foo/.kube/config"].map(std::path::PathBuf::from));
        let subjects: Vec<_> = world.ledger.certificates.values().map(|it| it.subject.clone()).collect();
        let generation = world.ledger.accounts[&foo].generation;
        assert_eq!(subjects, vec![format!("system:serviceaccount:tool-foo:bursar-g{generation}"); 2]);
        world.cluster().objects.retain(|key, _| key.name != "bursar-host-ce2");
        assert_eq!(
            said(&world),
            "~ tool foo  52503  secret bursar-host-ce2 edited by somebody else  secret, token for ce2, kubeconfig"
        );
        world.cycle();
        assert!(world.plan().is_empty());
    }

    #[test]
    fn a_revocation_makes_another_service_account_and_a_suspension_leaves_none() {
        let (mut world, foo) = tokens();
        let before = world.ledger.accounts[&foo].generation;
        order(&mut world, &foo, OrderKind::Revoke);
        let plan = world.plan();
        let actions: Vec<Action> = plan.accounts[0].steps().cloned().collect();
        let place = |is: &dyn Fn(&Action) -> bool| actions.iter().position(is).expect("the plan has this action");
        let proved = place(
            &|it| matches!(it, Action::ProveRevoked { alone: Holder::User(user), .. } if user.ends_with(&before.to_string())),
        );
        let gone = place(&|it| matches!(it, Action::Delete { key, .. } if key.kind == ManagedKind::ServiceAccount));
        let bound = place(&|it| matches!(it, Action::Apply { key, .. } if key.kind == ManagedKind::RoleBinding));
        let delivered = place(&|it| matches!(it, Action::Deliver { .. }));
        assert!(bound < gone && gone < proved && proved < delivered, "{plan}");
        world.cycle();
        let accounts = |world: &World| {
            let objects = world.ledger.objects.keys().filter(|key| key.kind == ManagedKind::ServiceAccount);
            objects.map(|key| key.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(accounts(&world), [format!("bursar-g{}", world.ledger.accounts[&foo].generation)]);
        assert!(world.plan().is_empty(), "{}", world.plan());
        order(&mut world, &foo, OrderKind::Suspend);
        world.cycle();
        assert!(accounts(&world).is_empty() && world.ledger.deliveries.values().all(Delivery::is_notice));
    }

    #[test]
    fn a_binding_names_a_service_account_only_after_that_was_made() {
        for killed_after in 0..8 {
            let (mut world, foo) = tokens();
            world.policy.limits.remove_access_per_cycle = crate::policy::Limit { count: 0, percent: None };
            let before = world.ledger.accounts[&foo].generation;
            order(&mut world, &foo, OrderKind::Revoke);
            let (approved, refusals) = world.guarded();
            assert!(refusals.is_empty(), "a revocation is no removal of access: {refusals:?}");
            world.execute_until(&approved, killed_after);
            let named =
                |world: &World| world.bound.values().flatten().cloned().collect::<std::collections::BTreeSet<_>>();
            let is_there = |world: &World, name: &str| {
                let objects = &world.inventory.clusters[&crate::plan::testing::prod()].objects;
                objects.keys().any(|key| key.kind == ManagedKind::ServiceAccount && key.name == *name)
            };
            let old = format!("bursar-g{before}");
            for name in named(&world).iter().filter(|name| **name != old) {
                assert!(is_there(&world, name), "{name} after {killed_after} steps");
            }
            assert_eq!(named(&world).contains(&old), killed_after == 0);
            world.cycle();
            let new = format!("bursar-g{}", world.ledger.accounts[&foo].generation);
            assert_eq!(named(&world), std::collections::BTreeSet::from([new]), "after {killed_after} steps");
            assert!(world.plan().is_empty(), "{}", world.plan());
        }
    }

    #[test]
    fn a_held_account_gets_its_binding_with_the_new_service_account() {
        let (mut world, foo) = tokens();
        let note = Note { actor: "root".to_owned(), reason: "audit".to_owned(), ticket: None, at: world.now };
        world.ledger.holds.insert(foo.clone(), note);
        order(&mut world, &foo, OrderKind::Revoke);
        (0..2).for_each(|_| drop(world.cycle()));
        let new = format!("bursar-g{}", world.ledger.accounts[&foo].generation);
        assert_eq!(world.bound.values().flatten().collect::<Vec<_>>(), [&new]);
    }

    /// The service account is created between the two writes of its binding. A failure or a killed daemon may separate
    /// them.
    #[test]
    fn a_held_account_gets_its_binding_after_an_interrupted_replacement() {
        for stopped_after in 0..8 {
            let (mut world, foo) = tokens();
            let note = Note { actor: "root".to_owned(), reason: "audit".to_owned(), ticket: None, at: world.now };
            world.ledger.holds.insert(foo.clone(), note);
            order(&mut world, &foo, OrderKind::Revoke);
            let (approved, _) = world.guarded();
            world.execute_until(&approved, stopped_after);
            (0..2).for_each(|_| drop(world.cycle()));
            let new = format!("bursar-g{}", world.ledger.accounts[&foo].generation);
            assert_eq!(world.bound.values().flatten().collect::<Vec<_>>(), [&new], "after {stopped_after} steps");
            let (rest, _) = world.guarded();
            assert!(rest.accounts().iter().all(|plan| !plan.changes_something()), "after {stopped_after} steps");
        }
    }

    fn bound(world: &World) -> Vec<String> {
        world.bound.values().flatten().cloned().collect()
    }

    fn rule(world: &mut World) -> &mut CredentialKind {
        &mut world
            .policy
            .classes
            .get_mut("tool")
            .expect("the policy has this class")
            .credential
            .as_mut()
            .expect("the class has a credential")
            .kind
    }

    #[test]
    fn a_change_of_the_class_ends_no_tokens_of_a_held_account() {
        for kind_changes in [true, false] {
            let (mut world, foo) = tokens();
            let note = Note { actor: "root".to_owned(), reason: "audit".to_owned(), ticket: None, at: world.now };
            world.ledger.holds.insert(foo.clone(), note);
            match rule(&mut world) {
                CredentialKind::ServiceAccount { hosts, .. } if !kind_changes => drop(hosts.pop()),
                kind => *kind = CredentialKind::Certificate { lifetime: Duration::from_hours(24) },
            }
            let objects = |world: &World| {
                let objects = &world.inventory.clusters[&crate::plan::testing::prod()].objects;
                objects.keys().cloned().collect::<Vec<_>>()
            };
            let before = (objects(&world), world.bound.clone());
            (0..2).for_each(|_| drop(world.cycle()));
            assert_eq!((objects(&world), world.bound.clone()), before, "another kind: {kind_changes}");
        }
    }

    /// Under a hold or a limit, the account keeps its credential, but a revocation replaces it by the kind that its
    /// class gives.
    #[test]
    fn a_binding_names_the_credential_that_replaced_a_revoked_one_of_another_kind() {
        let hosts = vec![HostName("ce1".to_owned())];
        let token = CredentialKind::ServiceAccount {
            lifetime: Duration::from_hours(1),
            hosts,
            directory: Some("/srv/{host}/{name}".into()),
        };
        let certificate = CredentialKind::Certificate { lifetime: Duration::from_hours(24) };
        let kinds = [(&token, &certificate), (&certificate, &token)];
        for ((from, to), is_held) in kinds.into_iter().flat_map(|kinds| [true, false].map(|is_held| (kinds, is_held))) {
            let (mut world, foo) = self::world(from.clone());
            world.policy.limits.remove_access_per_cycle = crate::policy::Limit { count: 0, percent: None };
            if is_held {
                let note = Note { actor: "root".to_owned(), reason: "audit".to_owned(), ticket: None, at: world.now };
                world.ledger.holds.insert(foo.clone(), note);
            }
            *rule(&mut world) = to.clone();
            order(&mut world, &foo, OrderKind::Revoke);
            (0..3).for_each(|_| drop(world.cycle()));
            let generation = world.ledger.accounts[&foo].generation;
            let (group, account) = (format!("bursar:tool:foo#{generation}"), format!("bursar-g{generation}"));
            let held = world.ledger.certificates_of(&foo).find(|(_, held)| held.generation == generation);
            let held = held.map(|(_, held)| held.subject.contains("serviceaccount"));
            let named = if *to == token { account } else { group };
            let case = format!("held: {is_held}, to {to:?}");
            assert_eq!((held, bound(&world)), (Some(*to == token), vec![named]), "{case}");
        }
    }

    #[test]
    fn a_notice_replaces_the_kubeconfig_while_the_account_is_suspended() {
        let (mut world, foo) = world(CredentialKind::Certificate { lifetime: Duration::from_hours(24 * 7) });
        world.policy.contact = Some("help@example.org".to_owned());
        order(&mut world, &foo, OrderKind::Suspend);
        let plan = world.plan();
        let notices = plan.accounts[0].steps().filter_map(|action| match action {
            Action::RemoveKubeconfig { notice: Some(notice), .. } => Some(notice.notice.text()),
            _ => None,
        });
        let notices: Vec<String> = notices.collect();
        assert_eq!(notices, ["tool foo is suspended since 2026-05-03T12:00:00Z; ask help@example.org"]);
        world.cycle();
        let key = CredentialKey::new(foo.clone(), crate::plan::testing::prod());
        assert!(world.ledger.deliveries[&key].is_notice() && world.plan().is_empty(), "{}", world.plan());
        assert_eq!(next_look(&world.ledger.deliveries[&key]), None);
        // The notice is replaced if the contact changes.
        world.policy.contact = None;
        assert!(said(&world).contains("kubeconfig replaced by a notice"), "{}", world.plan());
        world.cycle();
        order(&mut world, &foo, OrderKind::Resume);
        assert!(!world.ledger.is_being_revoked(&foo));
        assert!(said(&world).ends_with("certificate, kubeconfig"), "{}", world.plan());
        world.cycle();
        assert!(!world.ledger.deliveries[&key].is_notice() && world.plan().is_empty(), "{}", world.plan());
    }

    #[test]
    fn a_delivery_into_another_file_names_the_old_one() {
        type Change = fn(&mut World, &AccountId);
        let home: Change = |world, foo| world.account(foo).home = Some("/data/other/foo".into());
        let file: Change = |world, _| {
            let class = world.policy.classes.get_mut("tool").expect("the policy has this class");
            class.home.as_mut().expect("the class has a home").kubeconfig = ".kube/bursar".into();
        };
        for (change, new, is_row_old) in [
            (home, "/data/other/foo/.kube/config", false),
            (home, "/data/other/foo/.kube/config", true),
            (file, "/data/project/foo/.kube/bursar", false),
        ] {
            let (mut world, foo) = world(CredentialKind::Certificate { lifetime: Duration::from_hours(24 * 7) });
            let key = CredentialKey::new(foo.clone(), crate::plan::testing::prod());
            let old = world.ledger.deliveries[&key].clone();
            if is_row_old {
                world.ledger.deliveries.set(key.clone(), Some(Delivery { home: None, ..old.clone() }));
            }
            change(&mut world, &foo);
            let (approved, refusals) = world.guarded();
            assert_eq!(refusals, [], "no access is lost");
            let mut steps = approved.accounts()[0].steps();
            let names_it = |step: &Action| {
                matches!(step, Action::Deliver { former: Some(former), home, .. }
                    if former.file() == old.path && home.file() == std::path::Path::new(new))
            };
            assert!(steps.any(names_it), "{new}");
            world.cycle();
            assert_eq!(world.ledger.deliveries[&key].path, std::path::Path::new(new));
            assert!(world.plan().is_empty(), "{}", world.plan());
        }
    }

    #[test]
    fn a_revoked_credential_is_replaced_at_once_even_if_the_home_moved() {
        let (mut world, foo) = world(CredentialKind::Certificate { lifetime: Duration::from_hours(24 * 7) });
        world.account(&foo).home = Some("/data/other/foo".into());
        order(&mut world, &foo, OrderKind::Revoke);
        world.cycle();
        let key = CredentialKey::new(foo, crate::plan::testing::prod());
        assert!(world.ledger.deliveries[&key].path.starts_with("/data/other/foo"), "{}", world.plan());
    }

    #[test]
    fn credentials_of_an_oidc_issuer_are_never_renewed() {
        let (mut world, foo) = tokens();
        let rule = OidcRule {
            issuer: "https://sso.example.org".to_owned(),
            client_id: "kubernetes".to_owned(),
            scopes: Vec::new(),
            grant: Grant::Auto,
            user: "sso:{name}".to_owned(),
        };
        let class = world.policy.classes.get_mut("tool").expect("the policy has this class");
        class.credential.as_mut().expect("the class has a credential").kind = CredentialKind::Oidc(rule);
        let plan = world.plan();
        assert!(plan.to_string().contains("kubeconfig of ce2 removed"), "{plan}");
        world.cycle();
        assert!(world.plan().is_empty(), "{}", world.plan());
        let key = CredentialKey::new(foo, crate::plan::testing::prod());
        assert!(world.ledger.certificates.is_empty() && world.ledger.deliveries.contains_key(&key));
        world.now += jiff::SignedDuration::from_hours(24 * 365);
        let plan = world.plan();
        let actions: Vec<Action> = plan.accounts[0].steps().cloned().collect();
        assert!(actions.iter().all(|action| matches!(action, Action::InspectKubeconfig { .. })), "{actions:?}");
    }

    #[test]
    fn a_delivery_is_inspected_after_two_seconds_and_after_a_minute() {
        let kind = CredentialKind::Certificate { lifetime: Duration::from_hours(24 * 7) };
        let (mut world, foo) = world(kind);
        let key = CredentialKey::new(foo, crate::plan::testing::prod());
        let looks = |world: &World| {
            let accounts = world.plan().accounts;
            accounts.iter().flat_map(|plan| &plan.actions).filter(|action| action.is_look()).count()
        };
        let after = |world: &mut World, seconds| {
            world.now = world.ledger.deliveries[&key].at + jiff::SignedDuration::from_secs(seconds);
            looks(world)
        };
        assert_eq!((after(&mut world, 0), after(&mut world, 1), after(&mut world, 2)), (0, 0, 1));
        world.cycle();
        assert_eq!((after(&mut world, 3), after(&mut world, 59), after(&mut world, 60)), (0, 0, 1));
        world.cycle();
        assert_eq!((after(&mut world, 61), next_look(&world.ledger.deliveries[&key])), (0, None));
    }

    #[test]
    fn homes_are_inspected_every_six_hours_and_not_all_at_once() {
        let at = |second| Timestamp::from_second(second).expect("the time is in range");
        let id = |number: i64| crate::identity::DirectoryId(number.to_string());
        let ids: Vec<AccountId> = (0..1000).map(|number| AccountId::derive("ledger", "people", &id(number))).collect();
        let due = |id: &AccountId, minute: i64| {
            last_slot(id, at(1_800_000_000 + minute * 60)) > 1_800_000_000 + (minute - 1) * 60
        };
        let by_minute: Vec<usize> = (1..=360).map(|minute| ids.iter().filter(|id| due(id, minute)).count()).collect();
        assert_eq!(by_minute.iter().sum::<usize>(), 1000, "each home is inspected once in six hours");
        assert!(by_minute.iter().max() < Some(&20), "{by_minute:?}");
    }
}
