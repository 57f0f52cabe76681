//! Revokes a whole class: one account first, then a limited number per cycle. The revocation pauses while new
//! certificates cannot be issued or delivered in general. A single account that fails delays no other; otherwise a
//! tenant could break its own home to keep the stolen certificates of all others valid.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Account, CERTIFICATE, Certificate, CredentialKey, Delivery, Failure, LedgerState, Lifecycle, Note, Order};
use crate::identity::{AccountId, AccountName, ClusterName, of_generation_group};
use crate::json_text::JsonText;
use crate::kinds::Stage;
use crate::policy::Limit;

/// How long the last revoked accounts may delay the next ones while they neither have a new certificate nor fail. The
/// time is long enough for a slow signer. It is short enough that a class is revoked within hours even if one of its
/// clusters is unreachable.
const PATIENCE: SignedDuration = SignedDuration::from_mins(1);

/// The revocation of one class. Each account that waits for its turn has an [`Order`] whose `bulk` is the class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkRevocation {
    /// The actor, the time and the reason of the order.
    pub note: Note,
    /// When the last accounts were revoked.
    pub at: Timestamp,
    /// The accounts that were revoked last. The next accounts wait until each of these has its new certificate or
    /// fails, but at most for [`PATIENCE`].
    pub last: BTreeSet<AccountId>,
    /// Accounts that were revoked before `last`, and were not finished when `last` were revoked.
    pub earlier: BTreeSet<AccountId>,
    /// The number of accounts that were revoked.
    pub done: u64,
}

impl BulkRevocation {
    /// Returns a revocation that has revoked no account yet.
    #[must_use]
    pub const fn begun(note: Note) -> Self {
        Self { at: note.at, note, last: BTreeSet::new(), earlier: BTreeSet::new(), done: 0 }
    }

    /// Returns when the next accounts stop waiting for the accounts in `last`.
    #[must_use]
    pub fn waits_until(&self) -> Option<Timestamp> {
        self.at.checked_add(PATIENCE).ok()
    }
}

impl LedgerState {
    /// Returns the accounts that wait for their turn in the revocation of `class`, except held accounts.
    pub fn waiting_for_revocation(&self, class: &str) -> impl Iterator<Item = &Account> {
        let waits = |order: &&Order| order.bulk.as_deref() == Some(class) && !self.holds.contains_key(&order.account);
        self.orders.iter().filter(waits).filter_map(|order| self.accounts.get(&order.account))
    }

    /// Returns the held accounts. Their turn in the revocation of `class` comes after their release.
    pub fn held_in_revocation(&self, class: &str) -> impl Iterator<Item = &Account> {
        let held = |order: &&Order| order.bulk.as_deref() == Some(class) && self.holds.contains_key(&order.account);
        self.orders.iter().filter(held).filter_map(|order| self.accounts.get(&order.account))
    }

    /// Returns the revoked accounts whose older credentials may still be accepted or are still in a home.
    #[must_use]
    pub fn under_way(&self, revocation: &BulkRevocation) -> BTreeSet<AccountId> {
        let mut revoked = revocation.last.iter().chain(&revocation.earlier).peekable();
        if revoked.peek().is_none() {
            return BTreeSet::new();
        }
        let bound = self.bound_by_former_generations();
        let is_bound = |id: &AccountId| self.accounts.get(id).is_some_and(|it| bound.contains_key(&it.account_name()));
        revoked.filter(|id| self.is_being_revoked(id) || is_bound(id)).cloned().collect()
    }

    /// Returns the accounts that bindings of Bursar still name with a former generation, each with the clusters of
    /// these bindings.
    #[must_use]
    pub fn bound_by_former_generations(&self) -> BTreeMap<AccountName, BTreeSet<&ClusterName>> {
        let active = self.accounts.values().filter(|account| account.state == Lifecycle::Active);
        let present: BTreeSet<u64> = active.map(|account| account.generation).collect();
        let is_former = |after: &str| {
            let digits = after.find(|c: char| !c.is_ascii_digit()).map_or(after, |end| &after[..end]);
            digits.parse().is_ok_and(|generation| !present.contains(&generation))
        };
        let may_be_former = |subjects: &&JsonText| subjects.text().split('#').skip(1).any(is_former);
        let mut bound: BTreeMap<AccountName, BTreeSet<&ClusterName>> = BTreeMap::new();
        for (key, record) in self.objects.iter().filter(|(key, _)| key.kind.stage() == Stage::Access) {
            let subjects = record.detail.as_ref().filter(may_be_former).map(JsonText::value);
            let subjects = subjects.as_ref().and_then(Value::as_array).into_iter().flatten();
            let named = subjects.filter_map(|subject| of_generation_group(subject["name"].as_str()?));
            for (account, _) in named.filter(|(_, generation)| !present.contains(generation)) {
                bound.entry(account).or_default().insert(&key.cluster);
            }
        }
        bound
    }

