//! Orders and decisions about accounts that are not finished, and what they wait for.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::control::api::{ClusterStatus, CycleReport, OrderAnswer};
use crate::desired::quota::stops_pods;
use crate::desired::{Groups, classes_by};
use crate::identity::{AccountId, AccountName, ClusterName};
use crate::kinds::Stage;
use crate::ledger::{Account, FOREIGN, Failure, LedgerState, Lifecycle, Note, Order, OrderKind, Suspension};
use crate::orders::request::RequestRefusal;
use crate::plan::guard::COMPLETENESS;
use crate::policy::{Policy, Realm};

/// A change of an account's access that is not finished.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unfinished {
    pub account: AccountName,
    /// For example `suspend`, `resume`, `revoke`, `adopt uid`.
    pub what: String,
    /// The note of the order; `None` if nobody ordered the change, or if only the history still has the order.
    pub by: Option<Note>,
    /// What the change waits for, as texts for administrators.
    pub waits_for: Vec<String>,
    /// Whether a limit or an incomplete read holds the change back.
    pub refused: bool,
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { account, what, by, waits_for, refused: _ } = self;
        let by = by.as_ref().map(|note| format!(" (ordered by {})", note.actor)).unwrap_or_default();
        write!(f, "{account}: {what}{by} waits for {}", waits_for.join("; "))
    }
}

/// Returns all unfinished changes, by account. `clusters` is the clusters' status as in `bursar status`; empty if no
/// daemon runs.
#[must_use]
pub fn all(ledger: &LedgerState, policy: &Policy, clusters: &BTreeMap<String, ClusterStatus>) -> Vec<Unfinished> {
    let left = Left::of(ledger, policy);
    let look = Look { ledger, clusters };
    // The progress of a bulk revocation counts its orders, so they are listed here only if a hold stops them.
    let is_shown = |order: &&Order| order.bulk.is_none() || ledger.holds.contains_key(&order.account);
    let orders = ledger.orders.iter().filter(is_shown);
    let orders = orders.filter_map(|order| look.written(order));
    let suspended = left.bound.iter().filter_map(|(id, places)| look.bound(ledger.accounts.get(id)?, places));
    let mut revoking: BTreeMap<&AccountId, (&Account, Places<'_>)> = BTreeMap::new();
    for (account, cluster) in ledger.outdated().filter(|(account, _)| !left.bound.contains_key(&account.id)) {
        let (_, places) = revoking.entry(&account.id).or_insert_with(|| (account, Places::new()));
        places.insert(&cluster.0);
    }
    let revoked = revoking.values().map(|(account, places)| look.begun(account, "revoke", None, places));
    let sealed = left.sealed.iter().filter_map(|(id, places)| {
        let account = ledger.accounts.get(id)?;
        Some(look.begun(account, "resume", None, places))
    });
    let mut all: Vec<Unfinished> = orders.chain(suspended).chain(revoked).chain(sealed).collect();
    let mut known: BTreeSet<AccountName> = all.iter().map(|known| known.account.clone()).collect();
    let begun = ledger.failures.iter().filter(|(_, failure)| failure.is_begun() || failure.is_of_removal());
    for ((id, cluster), _) in begun {
        let Some(account) = ledger.accounts.get(id).filter(|account| account.state == Lifecycle::Suspended) else {
            continue;
        };
        if known.insert(account.account_name()) {
            all.push(look.begun(account, "suspend", ordered(account), &BTreeSet::from([cluster.0.as_str()])));
        }
    }
    all.sort();
    all
}

/// Returns an unfinished suspension for each of `people`, who may not log in although their users in `realm` still can.
/// `trouble` says why the realm cannot be changed; `None` if it can.
#[must_use]
pub fn in_realm<'a>(
    ledger: &LedgerState,
    people: impl Iterator<Item = &'a Account>,
    realm: &Realm,
    trouble: Option<&str>,
) -> Vec<Unfinished> {
    let Realm { name, .. } = realm;
    let unfinished = people.map(|person| {
        let account = person.account_name();
        let failure = ledger.failures.get(&(person.id.clone(), realm.place()));
        let refusal = ledger.refusals.iter().find(|refusal| refusal.accounts.contains(&account));
        let waits_for = match (trouble, failure, refusal) {
            (Some(why), ..) => format!("realm {name}, where the user may still log in ({why})"),
            (None, Some(failure), _) => format!("{} in realm {name}: {}", failure.step, failure.reason),
            (None, None, Some(refusal)) => {
                format!("room in limit {}, or `bursar approve {}`", refusal.limit, refusal.hash)
            }
            (None, None, None) => format!("the next cycle of realm {name}"),
        };
        let refused = trouble.is_none() && failure.is_none() && refusal.is_some();
        Unfinished { account, what: "suspend".to_owned(), by: ordered(person), waits_for: vec![waits_for], refused }
    });
    unfinished.collect()
}

