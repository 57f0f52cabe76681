//! `bursar adopt namespace|object`: what an execution found to be somebody else's. PURE: no runtime, no client, no file
//! system, no clock.

use super::{One, event, next_id};
use crate::control::api::{AdoptObject, Refusal};
use crate::identity::{AccountId, ClusterName};
use crate::ledger::change::Change;
use crate::ledger::{LedgerState, Note, Order, OrderKind};

/// The next cycle tries again at once, and takes it over. It is meant for what stands there now: an order that cannot be
/// carried out is over.
pub(super) fn object(ledger: &LedgerState, wanted: &AdoptObject, note: Note) -> Result<One, Refusal> {
    let object = &wanted.object;
    let Some((id, cluster)) = in_the_way(ledger, wanted) else {
        let text = format!("{object} stands in nobody's way; `bursar status` shows what does, and the command for it");
        return Err(Refusal { exit_code: 1, text });
    };
    let Some(account) = ledger.accounts.get(id) else {
        return Err(Refusal { exit_code: 4, text: format!("whose way {object} stands in is not known any more") });
    };
    let mut event = event(Some(account), "object to be adopted", &note);
    event.detail = serde_json::json!({"object": object, "cluster": cluster});
    let order = Order {
        id: next_id(ledger),
        account: id.clone(),
        what: OrderKind::AdoptObject,
        note,
        bulk: None,
        object: Some(object.clone()),
    };
    let text = format!("{}: {object} to be adopted", account.account_name());
    let changes = vec![Change::Order(order), Change::Failure(id.clone(), cluster.clone(), None)];
    Ok(One { changes, events: vec![event], text, revoked: None })
}

/// Whose way it stands in, and where.
fn in_the_way<'a>(ledger: &'a LedgerState, wanted: &AdoptObject) -> Option<(&'a AccountId, &'a ClusterName)> {
    let (kind, _) = wanted.object.split_once(' ')?;
    let word = if kind == "namespace" { "" } else { "object " };
    let command = format!("`bursar adopt {word}{}`", wanted.object);
    let is_owner = |id: &AccountId| {
        let account = ledger.accounts.get(id);
        wanted.owner.as_ref().is_none_or(|owner| account.is_some_and(|account| account.account_name() == *owner))
    };
    let mut failures = ledger.failures.iter();
    let found = failures.find(|((id, _), failure)| failure.reason.contains(&command) && is_owner(id));
    found.map(|((id, cluster), _)| (id, cluster))
}
