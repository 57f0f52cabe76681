//! Builds what `bursar revoke` shows of each account after the revocation: which API servers refuse the old
//! credentials, and where the new ones are. Reads the ledger and writes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::control::api::proof::{Evicted, RevocationProof};
use crate::execute::{BOUND_BY_OTHERS, REFUSED};
use crate::identity::AccountName;
use crate::ledger::{Account, LedgerState};
use crate::orders;
use crate::store::facts::Row;
use crate::store::{ReadStore, StoreError};

/// The findings for the account with the id `?1` in its generation `?2`, the newest last.
const FOUND: &str = "SELECT action, at, detail FROM event
    WHERE account_id = ?1 AND action IN ('old credentials refused', 'old credentials bound by others', 'evicted')
    AND detail ->> 'generation' = CAST(?2 AS INTEGER) ORDER BY id";

/// Returns the proofs for those accounts of `revoked` that are served.
pub(super) async fn of(
    ledger: &LedgerState,
    file: &Path,
    revoked: &[AccountName],
) -> Result<Vec<RevocationProof>, StoreError> {
    let mut proofs = Vec::new();
    if revoked.is_empty() {
        return Ok(proofs);
    }
    let mut store = ReadStore::open(file).await?;
    for AccountName { kind, name } in revoked {
        let Ok(account) = orders::find(ledger, *kind, name) else { continue };
        let rows = store.rows(FOUND, &[account.id.0.to_string(), account.generation.to_string()]).await?;
        let mut proof = RevocationProof {
            account: account.account_name(),
            generation: account.generation,
            delivered: delivered(ledger, account),
            stopped: stopped(ledger, account),
            refused: BTreeMap::new(),
            bound_by_others: BTreeMap::new(),
            evicted: BTreeMap::new(),
            unproved: BTreeSet::new(),
        };
        for row in &rows {
            found(row, &mut proof);
        }
        proof.unproved = older(ledger, account).filter(|cluster| !proof.is_asked(cluster)).collect();
        proofs.push(proof);
    }
    Ok(proofs)
}

/// Adds the finding of one event. A later finding of a cluster replaces the earlier one.
fn found(row: &Row, proof: &mut RevocationProof) {
    let text = |key: &str| row.get(key).and_then(Value::as_str).unwrap_or_default();
    let detail: Value = serde_json::from_str(text("detail")).unwrap_or_default();
    let cluster = detail["cluster"].as_str().unwrap_or_default().to_owned();
    match text("action") {
        REFUSED => {
            proof.bound_by_others.remove(&cluster);
            proof.refused.insert(cluster, text("at").to_owned());
        }
        BOUND_BY_OTHERS => {
            proof.refused.remove(&cluster);
            proof
                .bound_by_others
                .insert(cluster, serde_json::from_value(detail["foreign"].clone()).unwrap_or_default());
        }
        _ => {
            // A repeated eviction finds only what is left, so the lists are joined.
            let place = format!("{cluster} {}", detail["namespace"].as_str().unwrap_or_default());
            let Evicted { secrets, changed } = proof.evicted.entry(place).or_default();
            secrets.extend(serde_json::from_value::<Vec<String>>(detail["secrets"].clone()).unwrap_or_default());
            if let Ok(found) = serde_json::from_value(detail["changed"].clone()) {
                *changed = found;
            }
        }
    }
}

/// Returns the clusters in which the account holds a credential of an older generation.
fn older<'l>(ledger: &'l LedgerState, account: &'l Account) -> impl Iterator<Item = String> {
    let held = ledger.certificates_of(&account.id);
    let older = held.filter(|(_, certificate)| certificate.generation != account.generation);
    older.map(|(key, _)| key.cluster.to_string())
}

/// Returns the workloads that a suspension stopped and that `resume` starts again.
fn stopped(ledger: &LedgerState, account: &Account) -> BTreeSet<String> {
    let own = ledger.stopped.keys().filter(|(id, _)| *id == account.id);
    own.map(|(_, key)| format!("{}/{}", key.kind.as_str().to_lowercase(), key.name)).collect()
}

/// Returns the files with a credential of the account's generation, with the time when each was written.
fn delivered(ledger: &LedgerState, account: &Account) -> BTreeMap<String, jiff::Timestamp> {
    let own = ledger.deliveries_of(&account.id).filter(|(key, delivery)| {
        delivery.may_hold_a_credential()
            && !delivery.is_pending()
            && ledger.certificates.get(key).is_some_and(|certificate| certificate.generation == account.generation)
    });
    own.map(|(key, delivery)| {
        let host = key.host.to_string();
        let host = if host.is_empty() { host } else { format!("{host}:") };
        (format!("{host}{}", delivery.path.display()), delivery.at)
    })
    .collect()
}
