//! Records the orders of administrators: turns a request into changes of the ledger and events of the history. The next
//! plan carries the orders out.

pub mod adopt;
mod directory;
pub mod ensure;
mod eviction;
mod exception;
mod quota;
pub mod request;
mod revocation;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::desired::classes_of;
use crate::identity::{AccountKind, AccountName};
use crate::ledger::change::{Change, Event};
use crate::ledger::{Account, Delivery, Ending, LedgerState, Lifecycle, Note, Order, OrderKind, Suspension};
use crate::orders::request::{
    AdoptEntry, Evict, OrderRequest, RequestRefusal, ResumeStarting, RevokeClass, SuspendUntil, Target,
};
use crate::plan::guard;
use crate::policy::Policy;
use crate::snapshot::Rejection;

/// The recorded orders, and the refused requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecordedOrders {
    /// Changes of the ledger.
    pub changes: Vec<Change>,
    /// Events of the history.
    pub events: Vec<Event>,
    /// The answers for the callers, one for each recorded order.
    pub texts: Vec<String>,
    /// Accounts with an order that a cycle has to carry out. Orders for a whole class are not included.
    pub ordered: BTreeSet<AccountName>,
    /// Accounts of `ordered` whose order changes access, a credential or a home.
    pub of_access: BTreeSet<AccountName>,
    /// The refused requests: the account does not exist (exit code 4), a required reason is missing (64), or there is
    /// nothing to resume, release or approve (1).
    pub refused: Vec<RequestRefusal>,
}

/// Returns what the `requests` of `actor` change. Each request sees the changes of those before it.
#[must_use]
pub fn write_all(
    ledger: &LedgerState,
    policy: &Policy,
    actor: &str,
    requests: &[OrderRequest],
    now: Timestamp,
) -> RecordedOrders {
    let mut ledger = Cow::Borrowed(ledger);
    let mut all = RecordedOrders::default();
    for request in requests {
        match write(&ledger, policy, actor, request, now) {
            Ok(mut outcome) => {
                outcome.changes.extend(burnt(&ledger, &outcome.changes));
                for change in &outcome.changes {
                    let (id, of_access) = match change {
                        Change::Order(order) if order.bulk.is_none() => (&order.account, order.what.is_of_access()),
                        Change::Override(key, _) => (&key.account, false),
                        Change::Exception(key, _) => (&key.account, false),
                        _ => continue,
                    };
                    let Some(account) = ledger.accounts.get(id).map(Account::account_name) else { continue };
                    all.of_access.extend(of_access.then(|| account.clone()));
                    all.ordered.insert(account);
                }
                if requests.len() > 1 {
                    outcome.changes.iter().for_each(|change| ledger.to_mut().apply(change));
                }
                all.changes.extend(outcome.changes);
                all.events.extend(outcome.events);
                all.texts.push(outcome.text);
            }
            Err(refusal) => all.refused.push(refusal),
        }
    }
    all
}

/// Returns a change that uses up a generation if an order takes access away or blocks it. The marks in the clusters
/// rise with the generation. If the ledger is later rolled back to a state before the order, the marks reveal it, even
/// if the order itself needed no new generation.
fn burnt(ledger: &LedgerState, changes: &[Change]) -> Option<Change> {
    let takes = |change: &Change| match change {
        Change::Order(order) => order.what.takes_access(),
        Change::Hold(_, hold) => hold.is_some(),
        // An existing exception ends or is replaced.
        Change::Exception(key, _) => ledger.exceptions.contains_key(key),
        _ => false,
    };
    changes.iter().any(takes).then(|| Change::LastGeneration(ledger.last_generation + 1))
}

#[derive(Default)]
struct OrderOutcome {
    changes: Vec<Change>,
    events: Vec<Event>,
    text: String,
}

