//! `bursar adopt namespace|object` records that a foreign object is to be taken over, if an earlier cycle reported that
//! it blocks an account. `bursar adopt account` finds the entry that the administrator means.

use super::{OrderOutcome, event, find, next_id, refused};
use crate::desired::classes_if_asked;
use crate::identity::{AccountId, AccountName, ClusterName, DirectoryId, NamespaceName, kubernetes_name, name_in};
use crate::ledger::change::Change;
use crate::ledger::{Account, LedgerState, Lifecycle, Note, Order, OrderKind};
use crate::orders::request::{AdoptObject, RequestRefusal};
use crate::policy::Policy;
use crate::snapshot::{RejectedEntry, Rejection};

/// Returns the rejected entries that may get the account: entries with the account's name, and entries of its person.
/// Entries that have an account of their own are left out.
#[must_use]
pub fn entries_for<'a>(ledger: &'a LedgerState, account: &Account) -> Vec<&'a RejectedEntry> {
    let named = |entry: &RejectedEntry| {
        entry.name.as_deref().map(kubernetes_name).is_some_and(|name| name == account.kubernetes_name)
    };
    // An entry of the same person may have another name.
    let same = Some(Rejection::OfAccount { account: account.id.clone() });
    let has_account = |entry: &RejectedEntry| {
        let mut accounts = ledger.accounts.values();
        accounts.any(|known| known.source == entry.source && entry.id.as_ref() == Some(&known.directory_id))
    };
    let rejected = ledger.rejected.iter().filter(|entry| entry.kind == account.kind && entry.id.is_some());
    rejected.filter(|entry| named(entry) || entry.reason == same).filter(|entry| !has_account(entry)).collect()
}

/// Returns the id of the entry that gets the account. If there are several candidates, the administrator must choose,
/// because anybody who may create an entry can give it the account's name.
pub(super) fn entry(
    ledger: &LedgerState,
    account: &Account,
    wanted: Option<&str>,
) -> Result<DirectoryId, RequestRefusal> {
    let (name, entries) = (account.account_name(), entries_for(ledger, account));
    if !entries.iter().any(|entry| matches!(entry.reason, Some(Rejection::OfAccount { .. }))) {
        return refused(
            1,
            format!(
                "no other entry of the directory has the name of {name}; `bursar status` shows the rejected entries"
            ),
        );
    }
    let mut ids: Vec<&DirectoryId> = entries.iter().filter_map(|entry| entry.id.as_ref()).collect();
    ids.retain(|id| wanted.is_none_or(|wanted| id.0.eq_ignore_ascii_case(wanted)));
    if let [id] = ids.as_slice() {
        return Ok((*id).clone());
    }
    let line = |entry: &&RejectedEntry| Some(format!("  --entry {}  {:?}", entry.id.as_ref()?, entry.dn));
    let lines: Vec<String> = entries.iter().filter_map(line).collect();
    refused(64, format!("{name} can be given to one of these entries; say which one:\n{}", lines.join("\n")))
}

/// Records the order and clears the failure, so that the next cycle retries at once and takes the object over. The
/// order is for the object that exists now: if it cannot be carried out, it is dropped.
pub(super) fn object(
    ledger: &LedgerState,
    policy: &Policy,
    wanted: &AdoptObject,
    note: Note,
) -> Result<OrderOutcome, RequestRefusal> {
    let object = &wanted.object;
    let namespace = object.strip_prefix("namespace ");
    let Some((id, cluster)) = in_the_way(ledger, wanted) else {
        if let (Some(owner), Some(namespace)) = (&wanted.owner, namespace)
            && let Some(changes) = newcomer(ledger, policy, owner, namespace, &note)?
        {
            return Ok(ordered(ledger, find(ledger, owner.kind, &owner.name)?, wanted, None, (note, changes)));
        }
        let text = format!("{object} blocks no account; `bursar status` shows those that do, and how to adopt them");
        return refused(1, text);
    };
    let Some(account) = ledger.accounts.get(id) else {
        return refused(4, format!("the account that {object} blocked is no longer in the ledger"));
    };
    let over = vec![Change::Failure(id.clone(), cluster.clone(), None)];
    Ok(ordered(ledger, account, wanted, Some(cluster), (note, over)))
}

fn ordered(
    ledger: &LedgerState,
    account: &Account,
    wanted: &AdoptObject,
    cluster: Option<&ClusterName>,
    (note, mut changes): (Note, Vec<Change>),
) -> OrderOutcome {
    let object = &wanted.object;
    let mut event = event(Some(account), "object to be adopted", &note);
    event.detail = serde_json::json!({"object": object, "cluster": cluster}).into();
    let order = Order {
        id: next_id(ledger),
        account: account.id.clone(),
        what: OrderKind::AdoptObject,
        note,
        bulk: None,
        object: Some(object.clone()),
    };
    let text = format!("{}: {object} to be adopted", account.account_name());
    changes.push(Change::Order(order));
    OrderOutcome { changes, events: vec![event], text }
}