/// Returns which orders in `answer` the cycle did not finish, each with its exit code.
#[must_use]
pub fn after(report: &CycleReport, answer: &OrderAnswer) -> Vec<RequestRefusal> {
    let OrderAnswer { ordered, of_access, .. } = answer;
    let unfinished = report.unfinished.iter().filter(|one| ordered.contains(&one.account));
    let waiting =
        unfinished.map(|one| RequestRefusal { exit_code: if one.refused { 3 } else { 1 }, text: one.to_string() });
    let said: BTreeSet<&AccountName> = report.unfinished.iter().map(|one| &one.account).collect();
    let failing = report.failing.iter().filter(|it| ordered.contains(&it.account) && !said.contains(&it.account));
    // The step waits for `bursar adopt` of a foreign object, which the order does not change.
    let failing = failing.filter(|failing| failing.step != FOREIGN);
    // A failing home does not make an order about a quota unfinished.
    let failing =
        failing.filter(|failing| of_access.contains(&failing.account) || Failure::is_of_objects(&failing.step));
    let failing = failing.map(|failing| RequestRefusal {
        exit_code: 1,
        text: format!("{}: {} in {}: {}", failing.account, failing.step, failing.cluster, failing.reason),
    });
    waiting.chain(failing).collect()
}

/// Names of clusters.
type Places<'a> = BTreeSet<&'a str>;

/// What clusters still have from a former state, according to the last writes in the ledger.
#[derive(Default)]
struct Left<'a> {
    /// Bindings of suspended accounts, or with an older generation.
    bound: BTreeMap<AccountId, Places<'a>>,
    /// Namespaces of active accounts that refuse pods, in clusters of their classes.
    sealed: BTreeMap<AccountId, Places<'a>>,
}

impl<'a> Left<'a> {
    fn of(ledger: &'a LedgerState, policy: &Policy) -> Self {
        let groups = LazyCell::new(|| Groups::of(ledger, &policy.lifecycle));
        let serves = |owner: &Account, cluster: &ClusterName| {
            classes_by(owner, ledger, policy, &groups).iter().any(|class| class.clusters.contains(cluster))
        };
        let mut left = Self::default();
        for (key, record) in &ledger.objects {
            let is_access = key.kind.stage() == Stage::Access;
            // Most objects are neither bindings nor seals, and a look-up of all their accounts would take long.
            if !is_access && !stops_pods(key) {
                continue;
            }
            let owner = ledger.accounts.get(&record.account);
            let cluster = key.cluster.0.as_str();
            let add = |to: &mut BTreeMap<AccountId, Places<'a>>| {
                to.entry(record.account.clone()).or_default().insert(cluster);
            };
            match owner.map(|owner| owner.state) {
                // A cluster that the account's classes no longer name refuses the account's pods permanently.
                Some(Lifecycle::Active) if stops_pods(key) && owner.is_some_and(|it| serves(it, &key.cluster)) => {
                    add(&mut left.sealed);
                }
                Some(Lifecycle::Suspended | Lifecycle::Archived) if is_access => {
                    add(&mut left.bound);
                }
                _ => {}
            }
        }
        let stale = ledger.bound_by_former_generations();
        if !stale.is_empty() {
            for account in ledger.accounts.values() {
                if let Some(places) = stale.get(&account.account_name()) {
                    let places = places.iter().map(|cluster| cluster.0.as_str());
                    left.bound.entry(account.id.clone()).or_default().extend(places);
                }
            }
        }
        left
    }
}

struct Look<'a> {
    ledger: &'a LedgerState,
    clusters: &'a BTreeMap<String, ClusterStatus>,
}