fn write(
    ledger: &LedgerState,
    policy: &Policy,
    actor: &str,
    request: &OrderRequest,
    now: Timestamp,
) -> Result<OrderOutcome, RequestRefusal> {
    let subject = |target: &Target| -> Result<_, RequestRefusal> {
        Ok((find(ledger, target.kind, &target.name)?, note(actor, target, now, false)?))
    };
    let (kind, target) = match request {
        OrderRequest::Evict(Evict { target, .. }) => (Some(OrderKind::Evict), target),
        OrderRequest::Suspend(target) | OrderRequest::SuspendUntil(SuspendUntil { target, .. }) => {
            (Some(OrderKind::Suspend), target)
        }
        OrderRequest::Resume(target) | OrderRequest::ResumeStarting(ResumeStarting { target, .. }) => {
            (Some(OrderKind::Resume), target)
        }
        OrderRequest::Revoke(target) => (Some(OrderKind::Revoke), target),
        OrderRequest::AdoptUid(target) => (Some(OrderKind::AdoptUid), target),
        OrderRequest::AdoptAccount(target) | OrderRequest::AdoptEntry(AdoptEntry { target, .. }) => {
            (Some(OrderKind::AdoptAccount), target)
        }
        OrderRequest::Restored { target, file, objects } => {
            let (account, note) = subject(target)?;
            return Ok(restored(account, &note, file, *objects));
        }
        OrderRequest::KubeconfigRestored { target, file, complete } => {
            let (account, note) = subject(target)?;
            return Ok(kubeconfig_restored(ledger, account, &note, (file, *complete)));
        }
        OrderRequest::Hold(target) | OrderRequest::Release(target) => (None, target),
        OrderRequest::QuotaSet(set) => {
            let (account, note) = subject(&set.target)?;
            return quota::set(ledger, policy, account, set, &note);
        }
        OrderRequest::QuotaUnset(unset) => {
            let (account, note) = subject(&unset.target)?;
            return quota::unset(ledger, account, unset, &note);
        }
        OrderRequest::ExceptionSet(set) => {
            let (account, note) = subject(&set.target)?;
            return exception::set(ledger, policy, account, set, &note);
        }
        OrderRequest::ExceptionUnset(unset) => {
            let (account, note) = subject(&unset.target)?;
            return exception::unset(ledger, account, unset, &note);
        }
        OrderRequest::RevokeClass(RevokeClass { class, reason, ticket }) => {
            let note = note_of(actor, reason.as_deref(), ticket.as_deref(), now, true)?;
            revocation::is_possible(policy, class, [class.as_str()])?;
            return revocation::all(ledger, policy, class, &note);
        }
        OrderRequest::AdoptObject(wanted) => {
            let note = note_of(actor, wanted.reason.as_deref(), wanted.ticket.as_deref(), now, false)?;
            return adopt::object(ledger, policy, wanted, note);
        }
        OrderRequest::AcceptDirectory(wanted) => {
            let note = note_of(actor, wanted.reason.as_deref(), wanted.ticket.as_deref(), now, true)?;
            return directory::accept(ledger, &wanted.source, &note);
        }
        OrderRequest::Approve { hash } => return approve(ledger, actor, hash, now),
    };
    let account = find(ledger, target.kind, &target.name)?;
    let need_not_say = kind == Some(OrderKind::Resume)
        || matches!(request, OrderRequest::Release(_))
        || kind.is_some_and(OrderKind::is_of_reads);
    let note = note(actor, target, now, !need_not_say)?;
    if kind == Some(OrderKind::Revoke) {
        let classes = classes_of(account, ledger, policy);
        let name = account.account_name().to_string();
        revocation::is_possible(policy, &name, classes.into_iter().map(|class| class.name.as_str()))?;
    }
    match (kind, request) {
        (Some(OrderKind::Evict), OrderRequest::Evict(Evict { since, .. })) => {
            order(ledger, account, OrderKind::Evict, note, *since)
        }
        (Some(OrderKind::Suspend), OrderRequest::SuspendUntil(SuspendUntil { until, .. })) => {
            is_to_come(*until, now)?;
            order(ledger, account, OrderKind::Suspend, note, Some(*until))
        }
        (Some(OrderKind::Resume), request) => {
            let start = match request {
                OrderRequest::ResumeStarting(ResumeStarting { start, .. }) => Some(start),
                _ => None,
            };
            let left = eviction::left_stopped(ledger, policy, account, start)?;
            let mut outcome = order(ledger, account, OrderKind::Resume, note, None)?;
            outcome.changes.splice(..0, left);
            Ok(outcome)
        }
        (Some(OrderKind::AdoptAccount), OrderRequest::AdoptEntry(AdoptEntry { entry, .. })) => {
            adopt_account(ledger, account, note, Some(entry))
        }
        (Some(OrderKind::AdoptAccount), _) => adopt_account(ledger, account, note, None),
        (Some(what), _) => order(ledger, account, what, note, None),
        (None, OrderRequest::Hold(_)) => Ok(hold(account, note)),
        (None, _) => release(ledger, account, &note),
    }
}

