//! What people ask of their own over the control socket: how their account is, why, and that it be there.

use std::path::Path;

use serde_json::Value;

use crate::control::api::OwnRequest;
use crate::errors::chain;
use crate::ledger::LedgerState;
use crate::orders::ensure::{self, Asker, Ensured};
use crate::orders::request::{EnsureAnswer, EnsureRequest, Refusal, Trigger};
use crate::policy::Policy;
use crate::report::own;
use crate::runtime::ledger::Ledger;
use crate::store::{ReadStore, StoreError, facts};

/// Everything that the ledger in `file` says of what is somebody's own.
pub(super) async fn show(ledger: &LedgerState, file: &Path, uid: u32, request: &OwnRequest) -> Result<Value, Refusal> {
    let account = own::find(ledger, uid, request)?;
    // The views go by name, and somebody who is gone may have had it before.
    let alone = !own::has_namesake(ledger, account);
    let read = async {
        let mut store = ReadStore::open(file).await?;
        let row = facts::named(&mut store, account.kind, &account.id.0.to_string()).await?.into_iter().next();
        facts::of(&mut store, account.kind, row.unwrap_or_default(), alone).await
    };
    read.await.map_err(|error: StoreError| Refusal { exit_code: 1, text: chain(&error) })
}

/// Why it is as it is.
pub(super) fn why(ledger: &LedgerState, policy: &Policy, uid: u32, request: &OwnRequest) -> Result<Value, Refusal> {
    Ok(own::why(own::find(ledger, uid, request)?, ledger, policy))
}

/// Notes that somebody asks for an account; answers how it is, and with the cycle that brings it nearer.
pub(super) async fn ensure(
    ledger: &mut Ledger,
    policy: &Policy,
    asker: &Asker,
    request: &EnsureRequest,
) -> Result<(Result<EnsureAnswer, Refusal>, Option<Trigger>), StoreError> {
    let now = ledger.now();
    let Ensured { changes, events, answer, wants } = ensure::ensure(ledger.state(), policy, asker, request, now);
    ledger.write(&changes, &events, now).await?;
    Ok((answer, wants))
}