impl Look<'_> {
    /// Describes an order that no plan has carried out yet.
    fn written(&self, order: &Order) -> Option<Unfinished> {
        let account = self.ledger.accounts.get(&order.account)?;
        let name = account.account_name();
        let mut refusals = self.ledger.refusals.iter().filter(|refusal| refusal.accounts.contains(&name));
        let refusal = refusals.next();
        let held = self.ledger.holds.get(&account.id);
        let places = self.ledger.tenants_of(&account.id);
        let away: Vec<String> = places.filter_map(|(cluster, _)| self.away(&cluster.0)).collect();
        let waits_for = match (refusal, held) {
            _ if order.what.is_of_reads() => vec![format!("the next complete read of {}", account.source)],
            (_, Some(note)) => {
                vec![format!("`bursar release {}`: {} holds it", name.words(), note.actor)]
            }
            (Some(refusal), None) if refusal.limit == COMPLETENESS => vec!["a complete read of a directory".to_owned()],
            (Some(refusal), None) => {
                vec![format!("room in limit {}, or `bursar approve {}`", refusal.limit, refusal.hash)]
            }
            (None, None) if !away.is_empty() => away,
            (None, None) => vec!["the next cycle".to_owned()],
        };
        let refused = refusal.is_some() && held.is_none() && !order.what.is_of_reads();
        Some(Unfinished {
            account: name,
            what: word(order.what).to_owned(),
            by: Some(order.note.clone()),
            waits_for,
            refused,
        })
    }

    /// Describes an account that still has outdated bindings.
    fn bound(&self, account: &Account, places: &Places<'_>) -> Option<Unfinished> {
        match account.state {
            Lifecycle::Active => Some(self.begun(account, "revoke", None, places)),
            Lifecycle::Suspended | Lifecycle::Archived => {
                Some(self.begun(account, "suspend", ordered(account), places))
            }
            Lifecycle::New | Lifecycle::Deleted => None,
        }
    }

    fn begun(&self, account: &Account, what: &str, by: Option<Note>, places: &Places<'_>) -> Unfinished {
        let waits_for = places.iter().map(|cluster| {
            self.away(cluster)
                .or_else(|| self.failing(account, cluster))
                .unwrap_or_else(|| format!("the next cycle of cluster {cluster}"))
        });
        let name = account.account_name();
        Unfinished { account: name, what: what.to_owned(), by, waits_for: waits_for.collect(), refused: false }
    }

    fn away(&self, cluster: &str) -> Option<String> {
        let status = self.clusters.get(cluster).filter(|status| !status.ready)?;
        let why = status.trouble.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        Some(format!("cluster {cluster}, which does not answer{why}"))
    }

    fn failing(&self, account: &Account, cluster: &str) -> Option<String> {
        let failure = self.ledger.failures.get(&(account.id.clone(), ClusterName(cluster.into())));
        let failure = failure.filter(|failure| failure.attempts > 0)?;
        Some(format!("{} in {cluster}: {} (again at {:.0})", failure.step, failure.reason, failure.next_try))
    }
}

fn ordered(account: &Account) -> Option<Note> {
    account.suspension.as_deref().and_then(Suspension::ordered).cloned()
}