fn adopt_account(
    ledger: &LedgerState,
    account: &Account,
    note: Note,
    entry: Option<&str>,
) -> Result<OrderOutcome, RequestRefusal> {
    let object = adopt::entry(ledger, account, entry)?;
    let mut outcome = order(ledger, account, OrderKind::AdoptAccount, note, None)?;
    for change in &mut outcome.changes {
        if let Change::Order(order) = change {
            order.object = Some(object.0.clone());
        }
    }
    outcome.events.iter_mut().for_each(|event| event.detail = json!({"entry": object}).into());
    Ok(outcome)
}

/// Finds the account that an administrator names by its name or its id. If several accounts have the name, chooses one
/// as [`meant`] does, or refuses the request (exit code 64).
pub fn find<'a>(ledger: &'a LedgerState, kind: AccountKind, name: &str) -> Result<&'a Account, RequestRefusal> {
    let named: Vec<&Account> = ledger
        .accounts
        .values()
        .filter(|account| account.kind == kind && (account.name == name || account.id.0 == name))
        .collect();
    meant(&named, |account| account.state.as_str()).copied().ok_or_else(|| match named.as_slice() {
        [] => RequestRefusal { exit_code: 4, text: unknown(kind, name) },
        several => RequestRefusal { exit_code: 64, text: ambiguous(kind, name, several) },
    })
}

/// Returns the message that the ledger has no account of this name.
#[must_use]
pub fn unknown(kind: AccountKind, name: &str) -> String {
    let remedy = match kind {
        AccountKind::Tool => "`bursar tools` lists them",
        AccountKind::User => "`bursar users` lists them",
        AccountKind::Group => "compare the name with the directory",
    };
    format!("no {kind} {name:?} in the ledger; {remedy}")
}

/// Chooses one of several accounts with the same name: the only account, the only active account, or the only account
/// that is not deleted. `state` returns the name of an account's state.
pub fn meant<T>(named: &[T], state: impl Fn(&T) -> &str) -> Option<&T> {
    let only = |wanted: fn(&str) -> bool| {
        let mut found = named.iter().filter(|one| wanted(state(one)));
        found.next().filter(|_| found.next().is_none())
    };
    let is_active = |state: &str| state == Lifecycle::Active.as_str();
    only(|_| true).or_else(|| only(is_active)).or_else(|| only(|state| state != Lifecycle::Deleted.as_str()))
}

fn ambiguous(kind: AccountKind, name: &str, several: &[&Account]) -> String {
    let each = several.iter().map(|account| {
        let uid = account.posix.as_ref().map(|posix| format!("uid {}, ", posix.uid)).unwrap_or_default();
        format!("  {}  {uid}{} since {:.0}, {}", account.id, account.state.as_str(), account.since, account.dn)
    });
    let each: Vec<String> = each.collect();
    format!("{kind} {name:?} is ambiguous; use the id of the account instead of its name:\n{}", each.join("\n"))
}

/// The most characters of a reason. The history keeps the reason and the ticket of each order forever.
const LONGEST_REASON: usize = 1000;
const LONGEST_TICKET: usize = 200;

fn note(actor: &str, target: &Target, now: Timestamp, must_say_why: bool) -> Result<Note, RequestRefusal> {
    note_of(actor, target.reason.as_deref(), target.ticket.as_deref(), now, must_say_why)
}

fn note_of(
    actor: &str,
    reason: Option<&str>,
    ticket: Option<&str>,
    now: Timestamp,
    must_say_why: bool,
) -> Result<Note, RequestRefusal> {
    let reason = reason.filter(|reason| !reason.trim().is_empty());
    if reason.is_none() && must_say_why {
        return refused(64, "--reason is missing: the history must say why".to_owned());
    }
    let ticket = ticket.filter(|ticket| !ticket.trim().is_empty());
    for (what, text, most) in [("--reason", reason, LONGEST_REASON), ("--ticket", ticket, LONGEST_TICKET)] {
        let length = text.map_or(0, |text| text.chars().count());
        if length > most {
            return refused(64, format!("{what} has {length} characters; at most {most} are kept in the history"));
        }
    }
    let reason = reason.unwrap_or_default().to_owned();
    Ok(Note { actor: actor.to_owned(), reason, ticket: ticket.map(str::to_owned), at: now })
}