    /// Returns the time until which the accounts in `last` may delay the next accounts; `None` if there is no delay.
    #[must_use]
    pub fn holds_up_until(&self, revocation: &BulkRevocation) -> Option<Timestamp> {
        let holds_up = |id: &AccountId| self.is_being_revoked(id) && self.pausing_failures_of(id).next().is_none();
        if revocation.last.iter().any(holds_up) { revocation.waits_until() } else { None }
    }

    /// Returns the accounts whose failures pause the revocation. It pauses if the signer refuses one of the last
    /// accounts, or if most of the last accounts, and at least two, have failed since they were revoked.
    #[must_use]
    pub fn pauses(&self, revocation: &BulkRevocation) -> BTreeSet<AccountName> {
        let BulkRevocation { last, at, .. } = revocation;
        let failing = last.iter().filter(|id| self.is_being_revoked(id));
        let failing =
            failing.filter_map(|id| Some((id, self.pausing_failures_of(id).find(|failure| failure.since >= *at)?)));
        let failing: Vec<(&AccountId, &Failure)> = failing.collect();
        let is_general = failing.len() > 1 && 2 * failing.len() > last.len();
        if !is_general && !failing.iter().any(|(_, failure)| failure.step == CERTIFICATE) {
            return BTreeSet::new();
        }
        failing.into_iter().filter_map(|(id, _)| Some(self.accounts.get(id)?.account_name())).collect()
    }

    /// Whether the next accounts may be revoked.
    #[must_use]
    pub fn goes_on(&self, revocation: &BulkRevocation, now: Timestamp) -> bool {
        // A clock that was set back must not extend the wait.
        let is_over = now.duration_since(revocation.at).abs() >= PATIENCE;
        self.pauses(revocation).is_empty() && (is_over || self.holds_up_until(revocation).is_none())
    }

    fn pausing_failures_of<'a>(&'a self, id: &'a AccountId) -> impl Iterator<Item = &'a Failure> {
        // The makers of adopted namespaces must not be able to pause a revocation.
        let counts = |failure: &&Failure| failure.attempts > 0 && !failure.is_of_realm() && !failure.is_of_adopted();
        self.failures_of(id).map(|(_, failure)| failure).filter(counts)
    }

    /// Returns the orders that the next plan carries out: all orders except those that wait for their turn. `pace`
    /// limits how many accounts of a class may be revoked per cycle.
    #[must_use]
    pub fn orders_due(&self, pace: Limit, now: Timestamp) -> Vec<&Order> {
        let mut due: BTreeSet<&AccountId> = BTreeSet::new();
        for (class, revocation) in &self.revocations {
            if !self.goes_on(revocation, now) {
                continue;
            }
            let mut waiting: Vec<&Account> = self.waiting_for_revocation(class).collect();
            // An account that already fails comes last, because its failure says nothing about the new certificates of
            // other accounts.
            waiting.sort_by_cached_key(|account| {
                (self.pausing_failures_of(&account.id).next().is_some(), account.name.clone(), account.id.clone())
            });
            let all = revocation.done + waiting.len() as u64;
            let is_proved = revocation.last.iter().any(|id| self.has_new_credential(id));
            let turn = match revocation.done {
                0 => 1,
                // If two accounts are revoked, a failure of only one of them is recognised as that account's own
                // problem.
                _ if !is_proved => 2,
                _ => pace.allowed(all),
            };
            due.extend(waiting.iter().take(usize::try_from(turn).unwrap_or(usize::MAX)).map(|account| &account.id));
        }
        // If an account has an order of its own, all its orders are carried out together, so that the bulk revocation
        // does not revoke it a second time. For a held account, this applies only to an order that is carried out in
        // spite of the hold. All its other orders are carried out at its release, even if the revocation of its class
        // is complete by then.
        let is_held = |order: &Order| self.holds.contains_key(&order.account);
        let is_due = |order: &&Order| match &order.bulk {
            Some(class) => !self.revocations.contains_key(class) && !is_held(order),
            None => order.what.takes_access() || !is_held(order),
        };
        let alone: BTreeSet<&AccountId> = self.orders.iter().filter(is_due).map(|order| &order.account).collect();
        let turn =
            |order: &&Order| order.bulk.is_none() || due.contains(&order.account) || alone.contains(&order.account);
        self.orders.iter().filter(turn).collect()
    }

