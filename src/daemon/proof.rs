//! What `bursar revoke` shows of each account when the revocation is done: which API servers refuse the old credentials, and
//! where the new ones are. It reads the ledger and writes nothing.

use std::collections::BTreeMap;
use std::path::Path;

use crate::control::api::RevocationProof;
use crate::identity::AccountName;
use crate::ledger::{Account, CredentialKey, LedgerState};
use crate::orders;
use crate::store::{ReadStore, StoreError};

/// The API servers' answers for the account with the id `?1` in its generation `?2`.
const REFUSED: &str = "SELECT detail ->> 'cluster' AS cluster, max(at) AS at FROM event
    WHERE account_id = ?1 AND action = 'old certificates refused' AND detail ->> 'generation' = CAST(?2 AS INTEGER)
    GROUP BY 1";

/// The proofs for the accounts in `revoked` that are served.
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
        let rows = store.rows(REFUSED, &[account.id.0.clone(), account.generation.to_string()]).await?;
        let text = |row: &crate::store::facts::Row, key: &str| row.get(key)?.as_str().map(str::to_owned);
        let refused: BTreeMap<String, String> =
            rows.iter().filter_map(|row| Some((text(row, "cluster")?, text(row, "at")?))).collect();
        let (generation, delivered) = (account.generation, delivered(ledger, account));
        proofs.push(RevocationProof { account: account.account_name(), generation, refused, delivered });
    }
    Ok(proofs)
}

/// Files with a credential of the account's generation, with when each was written.
fn delivered(ledger: &LedgerState, account: &Account) -> BTreeMap<String, jiff::Timestamp> {
    let deliveries = ledger.deliveries.range(CredentialKey::first_of(&account.id)..);
    let own = deliveries.take_while(|(key, _)| key.account == account.id).filter(|(key, _)| {
        ledger.certificates.get(key).is_some_and(|certificate| certificate.generation == account.generation)
    });
    own.map(|(key, delivery)| {
        let host = key.host.to_string();
        let host = if host.is_empty() { host } else { format!("{host}:") };
        (format!("{host}{}", delivery.path.display()), delivery.at)
    })
    .collect()
}