fn refused<T>(exit_code: u8, text: String) -> Result<T, RequestRefusal> {
    Err(RequestRefusal { exit_code, text })
}

/// Refuses an end in the past (exit code 64).
fn is_to_come(until: Timestamp, now: Timestamp) -> Result<(), RequestRefusal> {
    let text = "--until is in the past; use a later time, such as --until 2099-12-31".to_owned();
    if until <= now { refused(64, text) } else { Ok(()) }
}

/// Records an order. `moment` becomes [`Order::object`].
fn order(
    ledger: &LedgerState,
    account: &Account,
    what: OrderKind,
    note: Note,
    moment: Option<Timestamp>,
) -> Result<OrderOutcome, RequestRefusal> {
    let by_order = Suspension::is_ordered(account.suspension.as_deref());
    let is_idle = matches!(account.suspension.as_deref(), Some(Suspension::Idle { .. }));
    let name = account.account_name();
    let refused = |text| refused(1, text);
    match what {
        OrderKind::Resume if !by_order && !is_idle && !is_about_to_be_suspended(ledger, account) => {
            return refused(match account.suspension.as_deref() {
                Some(_) => {
                    format!("{name} is not suspended by an order; it resumes when the cause of the suspension ends")
                }
                None => format!("{name} is not suspended"),
            });
        }
        OrderKind::Resume if account.state == Lifecycle::Deleted && account.absence.is_some() => {
            return refused(format!(
                "{name} is deleted and in no directory; it comes back when a directory has it again"
            ));
        }
        // Resuming would restore the access that the hold blocks, and nobody would notice that the order waits.
        OrderKind::Resume if ledger.holds.contains_key(&account.id) => {
            return refused(format!(
                "{name} is held and cannot be resumed; end the hold first: bursar release {}",
                name.words()
            ));
        }
        OrderKind::Suspend if by_order && !has_another_end(account, moment) => {
            let end = account.suspension.as_deref().map(Suspension::end).unwrap_or_default();
            return refused(format!("{name} is suspended by an order already{end}"));
        }
        OrderKind::Suspend | OrderKind::Evict if is_going(account) => {
            let state = if account.state == Lifecycle::Deleted { "deleted" } else { "being deleted" };
            return refused(format!(
                "{name} is {state} and has no access; to keep it from coming back, run: bursar hold {} --reason TEXT",
                name.words()
            ));
        }
        OrderKind::AdoptUid if !has_another_uid(ledger, account) => {
            return refused(format!(
                "the directory has no other uid for {name}; `bursar status` shows the rejected entries"
            ));
        }
        OrderKind::Revoke | OrderKind::Evict if account.generation == 0 => {
            return refused(format!("{name} never had a certificate"));
        }
        _ => {}
    }
    let action = match what {
        OrderKind::Suspend => "suspension ordered",
        OrderKind::Resume => "resumption ordered",
        OrderKind::Revoke => "revocation ordered",
        OrderKind::Evict => "eviction ordered",
        OrderKind::AdoptUid => "uid to be adopted",
        OrderKind::AdoptAccount => "account to be adopted",
        OrderKind::AdoptObject => "object to be adopted",
    };
    let id = next_id(ledger);
    let mut event = event(Some(account), action, &note);
    let object = moment.map(|moment| moment.to_string());
    let order = Order { id, account: account.id.clone(), what, note, bulk: None, object };
    let suspension = order.suspends();
    if let Some(term) = suspension.as_ref().and_then(Suspension::term) {
        event.detail = json!({"until": term.until}).into();
    }
    let text = format!("{name}: {action}{}", suspension.as_ref().map(Suspension::end).unwrap_or_default());
    Ok(OrderOutcome { changes: vec![Change::Order(order)], events: vec![event], text })
}

fn next_id(ledger: &LedgerState) -> i64 {
    ledger.orders.iter().map(|order| order.id).max().unwrap_or(0) + 1
}

/// Whether the order would change the end of an ordered suspension. An eviction has no end.
fn has_another_end(account: &Account, until: Option<Timestamp>) -> bool {
    match account.suspension.as_deref() {
        Some(Suspension::Ordered { until: known, .. }) => *known != until,
        _ => false,
    }
}

