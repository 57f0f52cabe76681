//! Somebody asks for an account; and which directories a cycle asks.

use std::collections::BTreeSet;

use super::{Engine, EngineError};
use crate::control::api::{EnsureAnswer, EnsureRequest, Refusal, Trigger};
use crate::directory::SourceConfig;
use crate::orders::ensure::{Asker, Ensured, ensure};

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
        (
            due.into_iter().map(|source| self.with_made(source)).collect(),
            others.into_iter().map(|source| source.name.clone()).collect(),
        )
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
}