/// Returns the changes that give an existing namespace to an account without a place. The name of the namespace may
/// follow another rule than Bursar's (`tenant-john-doe` for `john.doe`); the value of `{name}` is then taken from the
/// namespace and never changes. The order also counts as a request for a tenant that is created on demand. Returns
/// `None` if the account has its place already.
fn newcomer(
    ledger: &LedgerState,
    policy: &Policy,
    owner: &AccountName,
    namespace: &str,
    note: &Note,
) -> Result<Option<Vec<Change>>, RequestRefusal> {
    let account = find(ledger, owner.kind, &owner.name)?;
    if account.state != Lifecycle::New || ledger.tenants_of(&account.id).next().is_some() {
        return Ok(None);
    }
    let parsed = NamespaceName::try_from(namespace.to_owned()).or_else(|error| refused(1, error.to_string()))?;
    if ledger.tenants.values().any(|tenant| tenant.namespace.as_ref() == Some(&parsed)) {
        return refused(1, format!("namespace {namespace} belongs to another account"));
    }
    let classes = classes_if_asked(account, ledger, policy);
    let patterns: Vec<&str> = classes.iter().filter_map(|class| class.namespace.as_deref()).collect();
    let Some(name) = patterns.iter().find_map(|pattern| name_in(pattern, namespace)) else {
        let patterns = if patterns.is_empty() { "no namespace".to_owned() } else { patterns.join(", ") };
        return refused(1, format!("namespace {namespace} cannot belong to {owner}: its classes give it {patterns}"));
    };
    let mut others = ledger.accounts.values().filter(|other| other.kind == account.kind && other.id != account.id);
    if let Some(other) = others.find(|other| other.kubernetes_name == name) {
        return refused(1, format!("{name} is already the name of {} in Kubernetes", other.account_name()));
    }
    let mut changes = Vec::new();
    if account.kubernetes_name != name {
        let named = Account { kubernetes_name: name.to_owned(), ..account.clone() };
        changes.push(Change::Account(named.into()));
    }
    if !ledger.last_use.contains_key(&account.id) {
        changes.push(Change::Used(account.id.clone(), note.at));
    }
    Ok(Some(changes))
}

/// Returns the account and the cluster in which the object blocks it.
fn in_the_way<'a>(ledger: &'a LedgerState, wanted: &AdoptObject) -> Option<(&'a AccountId, &'a ClusterName)> {
    let (kind, _) = wanted.object.split_once(' ')?;
    let word = if kind == "namespace" { "" } else { "object " };
    let command = format!("`bursar adopt {word}{}`", wanted.object);
    let is_owner = |id: &AccountId| {
        let account = ledger.accounts.get(id);
        wanted.owner.as_ref().is_none_or(|owner| account.is_some_and(|account| account.account_name() == *owner))
    };
    let mut failures = ledger.failures.iter();
    let found = failures.find(|((id, _), failure)| is_owner(id) && failure.reason.contains(&command));
    found.map(|((id, cluster), _)| (id, cluster))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::AccountKind;
    use crate::plan::testing::World;

    fn adopt(world: &World, namespace: &str, owner: &str) -> Result<OrderOutcome, RequestRefusal> {
        let owner = Some(owner.parse().expect("the account name is valid"));
        let wanted = AdoptObject { object: format!("namespace {namespace}"), owner, reason: None, ticket: None };
        let note = world.note("");
        object(&world.ledger, &world.policy, &wanted, note)
    }

    fn rejected(id: &str, reason: Rejection) -> RejectedEntry {
        RejectedEntry {
            source: "people".to_owned(),
            kind: AccountKind::User,
            dn: format!("uid=alice,ou={id}"),
            name: Some("alice".to_owned()),
            id: Some(DirectoryId(id.to_owned())),
            disabled: None,
            why: "for a test".to_owned(),
            reason: Some(reason),
        }
    }

    #[test]
    fn an_account_is_given_to_the_entry_that_the_administrator_names() {
        let mut world = World::new();
        let alice = world.add(AccountKind::User, "alice", Some(20_001));
        let asked = |world: &World, wanted: Option<&str>| {
            entry(&world.ledger, &world.ledger.accounts[&alice], wanted).map_err(|refusal| refusal.text)
        };
        let new = rejected("new", Rejection::OfAccount { account: alice.clone() });
        world.ledger.rejected = [new.clone()].into();
        assert_eq!(asked(&world, None), Ok(DirectoryId("new".to_owned())));
        world.ledger.rejected = [new, rejected("puppet", Rejection::NameTaken)].into();
        let text = asked(&world, None).expect_err("two entries have the name");
        assert!(text.contains("--entry new  \"uid=alice,ou=new\"") && text.contains("--entry puppet"), "{text}");
        assert_eq!(asked(&world, Some("new")), Ok(DirectoryId("new".to_owned())));
        assert!(asked(&world, Some("other")).is_err());
        world.ledger.rejected.clear();
        let text = asked(&world, Some("new")).expect_err("no entry has the name");
        assert!(text.contains("no other entry"), "{text}");
    }

    #[test]
    fn a_new_account_gets_a_namespace_whose_name_follows_another_rule() {
        let mut world = World::new();
        let dotted = world.add(AccountKind::Tool, "john.doe", Some(52_503));
        let plain = world.add(AccountKind::Tool, "jane", Some(52_504));
        let OrderOutcome { changes, text, .. } =
            adopt(&world, "tool-john-doe", "tool:john.doe").expect("there is an order");
        assert!(text.contains("tool:john.doe: namespace tool-john-doe to be adopted"), "{text}");
        world.ledger.apply_all(&changes);
        assert_eq!(world.ledger.accounts[&dotted].kubernetes_name, "john-doe");
        assert_eq!(world.ledger.orders.len(), 1);
        let refusal = |world: &World, namespace: &str, owner: &str| {
            adopt(world, namespace, owner).err().expect("there is a refusal")
        };
        let taken = refusal(&world, "tool-john-doe", "tool:jane");
        assert!(taken.text.contains("john-doe is already the name of tool:john.doe"), "{}", taken.text);
        let other = refusal(&world, "user-jane", "tool:jane");
        assert!(other.text.contains("tool-{name}"), "{}", other.text);
        assert_eq!(refusal(&world, "tool-x", "tool:nobody").exit_code, 4);
        world.account(&plain).state = Lifecycle::Active;
        let late = refusal(&world, "tool-jane", "tool:jane");
        assert!(late.text.contains("blocks no account"), "{}", late.text);
    }
}