/// Whether the account is deleted or being deleted, so that nothing is left to suspend.
fn is_going(account: &Account) -> bool {
    let deletion = matches!(account.ending, Some(Ending::Deletion { .. }));
    account.state == Lifecycle::Deleted || (account.state == Lifecycle::Archived && deletion)
}

fn has_another_uid(ledger: &LedgerState, account: &Account) -> bool {
    let mut rejected = ledger.rejected.iter().filter(|entry| entry.id.as_ref() == Some(&account.directory_id));
    rejected.any(|entry| entry.source == account.source && entry.reason == Some(Rejection::OtherUid))
}

fn restored(account: &Account, note: &Note, file: &str, objects: u64) -> OrderOutcome {
    let mut event = event(Some(account), "archive applied", note);
    event.detail = json!({"file": file, "objects": objects}).into();
    let text = format!("{}: {objects} objects restored from {file}", account.account_name());
    OrderOutcome { changes: Vec::new(), events: vec![event], text }
}

fn kubeconfig_restored(
    ledger: &LedgerState,
    account: &Account,
    note: &Note,
    (file, complete): (&Path, bool),
) -> OrderOutcome {
    let mut event = event(Some(account), "kubeconfig restored", note);
    event.detail = json!({"file": file, "complete": complete}).into();
    let here = |delivery: &Delivery| delivery.path == file && delivery.may_hold_a_credential();
    let deliveries = ledger.deliveries_of(&account.id).filter(|(_, delivery)| !complete && here(delivery));
    let again = deliveries.map(|(key, delivery)| {
        let broken = Delivery { checked_at: None, ..delivery.clone() };
        Change::Delivery(key.clone(), Some(broken))
    });
    let text = format!("{}: {} restored", account.account_name(), file.display());
    OrderOutcome { changes: again.collect(), events: vec![event], text }
}

fn is_about_to_be_suspended(ledger: &LedgerState, account: &Account) -> bool {
    ledger.orders.iter().any(|order| order.account == account.id && order.suspends().is_some())
}

fn hold(account: &Account, note: Note) -> OrderOutcome {
    OrderOutcome {
        events: vec![event(Some(account), "held", &note)],
        changes: vec![Change::Hold(account.id.clone(), Some(note))],
        text: format!("{}: held; plans show it, but do not change it", account.account_name()),
    }
}

fn release(ledger: &LedgerState, account: &Account, note: &Note) -> Result<OrderOutcome, RequestRefusal> {
    let name = account.account_name();
    if !ledger.holds.contains_key(&account.id) {
        return refused(1, format!("{name} is not held"));
    }
    Ok(OrderOutcome {
        changes: vec![Change::Hold(account.id.clone(), None)],
        events: vec![event(Some(account), "released", note)],
        text: format!("{name}: released"),
    })
}

fn approve(ledger: &LedgerState, actor: &str, hash: &str, now: Timestamp) -> Result<OrderOutcome, RequestRefusal> {
    let Some(changes) = guard::approve(ledger, hash, now) else {
        let text = format!("no refusal with hash {hash:?} waits for approval; `bursar status` lists the refusals");
        return refused(1, text);
    };
    let note = Note { actor: actor.to_owned(), reason: format!("refused set {hash}"), ticket: None, at: now };
    let text = format!("{hash}: approved for one use within an hour");
    Ok(OrderOutcome { changes, events: vec![event(None, "approved", &note)], text })
}

fn event(account: Option<&Account>, action: &str, note: &Note) -> Event {
    let event = Event::new(action, note.reason.clone(), Value::Null).by(note);
    match account {
        Some(account) => event.about(account),
        None => event,
    }
}

#[cfg(test)]
mod tests {
    use bursar_protocol::Grant;

    use super::*;
    use crate::contract::exception::ExceptedRule;
    use crate::orders::request::{ExceptionSet, ExceptionUnset};
    use crate::plan::testing::World;
    use crate::policy::{CredentialKind, OidcRule};

    #[test]
    fn a_reason_has_a_length_and_a_blank_ticket_is_none() {
        let now = Timestamp::UNIX_EPOCH;
        let long = "a".repeat(LONGEST_REASON + 1);
        assert_eq!(note_of("root", Some(&long), None, now, true).map_err(|refusal| refusal.exit_code), Err(64));
        assert!(note_of("root", Some(&long[1..]), None, now, true).is_ok());
        assert_eq!(note_of("root", None, Some(&long), now, false).map_err(|refusal| refusal.exit_code), Err(64));
        assert_eq!(note_of("root", None, Some(" "), now, false).map(|note| note.ticket), Ok(None));
    }

