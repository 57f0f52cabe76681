//! Somebody asks for an account; and which directories a cycle asks.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Engine, EngineError};
use crate::control::api::{EnsureAnswer, EnsureRequest, OwnRequest, Refusal, Trigger};
use crate::directory::SourceConfig;
use crate::ledger::store::{ReadStore, StoreError, facts};
use crate::orders::ensure::{Asker, Ensured, ensure};
use crate::orders::own;
use crate::report;

impl Engine {
    /// The sources that a cycle asks, and the names of the others. On schedule, one with an interval is left out until
    /// that is over; whoever asks for a cycle, or for what only a read can answer, asks all.
    pub(crate) fn due(&self, trigger: Trigger) -> (Vec<SourceConfig>, BTreeSet<String>) {
        let (state, now) = (self.store.state(), self.now());
        let all = trigger != Trigger::Schedule || state.orders.iter().any(|order| order.what.is_of_reads());
        let is_due = |source: &&SourceConfig| {
            all || state.sources.get(&source.name).is_none_or(|read| read.is_due(source.interval(), now))
        };
        let (due, others): (Vec<_>, Vec<_>) = self.sources.iter().partition(is_due);
        (due.into_iter().cloned().collect(), others.into_iter().map(|source| source.name.clone()).collect())
    }

    /// Notes that somebody asks for an account; answers how it is, and with the cycle that brings it nearer.
    pub async fn ensure(
        &mut self,
        asker: &Asker,
        request: &EnsureRequest,
    ) -> Result<(Result<EnsureAnswer, Refusal>, Option<Trigger>), EngineError> {
        let now = self.now();
        let (state, policy) = (self.store.state(), &self.settings.policy);
        let Ensured { changes, events, answer, wants } = ensure(state, policy, asker, request, now);
        self.store.write(&self.lock, &changes, &events, now).await?;
        Ok((answer, wants))
    }

    /// Everything that the ledger says of what is somebody's own.
    pub async fn show_own(&self, uid: u32, request: &OwnRequest) -> Result<Value, Refusal> {
        let account = own::find(self.store.state(), uid, request)?;
        // The views go by name, and somebody who is gone may have had it before.
        let alone = !own::has_namesake(self.store.state(), account);
        let read = async {
            let mut store = ReadStore::open(&self.settings.ledger()).await?;
            let row = facts::named(&mut store, account.kind, &account.id.0).await?.into_iter().next();
            facts::of(&mut store, account.kind, row.unwrap_or_default(), alone).await
        };
        read.await.map_err(|error: StoreError| Refusal { exit_code: 1, text: report::chain(&error) })
    }

    /// Why it is as it is.
    pub fn why_own(&self, uid: u32, request: &OwnRequest) -> Result<Value, Refusal> {
        let ledger = self.store.state();
        Ok(own::why(own::find(ledger, uid, request)?, ledger, &self.settings.policy))
    }
}
