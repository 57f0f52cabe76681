//! Records the order to revoke a whole class.

use std::collections::BTreeSet;

use serde_json::json;

use super::{OrderOutcome, event, next_id, refused};
use crate::desired::accounts_of;
use crate::identity::AccountId;
use crate::ledger::change::Change;
use crate::ledger::revocation::BulkRevocation;
use crate::ledger::{Account, LedgerState, Lifecycle, Note, Order, OrderKind};
use crate::orders::request::RequestRefusal;
use crate::policy::{CredentialKind, Policy};

/// Refuses a revocation if the classes only have credentials of an OIDC issuer. `whom` names the target in the message.
pub(super) fn is_possible<'a>(
    policy: &Policy,
    whom: &str,
    classes: impl IntoIterator<Item = &'a str>,
) -> Result<(), RequestRefusal> {
    let rules = classes.into_iter().filter_map(|class| policy.classes.get(class)?.credential.as_ref());
    let mut issuers = Vec::new();
    for rule in rules {
        match &rule.kind {
            CredentialKind::Oidc(oidc) => issuers.push(oidc.issuer.as_str()),
            CredentialKind::Certificate { .. } | CredentialKind::ServiceAccount { .. } => return Ok(()),
        }
    }
    let Some(issuer) = issuers.first() else { return Ok(()) };
    let text = format!(
        "{whom} cannot be revoked: people log in at {issuer}, and Bursar issued no credential; `bursar suspend` \
         takes the access away at once, and the issuer can end the sessions"
    );
    refused(1, text)
}

/// Records an order for each account of the class that has a certificate. The orders are carried out at a pace. If a
/// revocation of the class is running, repeating its order has no effect. An order with another reason or ticket starts
/// a second revocation as soon as no account waits for its turn in the first. The second one does not wait until the
/// first is complete, because an unreachable cluster, or a tenant with a broken home, could delay that forever.
pub(super) fn all(
    ledger: &LedgerState,
    policy: &Policy,
    class: &str,
    note: &Note,
) -> Result<OrderOutcome, RequestRefusal> {
    if let Some(BulkRevocation { note: Note { actor, reason, ticket, at }, .. }) = ledger.revocations.get(class) {
        let has_turns = ledger.waiting_for_revocation(class).next().is_some();
        if has_turns || (reason, ticket) == (&note.reason, &note.ticket) {
            let text =
                format!("class {class}: a revocation is running already, ordered by {actor} at {at:.0}: {reason}");
            return Ok(OrderOutcome { text, ..OrderOutcome::default() });
        }
    }
    let of_class = accounts_of(class, ledger, policy);
    let is_unknown = of_class.is_empty() && !policy.classes.contains_key(class);
    let served = |account: &&Account| account.state == Lifecycle::Active && account.generation > 0;
    let accounts: Vec<&Account> = of_class.into_iter().filter(served).collect();
    if accounts.is_empty() {
        let text = if is_unknown {
            format!("there is no class {class:?}, and no account became a tenant by a class of this name")
        } else {
            format!("class {class:?} has no account with a certificate")
        };
        return refused(4, text);
    }
    // Held accounts may have an order from an earlier revocation.
    let ordered: BTreeSet<&AccountId> = ledger.held_in_revocation(class).map(|account| &account.id).collect();
    let new = accounts.iter().filter(|account| !ordered.contains(&account.id));
    let orders = (next_id(ledger)..).zip(new).map(|(id, account)| {
        let (account, note, bulk) = (account.id.clone(), note.clone(), Some(class.to_owned()));
        Change::Order(Order { id, account, what: OrderKind::Revoke, note, bulk, object: None })
    });
    let begun = Change::Revocation(class.to_owned(), Some(BulkRevocation::begun(note.clone())));
    let mut told = event(None, "revocation of a class ordered", note);
    told.detail = json!({"class": class, "accounts": accounts.len()}).into();
    let held = accounts.iter().filter(|account| ledger.holds.contains_key(&account.id));
    let held: Vec<String> = held.map(|account| account.account_name().to_string()).collect();
    let held = if held.is_empty() {
        String::new()
    } else {
        format!("; held, and revoked only after `bursar release`: {}", held.join(", "))
    };
    Ok(OrderOutcome {
        changes: orders.chain([begun]).collect(),
        events: vec![told],
        text: format!("class {class}: revocation ordered, accounts: {}{held}", accounts.len()),
    })
}
