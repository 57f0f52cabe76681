//! Turns the doubts about the statements of sources into refusals.

use std::time::Duration;

use super::guard::{ABSENCE, ATTRIBUTES, EMPTIED, IMPORT, Refusal};
use super::hash;
use crate::identity::AccountName;
use crate::ledger::LedgerState;
use crate::ledger::doubt::{Doubt, DoubtKey, Question};

/// Returns a refusal for each doubt, except doubts that the freshest server has decided after `absent_for`. Doubted
/// absences in one source with the same proof become one refusal.
pub(super) fn refusals(ledger: &LedgerState, absent_for: Duration) -> Vec<Refusal> {
    let mut refusals: Vec<Refusal> = Vec::new();
    let is_decided = |doubt: &Doubt| {
        doubt.proof.is_some() && doubt.counted.is_some_and(|counted| counted.seconds >= absent_for.as_secs())
    };
    for (key, doubt) in ledger.doubts.iter().filter(|(_, doubt)| !is_decided(doubt)) {
        let Some(next) = refusal(ledger, key, doubt) else { continue };
        let is_alike = |known: &&mut Refusal| {
            next.limit == ABSENCE && (&known.limit, &known.class, &known.what) == (&next.limit, &next.class, &next.what)
        };
        match refusals.iter_mut().find(is_alike) {
            Some(known) => {
                known.wanted += next.wanted;
                known.accounts.extend(next.accounts);
            }
            None => refusals.push(next),
        }
    }
    refusals
}

/// Returns `None` for a doubt that the next complete read ends.
fn refusal(ledger: &LedgerState, key: &DoubtKey, doubt: &Doubt) -> Option<Refusal> {
    let names = doubt.accounts.iter().filter_map(|id| Some(ledger.accounts.get(id)?.account_name()));
    let mut accounts: Vec<AccountName> = names.collect();
    accounts.sort();
    let (limit, what, parts) = match &key.question {
        Question::Attribute(name) => (ATTRIBUTES, name.clone(), vec![key.part()]),
        // There is nothing to approve: if the attribute is lost, no account's uid changes.
        Question::Uid(name) => (ATTRIBUTES, name.clone(), Vec::new()),
        Question::Import => (IMPORT, format!("{}s", key.kind), Vec::new()),
        Question::Absence(_) => (ABSENCE, doubt.proof.clone().unwrap_or_default(), Vec::new()),
        Question::Emptied => (EMPTIED, "groups".to_owned(), Vec::new()),
        Question::Renamed => return None,
    };
    Some(Refusal {
        limit: limit.to_owned(),
        class: key.source.clone(),
        allowed: doubt.now,
        wanted: doubt.before,
        what,
        accounts,
        hash: (!parts.is_empty()).then(|| hash::of_parts(&parts)),
        parts,
    })
}