    /// Whether the account has its new credential in at least one cluster, or needs none. Clusters that are unreachable
    /// do not matter.
    fn has_new_credential(&self, id: &AccountId) -> bool {
        let account = self.accounts.get(id);
        let is_new = |key, generation| {
            account.is_some_and(|account| account.generation == generation)
                && self.deliveries.get(key).is_some_and(Delivery::may_hold_a_credential)
        };
        !self.is_being_revoked(id) || self.certificates_of(id).any(|(key, found)| is_new(key, found.generation))
    }

    /// Whether the account has a new generation, but a home still has a certificate of an older one.
    #[must_use]
    pub fn is_being_revoked(&self, id: &AccountId) -> bool {
        self.certificates_of(id).any(|(key, certificate)| self.outdates(key, certificate).is_some())
    }

    /// Returns the account and the cluster of each certificate of an older generation that a home still has.
    pub fn outdated(&self) -> impl Iterator<Item = (&Account, &ClusterName)> {
        self.certificates.iter().filter_map(|(key, held)| Some((self.outdates(key, held)?, &key.cluster)))
    }

    fn outdates(&self, key: &CredentialKey, certificate: &Certificate) -> Option<&Account> {
        let account = self.accounts.get(&key.account).filter(|account| account.state == Lifecycle::Active)?;
        let is_older = account.generation != certificate.generation
            && self.deliveries.get(key).is_some_and(Delivery::may_hold_a_credential);
        is_older.then_some(account)
    }

