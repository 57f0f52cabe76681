//! Derives the desired state of one account: the change that is due, and what stays in force if the guard refuses it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Claims, World};
use crate::desired::life::{Evidence, Namespaces, Verdict, verdict};
use crate::desired::subject::{Side, Subject};
use crate::desired::{AccountIntent, DesiredAccount, EndOfTenant, Notice, Transition, ssh, tenant};
use crate::identity::{AccountKind, AccountName, ClusterName, DirectoryId, NamespaceName};
use crate::ledger::exception::ExceptionKey;
use crate::ledger::quota::day;
use crate::ledger::{Account, Lifecycle, OrderKind, Suspension, Tenant};
use crate::policy::Class;

impl World<'_> {
    pub(super) fn account(
        &self,
        subject: &Subject<'_>,
        last_generation: &mut u64,
        claimed: &mut Claims,
        notices: &mut Vec<Notice>,
    ) -> Option<DesiredAccount> {
        let Subject { account, taken, .. } = subject;
        let decided = verdict(self.evidence(subject, true));
        let Some(decided) = decided else {
            let mut derived = self.bystander(subject)?;
            // A hold does not delay the leaving of members; orders wait until the hold ends.
            if subject.held.is_some() {
                let mut passing = derived.clone();
                (passing.held, passing.orders, passing.ordered) = (None, Vec::new(), None);
                derived.otherwise = Some(Box::new(passing));
            }
            return Some(derived);
        };
        let places = self.places(subject, &taken.now, &decided, claimed, notices);
        if places.is_empty() && decided.transition == Some(Transition::Create) {
            return None;
        }
        let removal = account.state == Lifecycle::Active
            && (matches!(&decided.transition, Some(Transition::Suspend(why)) if why.ordered().is_none())
                || !account.leaving.is_empty()
                || !taken.rests_on.is_empty()
                || !subject.holders.rests_on.is_empty()
                || places.keys().any(|cluster| !is_taken(&taken.now, cluster)));
        let people = (!decided.suspended && subject.may_keep_people()).then(|| decided.clone());
        let mut derived = self.derived(subject, subject.side(), decided, &places, last_generation);
        if subject.held.is_some() {
            let orders = subject.orders.iter().filter(|order| order.what.takes_access()).copied().collect();
            let passing = Subject { orders, ..subject.clone() };
            derived.otherwise = self.without_removal(&passing, true, claimed, last_generation);
            return Some(derived);
        }
        let returns = derived.transition == Some(Transition::Resume)
            && matches!(account.state, Lifecycle::Suspended | Lifecycle::Archived);
        if returns || matches!(derived.transition, Some(Transition::Archive | Transition::Delete { .. })) {
            derived.otherwise = Some(Box::new(self.still_suspended(subject, returns, claimed, last_generation)));
        }
        if removal {
            let side = Side { holders: &subject.holders.staying, ..subject.side() };
            let people = people.map(|decided| self.derived(subject, side, decided, &places, last_generation));
            derived.otherwise = self.without_removal(subject, true, claimed, last_generation);
            derived.keep_people(subject, people);
        } else if !derived.leaving.is_empty() {
            // Blocking the removal of one member must not block the end of the account's own access, or its return.
            let ends = derived.otherwise.take_if(|_| !returns);
            let mut kept = ends.map_or_else(|| derived.clone(), |kept| *kept);
            kept.leaving.clear();
            derived.otherwise = Some(Box::new(kept));
        }
        Some(derived)
    }

    /// Returns the state of an account that stays suspended because the guard refuses its return or its end.
    fn still_suspended(
        &self,
        subject: &Subject<'_>,
        returns: bool,
        claimed: &mut Claims,
        last_generation: &mut u64,
    ) -> DesiredAccount {
        let places = self.places(subject, &subject.taken.now, &Verdict::SUSPENDED, claimed, &mut Vec::new());
        let mut kept = self.derived(subject, subject.side(), Verdict::SUSPENDED, &places, last_generation);
        if returns {
            // Orders and removals of members wait for the return, so that none of them is lost.
            (kept.orders, kept.ordered) = (Vec::new(), None);
            kept.leaving.clear();
            kept.rests_on.clear();
        }
        kept
    }

    /// Returns the state of an account whose own removal is refused or held. Orders are carried out and, with
    /// `leavings`, former members and suspended people lose their access. The classes stay as they were.
    fn without_removal(
        &self,
        subject: &Subject<'_>,
        leavings: bool,
        claimed: &mut Claims,
        last_generation: &mut u64,
    ) -> Option<Box<DesiredAccount>> {
        let Subject { account, taken, holders, .. } = subject;
        let decided = verdict(Evidence { leavings, ..self.evidence(subject, false) })?;
        let decided = match (&decided.transition, account.state) {
            (None, Lifecycle::Active) | (Some(Transition::Suspend(_)), _) => Verdict { end: None, ..decided },
            (_, Lifecycle::Suspended | Lifecycle::Archived) => Verdict::SUSPENDED,
            (_, Lifecycle::New | Lifecycle::Active | Lifecycle::Deleted) => return None,
        };
        let mut places = self.places(subject, &taken.before, &decided, claimed, &mut Vec::new());
        // If no class gives the account a place any more, and no binding is left there, the place is not created again.
        places.retain(|cluster, _| {
            decided.suspended || is_taken(&taken.before, cluster) || self.is_bound(account, cluster)
        });
        let may_keep_people = leavings && !decided.suspended && !holders.rests_on.is_empty();
        let people = may_keep_people.then(|| decided.clone());
        let now = if leavings { &holders.now } else { &holders.before };
        let side = Side { classes: &taken.before, holders: now, leaves: false };
        let mut derived = self.derived(subject, side, decided, &places, last_generation);
        derived.held = None;
        derived.rests_on.retain(|id| holders.rests_on.contains(id));
        if !leavings {
            derived.leaving.clear();
            derived.rests_on.clear();
        } else if !derived.leaving.is_empty() || !derived.rests_on.is_empty() {
            // An order must not wait until all members may leave.
            derived.otherwise = self.without_removal(subject, false, claimed, last_generation);
        }
        let staying = Side { holders: &holders.staying, ..side };
        let people = people.map(|decided| self.derived(subject, staying, decided, &places, last_generation));
        derived.keep_people(subject, people);
        Some(Box::new(derived))
    }

    /// Returns the notice for the people of a suspended account; `None` if the end of the account has begun or no class
    /// takes it.
    fn notice(&self, account: &Account, transition: Option<&Transition>) -> Option<bursar_protocol::SuspensionNotice> {
        let (why, since) = match (transition, account.state) {
            (Some(Transition::Suspend(why)), Lifecycle::Suspended) => (why, account.since),
            (Some(Transition::Suspend(why)), _) => (why, self.now),
            (None, Lifecycle::Suspended) => (account.suspension.as_deref()?, account.since),
            _ => return None,
        };
        let ends = why.term().and_then(|term| term.until).map(day);
        let contact = || format!("the administrators of {}", self.policy.site);
        Some(bursar_protocol::SuspensionNotice {
            account: format!("{} {}", account.kind, account.name),
            since: format!("{since:.0}"),
            until: ends,
            contact: self.policy.contact.clone().unwrap_or_else(contact),
        })
        .filter(|notice| *why != Suspension::Left && notice.check().is_ok())
    }

    fn evidence<'s>(&'s self, subject: &'s Subject<'_>, removals: bool) -> Evidence<'s> {
        let taken = &subject.taken;
        let classes = if removals { &taken.now } else { &taken.before };
        Evidence {
            account: subject.account,
            wanted: !classes.is_empty(),
            orders: &subject.orders,
            lifecycle: &self.policy.lifecycle,
            removals,
            leavings: removals,
            idle: subject.idle.due,
            asked: subject.asked,
            namespaces: Namespaces {
                count: subject.namespaces().count() as u64,
                archived: self.is_archived(subject),
                gone: !self.is_there(subject),
            },
            shared: classes.iter().any(|class| class.credential.is_some())
                || self.ledger.certificates_of(&subject.account.id).next().is_some(),
            now: self.now,
        }
    }

    /// Returns the state of an account that is not a tenant, but has members, orders or deliveries that the plan needs.
    /// Most such accounts are directory groups. After an account is deleted, the removal of its kubeconfigs and SSH
    /// keys, and the inspections after that removal, still go on, because the deletion does not wait for them.
    fn bystander(&self, subject: &Subject<'_>) -> Option<DesiredAccount> {
        let account = subject.account;
        let is_deleted = account.state == Lifecycle::Deleted;
        let rows = is_deleted.then(|| self.ledger.deliveries_of(&account.id)).into_iter().flatten();
        let left = rows.filter(|(_, delivery)| !delivery.is_notice());
        let mut places: BTreeMap<&ClusterName, Option<NamespaceName>> =
            left.map(|(key, _)| (&key.cluster, None)).collect();
        // SSH keys belong to no cluster.
        if is_deleted && self.ledger.ssh_deliveries.contains_key(&account.id) {
            places.extend(subject.tenants.iter().map(|(cluster, _)| (*cluster, None)));
        }
        let concerned = !account.leaving.is_empty() || !subject.orders.is_empty() || !places.is_empty();
        let end = (!places.is_empty()).then_some(EndOfTenant::Delete);
        let idle = Verdict { transition: None, regenerated: None, suspended: end.is_some(), end };
        let nothing = Side { classes: &[], holders: &[], leaves: true };
        concerned.then(|| self.derived(subject, nothing, idle, &places, &mut 0))
    }

    fn derived(
        &self,
        subject: &Subject<'_>,
        Side { classes, holders, leaves }: Side<'_>,
        decided: Verdict,
        places: &BTreeMap<&ClusterName, Option<NamespaceName>>,
        last_generation: &mut u64,
    ) -> DesiredAccount {
        let account = subject.account;
        let generation = if decided.regenerated.is_some() {
            *last_generation += 1;
            *last_generation
        } else {
            account.generation
        };
        let notice = self.notice(account, decided.transition.as_ref());
        let clusters = places.iter().map(|(cluster, namespace)| {
            let here = self.classes_in(subject, classes, cluster);
            let overrides = self.ledger.overrides_in(&account.id, cluster);
            let given_up = !decided.suspended && !is_taken(classes, cluster);
            let here_too = |key: &&&ExceptionKey| key.cluster.as_ref().is_none_or(|there| there == *cluster);
            let exceptions = subject.exceptions.iter().filter(here_too).map(|key| key.rule).collect();
            let order = tenant::TenantInput {
                cluster,
                account,
                classes: &here,
                remembered: subject.remembered(cluster).map_or("", |tenant| tenant.class.as_str()),
                namespace: namespace.as_ref(),
                generation,
                suspended: decided.suspended || given_up,
                notice: notice.as_ref().filter(|_| decided.suspended),
                idle_until: subject.idle.warned.get(*cluster).copied().filter(|_| !decided.suspended),
                end: decided.end.filter(|end| match end {
                    EndOfTenant::Archive => namespace.is_some() && !self.has_archive(account, cluster),
                    EndOfTenant::Delete => true,
                }),
                overrides: &overrides,
                exceptions: &exceptions,
                granted: &subject.granted,
                holders,
                adopted: &subject.adopted,
            };
            let tenant = if given_up && !leaves {
                tenant::given_up(&order)
            } else {
                tenant::tenant(order, self.policy, self.sealer)
            };
            ((*cluster).clone(), Box::new(tenant))
        });
        let by_mark = matches!(decided.transition, Some(Transition::Suspend(Suspension::Disabled { .. })));
        let intent = AccountIntent {
            account: account.account_name(),
            posix: account.posix.clone(),
            class: class_for_limits(account, &subject.tenants, classes),
            transition: decided.transition,
            generation,
            regenerated: decided.regenerated,
            held: subject.held.cloned(),
            orders: subject.orders.iter().map(|order| order.id).collect(),
            adopts: {
                let adopting = subject.orders.iter().filter(|order| order.what == OrderKind::AdoptObject);
                adopting.filter_map(|order| order.object.clone()).collect()
            },
            ordered: subject.orders.last().map(|order| order.note.clone()),
            awaited: subject.awaited,
            // A suspension by a mark does not depend on an absence, so limits on leaving members must not delay it.
            leaving: if by_mark { BTreeMap::new() } else { self.leaving(account) },
            rests_on: match (by_mark, decided.suspended) {
                (true, _) => BTreeSet::new(),
                // Nobody has a role in a suspended workspace, so the removal of a person's own access does not matter
                // here.
                (false, true) => subject.taken.rests_on.clone(),
                (false, false) => &subject.taken.rests_on | &subject.holders.rests_on,
            },
            keeps_people: false,
            returning: subject.holders.returning.clone(),
        };
        let ssh = if decided.suspended { None } else { ssh::keys(account, classes) };
        DesiredAccount { intent, otherwise: None, ssh, clusters: clusters.collect() }
    }

    fn leaving(&self, account: &Account) -> BTreeMap<DirectoryId, AccountName> {
        let unknown = |id: &DirectoryId| AccountName { kind: AccountKind::User, name: id.0.clone() };
        let name = |id: &DirectoryId| {
            let people = self.people.get_or_init(|| {
                self.ledger.accounts.values().map(|account| (&account.directory_id, account.account_name())).collect()
            });
            people.get(id).cloned().unwrap_or_else(|| unknown(id))
        };
        account.leaving.iter().map(|id| (id.clone(), name(id))).collect()
    }
}

impl DesiredAccount {
    /// Puts `kept` in front of `otherwise`. In `kept`, members leave, and all other people of the workspace keep their
    /// access for now.
    fn keep_people(&mut self, subject: &Subject<'_>, kept: Option<Self>) {
        let Some(mut kept) = kept else { return };
        (kept.keeps_people, kept.held) = (true, None);
        kept.rests_on.retain(|id| !subject.holders.rests_on.contains(id));
        kept.otherwise = self.otherwise.take();
        self.otherwise = Some(Box::new(kept));
    }
}

fn is_taken(classes: &[&Class], cluster: &ClusterName) -> bool {
    classes.iter().any(|class| class.clusters.contains(cluster))
}

/// Returns the class whose limits apply: the class that took the account first. Accounts without a class, such as
/// directory groups, count by their kind.
fn class_for_limits(account: &Account, tenants: &[(&ClusterName, &Tenant)], classes: &[&Class]) -> String {
    match (tenants.first(), classes.first()) {
        (Some((_, tenant)), _) => tenant.class.clone(),
        (None, Some(class)) => class.name.clone(),
        (None, None) => format!("{}s", account.kind),
    }
}
