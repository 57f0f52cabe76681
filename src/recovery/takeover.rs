//! Transfers the ownership of the clusters to this ledger, which comes from a backup or from another host: the ledger
//! learns what happened in the clusters since the backup, and gets an id that no copy of the ledger has.

use bursar_directory::{self as directory, Pass};
use jiff::Timestamp;
use serde_json::json;

use super::{RecoveryError, source_of};
use crate::ledger::LedgerState;
use crate::ledger::change::{Change, Event};
use crate::ledger::cluster_recovery::{Facts, learn};
use crate::settings::Settings;
use crate::store::Store;

/// The result of [`remember`].
#[derive(Debug, Clone, PartialEq)]
pub struct Remembered {
    /// The ledger with its new id.
    pub ledger: LedgerState,
    /// The number of accounts about which the clusters knew something newer.
    pub learned: usize,
    /// What remains unknown, as texts for administrators.
    pub doubts: Vec<String>,
}

/// Records that the ledger of `settings` takes over what `owners` owned. If the takeover is interrupted afterwards, it
/// can be repeated.
///
/// # Errors
/// There is no ledger, or a daemon runs.
pub async fn remember(
    settings: &Settings,
    facts: &Facts,
    owners: &[String],
    actor: &str,
    now: Timestamp,
) -> Result<Remembered, RecoveryError> {
    let (mut store, lock) = Store::open(&settings.state_dir).await?;
    let ledger_id = uuid::Uuid::new_v4().simple().to_string();
    // Sources that do not answer are skipped. Accounts of an unknown source are reported, and nothing else depends on
    // the sources.
    let snapshot = directory::fetch(&settings.sources()?, &Pass::Once, &settings.policy, now).await;
    let source_of = source_of(settings, &snapshot);
    let learned = learn(store.state(), facts, &settings.policy, &source_of, actor, now);
    let mut changes = learned.changes;
    changes.extend([Change::LedgerId(ledger_id.clone()), Change::Learned(now)]);
    let count = learned.events.len();
    let detail = json!({"from": owners, "was": store.state().ledger_id, "ledger": ledger_id});
    let event = Event::new("taken over", "the clusters had another owner", detail);
    let mut events = vec![Event { actor: actor.to_owned(), ..event }];
    events.extend(learned.events);
    store.write(&lock, &changes, &events, now).await?;
    let ledger = store.state().clone();
    store.close().await?;
    Ok(Remembered {
        ledger,
        learned: count,
        doubts: [learned.doubts, learned.unexplained.into_values().collect()].concat(),
    })
}