    /// Returns the names of the revoked accounts that do not have their new certificate yet.
    #[must_use]
    pub fn being_revoked(&self) -> BTreeSet<AccountName> {
        self.outdated().map(|(account, _)| account.account_name()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::AccountKind;
    use crate::ledger::OrderKind;
    use crate::ledger::change::Change;
    use crate::plan::testing::{World, prod};

    const PACE: Limit = Limit { count: 2, percent: None };

    fn note(world: &World) -> Note {
        Note { actor: "ann".to_owned(), reason: "stolen".to_owned(), ticket: None, at: world.now }
    }

    fn site() -> World {
        let mut world = World::new();
        for (uid, name) in (52_501..).zip(["ta", "tb", "tc", "td"]) {
            world.add(AccountKind::Tool, name, Some(uid));
        }
        world.cycle();
        let note = note(&world);
        let ids: Vec<AccountId> = world.ledger.accounts.keys().cloned().collect();
        for (id, account) in (1..).zip(ids) {
            let (what, bulk) = (OrderKind::Revoke, Some("tool".to_owned()));
            world.ledger.orders.push(Order { id, account, what, note: note.clone(), bulk, object: None });
        }
        let revocation = BulkRevocation::begun(note);
        world.ledger.apply(&Change::Revocation("tool".to_owned(), Some(revocation)));
        world
    }

    fn due(world: &World) -> Vec<&str> {
        let orders = world.ledger.orders_due(PACE, world.now);
        let mut names: Vec<&str> =
            orders.iter().map(|order| world.ledger.accounts[&order.account].name.as_str()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_bulk_revocation_starts_with_one_account_and_waits_for_its_certificate() {
        let mut world = site();
        assert_eq!(due(&world), ["ta"]);
        let ta = world.id(AccountKind::Tool, "ta");
        let revocation = world.ledger.revocations.get_mut("tool").expect("class tool is being revoked");
        (revocation.done, revocation.last) = (1, BTreeSet::from([ta.clone()]));
        world.ledger.orders.retain(|order| order.account != ta);
        assert_eq!(due(&world), ["tb", "tc"]);
        world.account(&ta).generation += 1;
        assert!(due(&world).is_empty() && world.ledger.is_being_revoked(&ta));
    }

    /// Runs cycles in which these accounts do not get their new certificates, because the given steps fail.
    fn cycles(world: &mut World, count: usize, fails: &[(&str, &str)]) {
        for _ in 0..count {
            world.look();
            let before = world.ledger.certificates.clone();
            let (approved, _) = world.guarded();
            world.execute(&approved);
            for (name, step) in fails {
                let id = world.id(AccountKind::Tool, name);
                for (key, certificate) in before.iter().filter(|(key, _)| key.account == id) {
                    world.ledger.certificates.insert(key.clone(), certificate.clone());
                }
                if !world.ledger.is_being_revoked(&id) || step.is_empty() {
                    continue;
                }
                let now = world.now;
                let new = Failure { step: (*step).to_owned(), attempts: 1, next_try: now, ..Failure::begun(now) };
                let place = (id, prod());
                if !world.ledger.failures.contains_key(&place) {
                    world.ledger.failures.insert(place, new);
                }
            }
            world.now += SignedDuration::from_secs(5);
        }
    }

    /// Returns the tools whose generation differs from that in `before`.
    fn revoked(world: &World, before: &World) -> Vec<String> {
        let is_new = |account: &&Account| account.generation != before.ledger.accounts[&account.id].generation;
        let mut names: Vec<String> =
            world.ledger.accounts.values().filter(is_new).map(|account| account.name.clone()).collect();
        names.sort_unstable();
        names
    }

    fn fails(world: &mut World, name: &str) {
        let (id, since) = (world.id(AccountKind::Tool, name), world.now - SignedDuration::from_hours(24));
        let failure = Failure { step: "home".to_owned(), attempts: 9, next_try: since, ..Failure::begun(since) };
        world.ledger.failures.insert((id, prod()), failure);
    }

    #[test]
    fn a_tool_whose_home_fails_delays_no_other_revocation() {
        for is_old in [true, false] {
            let (mut world, before) = (site(), site());
            if is_old {
                fails(&mut world, "ta");
            }
            cycles(&mut world, 8, &[("ta", "home")]);
            assert_eq!(revoked(&world, &before), ["ta", "tb", "tc", "td"], "failing since yesterday: {is_old}");
            let ta = world.id(AccountKind::Tool, "ta");
            assert!(world.ledger.is_being_revoked(&ta));
            let progress = crate::plan::revocation::RevocationProgress::of(&world.ledger).remove(0);
            assert_eq!(
                (progress.done, progress.under_way, progress.waiting),
                (3, 1, 0),
                "failing since yesterday: {is_old}"
            );
            assert!(progress.is_at_rest(world.now));
            cycles(&mut world, 2, &[]);
            assert!(world.ledger.revocations.is_empty(), "the revocation is complete");
        }
    }

    #[test]
    fn a_tool_that_already_fails_is_revoked_last() {
        let mut world = site();
        fails(&mut world, "ta");
        assert_eq!(due(&world), ["tb"]);
    }

    #[test]
    fn a_bulk_revocation_waits_at_most_a_minute_for_an_unreachable_cluster() {
        let (mut world, before) = (site(), site());
        cycles(&mut world, 8, &[("ta", "")]);
        assert_eq!(revoked(&world, &before), ["ta"]);
        world.now += PATIENCE;
        cycles(&mut world, 8, &[("ta", "")]);
        assert_eq!(revoked(&world, &before), ["ta", "tb", "tc", "td"]);
    }

    #[test]
    fn an_unreachable_cluster_delays_no_bulk_revocation_in_another() {
        let (mut world, before) = (site(), site());
        for (key, certificate) in world.ledger.certificates.clone() {
            let away = CredentialKey { cluster: ClusterName("away".into()), ..key.clone() };
            world.ledger.deliveries.insert(away.clone(), world.ledger.deliveries[&key].clone());
            world.ledger.certificates.insert(away, certificate);
        }
        cycles(&mut world, 2, &[]);
        assert_eq!(revoked(&world, &before), ["ta"]);
        let first = world.id(AccountKind::Tool, "ta");
        assert!(world.ledger.is_being_revoked(&first) && world.ledger.has_new_credential(&first));
    }

    #[test]
    fn a_bulk_revocation_ends_when_the_unreachable_cluster_answers_again() {
        let (mut world, before) = (site(), site());
        let away = world.inventory.clusters.remove(&prod()).expect("cluster prod answers");
        for _ in 0..4 {
            world.cycles(4);
            world.now += PATIENCE;
        }
        assert_eq!(revoked(&world, &before), ["ta", "tb", "tc", "td"]);
        let progress = |world: &World| crate::plan::revocation::RevocationProgress::of(&world.ledger);
        assert_eq!((progress(&world)[0].done, progress(&world)[0].under_way), (0, 4), "nobody has a new certificate");
        assert!(progress(&world)[0].is_at_rest(world.now));
        let request = |reason: &str| {
            let (class, ticket) = ("tool".to_owned(), None);
            crate::orders::request::OrderRequest::RevokeClass(crate::orders::request::RevokeClass {
                class,
                reason: Some(reason.to_owned()),
                ticket,
            })
        };
        let orders = |world: &World, reason: &str| {
            let requests = [request(reason)];
            let written = crate::orders::write_all(&world.ledger, &world.policy, "ann", &requests, world.now);
            written.changes.iter().filter(|change| matches!(change, Change::Order(_))).count()
        };
        assert_eq!(orders(&world, "stolen"), 0, "the same order joins the running revocation");
        assert_eq!(orders(&world, "stolen again"), 4, "another theft is another revocation");
        world.inventory.clusters.insert(prod(), away);
        world.cycles(2);
        assert!(progress(&world).is_empty(), "{:?}", progress(&world));
    }

    #[test]
    fn a_held_account_keeps_the_revocation_of_its_class_open() {
        let mut world = site();
        let (ta, note) = (world.id(AccountKind::Tool, "ta"), note(&world));
        world.ledger.holds.insert(ta.clone(), note);
        cycles(&mut world, 8, &[]);
        let progress = crate::plan::revocation::RevocationProgress::of(&world.ledger).remove(0);
        assert_eq!((progress.done, progress.held), (3, 1));
        assert!(progress.is_at_rest(world.now));
        world.ledger.holds.remove(&ta);
        cycles(&mut world, 3, &[]);
        assert!(world.ledger.revocations.is_empty() && world.ledger.orders.is_empty());
    }

    #[test]
    fn a_bulk_revocation_pauses_if_the_signer_or_most_homes_fail() {
        let (mut world, before) = (site(), site());
        cycles(&mut world, 30, &[("ta", CERTIFICATE)]);
        assert_eq!(revoked(&world, &before), ["ta"]);
        let paused = crate::plan::revocation::RevocationProgress::of(&world.ledger);
        assert_eq!(paused[0].stopped_by.iter().map(ToString::to_string).collect::<Vec<_>>(), ["tool:ta"]);
        let homes = ["ta", "tb", "tc", "td"].map(|name| (name, "home"));
        let mut world = site();
        cycles(&mut world, 30, &homes);
        assert_eq!(revoked(&world, &before), ["ta", "tb", "tc"], "both of the last accounts fail");
        // An administrator suspends both. Suspended accounts have no access, and do not count as failing.
        let why = Box::new(crate::ledger::Suspension::by(note(&world)));
        for name in ["tb", "tc"] {
            let id = world.id(AccountKind::Tool, name);
            (world.account(&id).state, world.account(&id).suspension) = (Lifecycle::Suspended, Some(why.clone()));
        }
        cycles(&mut world, 2, &homes);
        assert_eq!(revoked(&world, &before).len(), 4);
    }

    #[test]
    fn all_orders_of_an_account_with_its_own_order_are_carried_out_and_those_of_a_held_account_wait() {
        let mut world = site();
        let (ta, td) = (world.id(AccountKind::Tool, "ta"), world.id(AccountKind::Tool, "td"));
        let note = note(&world);
        world.ledger.holds.insert(ta, note.clone());
        world.ledger.orders.push(Order { id: 9, account: td, what: OrderKind::Revoke, note, bulk: None, object: None });
        assert_eq!(due(&world), ["tb", "td", "td"]);
    }
}
