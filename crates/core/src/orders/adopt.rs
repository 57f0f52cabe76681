//! `bursar adopt namespace|object`: records that a foreign object is to be taken over. An earlier cycle reported that
//! it blocks an account.

use super::{OrderOutcome, event, find, next_id, refused};
use crate::desired::classes_if_asked;
use crate::identity::{AccountId, AccountName, ClusterName, NamespaceName, name_in};
use crate::ledger::change::Change;
use crate::ledger::{Account, LedgerState, Lifecycle, Note, Order, OrderKind};
use crate::orders::request::{AdoptObject, Refusal};
use crate::policy::Policy;

/// Records the order and clears the failure, so that the next cycle retries at once and takes the object over. The
/// order is for the object that exists now: if it cannot be carried out, it is dropped.
pub(super) fn object(
    ledger: &LedgerState,
    policy: &Policy,
    wanted: &AdoptObject,
    note: Note,
) -> Result<OrderOutcome, Refusal> {
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
    event.detail = serde_json::json!({"object": object, "cluster": cluster});
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

/// Returns the changes that give a namespace to an account without a place, although the name follows another rule than
/// ours (`tenant-john-doe` for `john.doe`). The text that `{name}` stands for is then taken from the namespace and
/// never changes. The order also counts as a request for a tenant that is created on demand. Returns `None` if the
/// account has its place already.
fn newcomer(
    ledger: &LedgerState,
    policy: &Policy,
    owner: &AccountName,
    namespace: &str,
    note: &Note,
) -> Result<Option<Vec<Change>>, Refusal> {
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
        changes.push(Change::Account(Box::new(named)));
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

    fn adopt(world: &World, namespace: &str, owner: &str) -> Result<OrderOutcome, Refusal> {
        let owner = Some(owner.parse().expect("a valid account name"));
        let wanted = AdoptObject { object: format!("namespace {namespace}"), owner, reason: None, ticket: None };
        let note = Note { actor: "root".to_owned(), reason: String::new(), ticket: None, at: world.now };
        object(&world.ledger, &world.policy, &wanted, note)
    }

    #[test]
    fn a_new_account_gets_a_namespace_whose_name_follows_another_rule() {
        let mut world = World::new();
        let dotted = world.add(AccountKind::Tool, "john.doe", Some(52_503));
        let plain = world.add(AccountKind::Tool, "jane", Some(52_504));
        let OrderOutcome { changes, text, .. } = adopt(&world, "tool-john-doe", "tool:john.doe").expect("an order");
        assert!(text.contains("tool:john.doe: namespace tool-john-doe to be adopted"), "{text}");
        for change in &changes {
            world.ledger.apply(change);
        }
        assert_eq!(world.ledger.accounts[&dotted].kubernetes_name, "john-doe");
        assert_eq!(world.ledger.orders.len(), 1);
        let refusal =
            |world: &World, namespace: &str, owner: &str| adopt(world, namespace, owner).err().expect("a refusal");
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
