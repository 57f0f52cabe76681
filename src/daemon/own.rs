//! Answers the questions of people about their own accounts over the control socket, and their requests for an account.

use std::path::Path;

use serde_json::Value;

use crate::control::api::{OwnRequest, WhoRequest};
use crate::errors::chain;
use crate::ledger::LedgerState;
use crate::orders::ensure::{self, Asker, Ensured};
use crate::orders::request::{EnsureAnswer, EnsureRequest, RequestRefusal, Trigger};
use crate::policy::Policy;
use crate::report::{own, who};
use crate::runtime::ledger::Ledger;
use crate::store::{ReadStore, StoreError, facts};

/// Returns everything that the ledger in `file` has about one of the caller's accounts.
pub(super) async fn show(
    ledger: &LedgerState,
    file: &Path,
    uid: u32,
    request: &OwnRequest,
) -> Result<Value, RequestRefusal> {
    let account = own::find(ledger, uid, request)?;
    // The database views select by name. If a former account had the name, its rows must stay out.
    let alone = !own::has_namesake(ledger, account);
    let read = async {
        let mut store = ReadStore::open(file).await?;
        let row = facts::named(&mut store, account.kind, &account.id.0.to_string()).await?.into_iter().next();
        facts::of(&mut store, account.kind, row.unwrap_or_default(), alone).await
    };
    read.await.map_err(|error: StoreError| RequestRefusal { exit_code: 1, text: chain(&error) })
}

/// Explains the state of one of the caller's accounts.
pub(super) fn why(
    ledger: &LedgerState,
    policy: &Policy,
    uid: u32,
    request: &OwnRequest,
) -> Result<Value, RequestRefusal> {
    Ok(own::why(own::find(ledger, uid, request)?, ledger, policy))
}

/// Returns which of the caller's accounts something in a log belongs to now. Addresses of other people and notes about
/// them are left out.
pub(super) async fn who(
    ledger: &LedgerState,
    policy: &Policy,
    file: &Path,
    uid: u32,
    request: &WhoRequest,
) -> Result<Value, RequestRefusal> {
    let own = own::find(ledger, uid, &OwnRequest { of: None })?.account_name().to_string();
    let read = async {
        let mut store = ReadStore::open(file).await?;
        who::answer(&mut store, Some((ledger, policy)), &request.what, None).await
    };
    let mut answer = read.await.map_err(|error: StoreError| RequestRefusal { exit_code: 1, text: chain(&error) })?;
    let is_own = |found: &Value| {
        let of = found["account"].as_str().and_then(|name| name.parse().ok());
        own::find(ledger, uid, &OwnRequest { of }).is_ok_and(|account| account.id.0.to_string() == found["id"])
    };
    let answers = answer["answers"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let mut answers: Vec<Value> = answers.into_iter().filter(is_own).collect();
    if answers.is_empty() {
        return Err(own::refused());
    }
    for person in answers.iter_mut().filter_map(|answer| answer["people"].as_array_mut()).flatten() {
        if person["member"] != own.as_str() {
            person["mail"] = Value::Null;
        }
    }
    answer["answers"] = Value::Array(answers);
    answer["notes"] = Value::Array(Vec::new());
    Ok(answer)
}

/// Records that somebody asks for an account. Returns its state, and the cycle that has to run next for it.
pub(super) async fn ensure(
    ledger: &mut Ledger,
    policy: &Policy,
    asker: &Asker,
    request: &EnsureRequest,
) -> Result<(Result<EnsureAnswer, RequestRefusal>, Option<Trigger>), StoreError> {
    let now = ledger.now();
    let Ensured { changes, events, answer, wants } = ensure::ensure(ledger.state(), policy, asker, request, now);
    ledger.write(&changes, &events, now).await?;
    Ok((answer, wants))
}
