//! Somebody asks for an account; and which directories a cycle asks, how, and which tell by themselves.

use std::collections::BTreeSet;
use std::sync::Arc;

use bursar_directory::ldap::follow::follow;
use bursar_directory::{Pass, SourceConfig};
use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;

use super::{Engine, EngineError};
use crate::control::api::OwnRequest;
use crate::errors::chain;
use crate::orders::ensure::{Asker, Ensured, ensure};
use crate::orders::request::{EnsureAnswer, EnsureRequest, Refusal, Trigger};
use crate::report::own;
use crate::snapshot::{Comparison, DirectorySnapshot};
use crate::store::{ReadStore, StoreError, facts};

/// A task that keeps what is known of a directory fresh; it ends with its engine.
pub(super) struct Follower {
    source: SourceConfig,
    _task: AbortOnDropHandle<()>,
}

/// Says in the journal what a full read found that no change had told.
pub(crate) fn tell_repairs(snapshot: &DirectorySnapshot) {
    for read in &snapshot.reads {
        let Some(Comparison { differences, examples }) = &read.compared else { continue };
        if *differences > 0 {
            let examples = examples.join(", ");
            tracing::warn!(source = read.source, differences, examples, "a full read differs from the changes");
        } else {
            tracing::info!(source = read.source, "a full read shows what the changes made");
        }
    }
}

impl Engine {
    /// For a process that reads its directories once: nothing of them is kept, and no server asked for what to ask it next.
    #[must_use]
    pub fn reading_once(mut self) -> Self {
        self.memory = None;
        self
    }

    /// Lets the servers tell their changes of the sources that are configured so, as they are configured now.
    pub fn follow_directories(&mut self) {
        let Some(memory) = &self.memory else { return };
        let wanted = |source: &SourceConfig| source.persists() && self.sources.contains(source);
        self.followers.retain(|follower| wanted(&follower.source));
        for source in self.sources.iter().filter(|source| source.persists()) {
            if !self.followers.iter().any(|follower| follower.source == *source) {
                let task = follow(source.clone(), memory.clone(), Arc::clone(&self.told));
                let task = AbortOnDropHandle::new(tokio::spawn(task));
                self.followers.push(Follower { source: source.clone(), _task: task });
            }
        }
    }

    /// How much a cycle asks its directories for.
    pub(crate) fn pass(&self, trigger: Trigger) -> Pass {
        match (&self.memory, trigger) {
            (None, _) => Pass::Once,
            (Some(memory), Trigger::FullRead) => Pass::Whole(memory.clone()),
            (Some(memory), _) => Pass::Changes(memory.clone()),
        }
    }

    /// The sources that a cycle asks, and the names of the others. A change is of those that tell theirs. On schedule, one
    /// with an interval is left out until that is over; whoever asks for a cycle, or for what only a read can answer, asks all.
    pub(crate) fn due(&self, trigger: Trigger) -> (Vec<SourceConfig>, BTreeSet<String>) {
        let (state, now) = (self.store.state(), self.now());
        let waits = state.orders.iter().any(|order| order.what.is_of_reads());
        let is_live = |source: &SourceConfig| self.memory.as_ref().is_some_and(|memory| memory.live(source).is_some());
        let is_due = |source: &&SourceConfig| match trigger {
            Trigger::Change if !waits => is_live(source),
            Trigger::Schedule if !waits => {
                state.sources.get(&source.name).is_none_or(|read| read.is_due(source.interval(), now))
            }
            _ => true,
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
        read.await.map_err(|error: StoreError| Refusal { exit_code: 1, text: chain(&error) })
    }

    /// Why it is as it is.
    pub fn why_own(&self, uid: u32, request: &OwnRequest) -> Result<Value, Refusal> {
        let ledger = self.store.state();
        Ok(own::why(own::find(ledger, uid, request)?, ledger, &self.settings.policy))
    }
}