    #[test]
    fn a_deleted_account_without_a_directory_entry_cannot_be_resumed() {
        let (mut world, foo) = World::with_foo();
        let note = Note { actor: "ann".to_owned(), reason: "gone".to_owned(), ticket: None, at: world.now };
        let absence = crate::ledger::Absence { since: world.now, counted_at: world.now, seconds: 0, due: world.now };
        let account = world.account(&foo);
        (account.state, account.suspension) = (Lifecycle::Deleted, Some(Box::new(Suspension::by(note.clone()))));
        let resume =
            |world: &World| order(&world.ledger, &world.ledger.accounts[&foo], OrderKind::Resume, note.clone(), None);
        assert!(resume(&world).is_ok());
        world.account(&foo).absence = Some(absence);
        let refusal =
            resume(&world).map(|outcome| outcome.text).expect_err("a resumption without a directory entry is refused");
        assert!(refusal.text.contains("in no directory"), "{}", refusal.text);
    }

    #[test]
    fn a_restored_kubeconfig_is_recorded_and_delivered_again_if_it_lacks_our_entries() {
        let (mut world, foo) = World::with_foo();
        world.cycle();
        let file = world.ledger.deliveries_of(&foo).next().expect("there is a delivery").1.path.clone();
        for (complete, expected) in [(true, false), (false, true)] {
            let target =
                Target { kind: AccountKind::Tool, name: "foo".to_owned(), reason: None, ticket: Some("T1".into()) };
            let request = OrderRequest::KubeconfigRestored { target, file: file.clone(), complete };
            let written = write_all(&world.ledger, &world.policy, "ann", &[request], world.now);
            let event = &written.events[0];
            assert_eq!((event.actor.as_str(), event.action.as_str()), ("ann", "kubeconfig restored"));
            assert_eq!((event.ticket.as_deref(), &event.detail.value()["file"]), (Some("T1"), &json!(file)));
            written.changes.iter().for_each(|change| world.ledger.apply(change));
            let plan = world.plan();
            let mut steps = plan.accounts.iter().flat_map(crate::plan::AccountPlan::steps);
            assert_eq!(steps.any(|step| matches!(step, crate::plan::Action::Deliver { .. })), expected, "{plan}");
        }
    }

    fn target(name: &str) -> Target {
        let (kind, name) = (AccountKind::User, name.to_owned());
        Target { kind, name, reason: Some("stolen".to_owned()), ticket: None }
    }

    #[test]
    fn each_order_that_takes_access_away_raises_the_generation() {
        let mut world = World::new();
        let bob = world.add(AccountKind::User, "bob", Some(20_002));
        world.account(&bob).generation = 7;
        let last = world.ledger.last_generation;
        let written = |world: &World, requests: &[OrderRequest]| {
            let mut ledger = world.ledger.clone();
            let written = write_all(&ledger, &world.policy, "ann", requests, world.now);
            assert_eq!(written.refused, []);
            ledger.apply_all(&written.changes);
            ledger.last_generation
        };
        let (suspend, hold) = (OrderRequest::Suspend(target("bob")), OrderRequest::Hold(target("bob")));
        for request in [&suspend, &hold, &OrderRequest::Revoke(target("bob"))] {
            assert_eq!(written(&world, std::slice::from_ref(request)), last + 1, "{request:?}");
        }
        assert_eq!(written(&world, &[suspend, hold]), last + 2);
        let note = Note { actor: "ann".to_owned(), reason: "audit".to_owned(), ticket: None, at: world.now };
        world.ledger.holds.insert(bob, note);
        assert_eq!(written(&world, &[OrderRequest::Release(target("bob"))]), last, "a release takes no access away");
    }