const fn word(what: OrderKind) -> &'static str {
    match what {
        OrderKind::Suspend => "suspend",
        OrderKind::Resume => "resume",
        OrderKind::Revoke => "revoke",
        OrderKind::Evict => "evict",
        OrderKind::AdoptUid => "adopt uid",
        OrderKind::AdoptAccount => "adopt account",
        OrderKind::AdoptObject => "adopt object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::AccountKind;
    use crate::inventory::ClusterInventory;
    use crate::ledger::change::{Change, RefusalRecord};
    use crate::orders::request::Trigger;
    use crate::plan::testing::{World, prod};

    fn status(ready: bool) -> BTreeMap<String, ClusterStatus> {
        let trouble = (!ready).then(|| "connection refused".to_owned());
        BTreeMap::from([(prod().to_string(), ClusterStatus { ready, trouble, ..ClusterStatus::default() })])
    }

    fn order(world: &mut World, account: &AccountId, what: OrderKind) -> Order {
        let id = world.ledger.orders.last().map_or(1, |order| order.id + 1);
        let note = Note { actor: "ann".to_owned(), reason: "left".to_owned(), ticket: None, at: world.now };
        let order = Order { id, account: account.clone(), what, note, bulk: None, object: None };
        world.ledger.apply(&Change::Order(order.clone()));
        order
    }

    fn said(world: &World, ready: bool) -> Vec<String> {
        all(&world.ledger, &world.policy, &status(ready)).iter().map(ToString::to_string).collect()
    }

    fn away(world: &mut World) -> std::sync::Arc<ClusterInventory> {
        world.inventory.clusters.remove(&prod()).expect("the cluster is in the inventory")
    }

    #[test]
    fn work_that_waits_for_an_unreachable_cluster_is_shown_until_it_is_done() {
        let (mut world, foo) = World::with_foo();
        world.cycle();
        assert_eq!(said(&world, true), Vec::<String>::new());
        for (what, word) in
            [(OrderKind::Revoke, "revoke"), (OrderKind::Suspend, "suspend"), (OrderKind::Resume, "resume")]
        {
            let there = away(&mut world);
            order(&mut world, &foo, what);
            world.cycle();
            assert!(world.ledger.orders.is_empty(), "the order became the account's state in the ledger");
            let by = if what == OrderKind::Suspend { " (ordered by ann)" } else { "" };
            let waits = "waits for cluster prod, which does not answer (connection refused)";
            assert_eq!(said(&world, false), [format!("tool:foo: {word}{by} {waits}")]);
            world.inventory.clusters.insert(prod(), there);
            world.cycle();
            world.cycle();
            assert_eq!(said(&world, true), Vec::<String>::new(), "{what:?}");
        }
    }

    #[test]
    fn a_suspension_is_unfinished_while_a_workspace_names_the_account() {
        let (mut world, alice, algebra) = World::in_course();
        order(&mut world, &alice, OrderKind::Suspend);
        let (approved, _) = world.guarded();
        let own = approved.accounts().iter().position(|plan| plan.id == alice).expect("alice has a part in the plan");
        let steps: usize = approved.accounts()[..=own].iter().map(|plan| plan.steps().count()).sum();
        assert!(approved.accounts()[own + 1..].iter().any(|plan| plan.id == algebra), "the workspace comes after");
        world.execute_until(&approved, steps);
        world.ledger.apply(&Change::Failure(alice, prod(), None));
        assert_eq!(
            said(&world, true),
            ["user:alice: suspend (ordered by ann) waits for the next cycle of cluster prod"]
        );
        world.cycle();
        assert_eq!(said(&world, true), Vec::<String>::new());
    }

    #[test]
    fn an_order_that_no_plan_carried_out_names_what_it_waits_for() {
        let (mut world, foo) = World::with_foo();
        world.cycle();
        let order = order(&mut world, &foo, OrderKind::AdoptObject);
        assert_eq!(said(&world, true), ["tool:foo: adopt object (ordered by ann) waits for the next cycle"]);
        world.ledger.apply(&Change::Hold(foo.clone(), Some(order.note.clone())));
        assert!(said(&world, true)[0].ends_with("waits for `bursar release tool foo`: ann holds it"));
        world.ledger.apply(&Change::Hold(foo, None));
        let name: AccountName = "tool:foo".parse().expect("a name");
        world.ledger.refusals = vec![RefusalRecord {
            hash: "7f3a9c21".to_owned(),
            limit: "suspend_per_day".to_owned(),
            why: "of foo, and of others".to_owned(),
            accounts: vec![name.clone()],
            parts: vec!["x".to_owned()],
        }];
        let (plan, (approved, _)) = (world.plan(), world.guarded());
        let report = crate::report::cycle(Trigger::Order, (world.now, world.now), &world.ledger, &plan, &approved, &[]);
        let report = CycleReport { unfinished: all(&world.ledger, &world.policy, &status(true)), ..report };
        let ordered = OrderAnswer { ordered: BTreeSet::from([name]), ..OrderAnswer::default() };
        let open = after(&report, &ordered);
        assert_eq!((open.len(), open[0].exit_code), (1, 3));
        assert!(
            open[0].text.ends_with("room in limit suspend_per_day, or `bursar approve 7f3a9c21`"),
            "{}",
            open[0].text
        );
        assert_eq!(after(&report, &OrderAnswer::default()), []);
    }

    #[test]
    fn a_step_that_fails_leaves_the_order_open() {
        let (mut world, foo) = World::with_foo();
        world.cycle();
        order(&mut world, &foo, OrderKind::Suspend);
        let (approved, _) = world.guarded();
        world.execute_until(&approved, 1);
        let place = (foo.clone(), prod());
        let begun = world.ledger.failures.get(&place).expect("the suspension has begun").clone();
        let failed = crate::ledger::Failure { attempts: 2, reason: "no answer".to_owned(), ..begun };
        world.ledger.apply(&Change::Failure(foo, ClusterName("prod".into()), Some(failed)));
        let [text] = said(&world, true).try_into().expect("there is one text");
        assert!(text.starts_with("tool:foo: suspend (ordered by ann) waits for suspend in prod: no answer"), "{text}");
    }

    #[test]
    fn a_seal_in_a_cluster_that_the_class_no_longer_names_waits_for_nothing() {
        let mut world = World::new();
        world.another_cluster("gpu");
        let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
        world.cycles(2);
        world.class("tool").clusters = vec![prod()];
        world.cycles(2);
        let gpu = ClusterName("gpu".into());
        assert!(world.ledger.objects.keys().any(|key| stops_pods(key) && key.cluster == gpu), "it is sealed there");
        assert_eq!(said(&world, true), Vec::<String>::new());
        order(&mut world, &foo, OrderKind::Revoke);
        world.cycles(2);
        assert_eq!(said(&world, true), Vec::<String>::new(), "the seal does not make another order fail");
    }
}