    #[test]
    fn the_end_of_an_exception_raises_the_generation() {
        let (mut world, foo) = World::with_foo();
        let target = || Target { kind: AccountKind::Tool, ..target("foo") };
        let rules = vec![ExceptedRule::ALL[0]];
        let given = OrderRequest::ExceptionSet(ExceptionSet {
            target: target(),
            rules: rules.clone(),
            until: world.now + jiff::SignedDuration::from_hours(48),
            cluster: None,
        });
        let unset = OrderRequest::ExceptionUnset(ExceptionUnset { target: target(), rules, cluster: None });
        world.cycle();
        assert_eq!(world.ledger.accounts[&foo].state, Lifecycle::Active);
        let last = world.ledger.last_generation;
        for (request, burns) in [(&given, 0), (&given, 1), (&unset, 2)] {
            let written = write_all(&world.ledger, &world.policy, "ann", std::slice::from_ref(request), world.now);
            assert_eq!(written.refused, []);
            world.ledger.apply_all(&written.changes);
            assert_eq!(world.ledger.last_generation, last + burns, "{request:?}");
        }
    }

    /// The directory makes alice a student, but she became a tenant by class `admin`, whose people log in at an OIDC
    /// issuer.
    #[test]
    fn the_revocation_of_any_class_of_an_account_includes_the_account() {
        let mut world = World::new();
        let alice = world.add(AccountKind::User, "alice", Some(20_001));
        "uid=alice,ou=students,dc=example,dc=org".clone_into(&mut world.account(&alice).dn);
        world.cycles(2);
        assert_eq!(world.ledger.accounts[&alice].state, Lifecycle::Active);
        let mut oidc = world.policy.classes["admin"].clone();
        "oidc".clone_into(&mut oidc.name);
        oidc.credential.as_mut().expect("class admin has a credential").kind = CredentialKind::Oidc(OidcRule {
            issuer: "https://login.example.org".to_owned(),
            client_id: "kubernetes".to_owned(),
            scopes: Vec::new(),
            grant: Grant::Auto,
            user: "oidc:{name}".to_owned(),
        });
        world.policy.classes.insert(oidc.name.clone(), oidc);
        for tenant in world.ledger.tenants.values_mut() {
            "oidc".clone_into(&mut tenant.class);
        }
        let refused = |world: &World, request: OrderRequest| {
            let written = write_all(&world.ledger, &world.policy, "ann", &[request], world.now);
            (written.refused, written.changes.iter().filter(|it| matches!(it, Change::Order(_))).count())
        };
        assert_eq!(refused(&world, OrderRequest::Revoke(target("alice"))), (vec![], 1));
        let of = |class: &str| {
            let (class, reason) = (class.to_owned(), Some("stolen".to_owned()));
            OrderRequest::RevokeClass(RevokeClass { class, reason, ticket: None })
        };
        assert_eq!(refused(&world, of("student")), (vec![], 1));
        let (unknown, _) = refused(&world, of("studnet"));
        assert!(
            matches!(&unknown[..], [RequestRefusal { exit_code: 4, text }] if text.contains("no class")),
            "{unknown:?}"
        );
        // A class that is no longer configured.
        let Some(student) = world.policy.classes.remove("student") else {
            panic!("the sample policy has no class student")
        };
        for tenant in world.ledger.tenants.values_mut() {
            tenant.class.clone_from(&student.name);
        }
        assert_eq!(refused(&world, of("student")), (vec![], 1));
    }

    #[test]
    fn an_ambiguous_name_is_refused() {
        let (mut world, foo) = World::with_foo();
        let bar = world.add(AccountKind::Tool, "bar", Some(52_504));
        "foo".clone_into(&mut world.account(&bar).name);
        let found =
            |world: &World, name: &str| find(&world.ledger, AccountKind::Tool, name).map(|account| account.id.clone());
        let refusal = found(&world, "foo").expect_err("two tools are named foo");
        assert_eq!(refusal.exit_code, 64);
        assert!(refusal.text.contains(&foo.to_string()) && refusal.text.contains(&bar.to_string()), "{}", refusal.text);
        assert!(refusal.text.contains("uid 52504, new since"), "{}", refusal.text);
        assert_eq!(found(&world, &bar.to_string()), Ok(bar.clone()));
        world.account(&bar).state = Lifecycle::Active;
        assert_eq!(found(&world, "foo"), Ok(bar.clone()));
        world.account(&foo).state = Lifecycle::Active;
        assert_eq!(found(&world, "foo").map_err(|refusal| refusal.exit_code), Err(64));
        world.account(&foo).state = Lifecycle::Suspended;
        world.account(&bar).state = Lifecycle::Deleted;
        assert_eq!(found(&world, "foo"), Ok(foo));
        assert_eq!(found(&world, "nobody").map_err(|refusal| refusal.exit_code), Err(4));
    }
}
