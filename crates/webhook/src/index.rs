//! Whose each namespace is: a watch of the namespaces that carry our label, of which only the proven identity is kept.
//! It reads, and writes nothing.
//!
//! The watch is spoken here by hand, for what matters most is what `kube::runtime` hides: the bookmarks, by which a
//! watch without events is told from one that is dead. An index that has not heard for [`LIMIT`] answers nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bursar_core::admission::tenant::{Resolved, Unresolved};
use bursar_core::contract::{CLASS, Identity, identity_of};
use bursar_core::errors::chain;
use bursar_core::identity::{AccountName, ClusterName, NamespaceName};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ListParams, PartialObjectMeta, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::Semaphore;

use crate::pace::{AGAIN, now, paced};

/// An index that has heard nothing for so long may have missed a suspension. Bookmarks come once a minute; within this
/// time a dead connection is found ([`SILENCE`]) and another one tried twice.
pub const LIMIT: Duration = Duration::from_mins(5);

/// A watch without bookmarks for so long is a dead connection.
const SILENCE: Duration = Duration::from_secs(100);

/// The server ends a watch after this; less than its own default, so that it is never the one to choose.
const WATCH_SECONDS: u32 = 290;

/// Namespaces in one page of the listing: what kubectl asks for. A page is 2 MiB at most, and soon dropped.
const PAGE: u32 = 500;

/// One live read must leave time for the answer: the API server waits 10 s for the review at most.
const LIVE_READ: Duration = Duration::from_secs(2);

/// Live reads at a time. A client that makes the API server ask about a namespace that is not there must not make the
/// webhook ask about it as often.
const LIVE_READS: usize = 16;

/// By whom a namespace is sealed, and for which cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    /// The cluster that seals must be for.
    pub cluster: ClusterName,
    /// Ed25519 keys, several during a rollover.
    pub public_keys: Vec<[u8; 32]>,
}

/// Where the index reads.
struct Source {
    client: Client,
    trust: Trust,
}

/// What is known of all namespaces with our label.
pub struct Index {
    known: RwLock<BTreeMap<Box<str>, Arc<Resolved>>>,
    source: RwLock<Option<Arc<Source>>>,
    /// When the API server was last heard of, and whether everything was listed since.
    heard: Mutex<Heard>,
    live_reads: Semaphore,
    /// Why the watch does not go on.
    trouble: Mutex<Option<String>>,
}

#[derive(Debug, Clone, Copy)]
struct Heard {
    at: Instant,
    listed: bool,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").field("namespaces", &self.len()).finish_non_exhaustive()
    }
}

impl Default for Index {
    fn default() -> Self {
        Self {
            known: RwLock::default(),
            source: RwLock::default(),
            heard: Mutex::new(Heard { at: now(), listed: false }),
            live_reads: Semaphore::new(LIVE_READS),
            trouble: Mutex::default(),
        }
    }
}

impl Index {
    /// Namespaces that are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How long nothing was heard of namespaces.
    #[must_use]
    pub fn age(&self) -> Duration {
        now().saturating_duration_since(self.heard().at)
    }

    /// Why no identity can be told: nothing was listed yet, or not heard of for [`LIMIT`].
    #[must_use]
    pub fn unready(&self) -> Option<String> {
        let (listed, seconds) = (self.heard().listed, self.age().as_secs());
        let why = match (listed, self.age() > LIMIT) {
            (false, _) => "namespaces are not listed yet".to_owned(),
            (true, true) => format!("nothing was heard of namespaces for {seconds} s"),
            (true, false) => return None,
        };
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Some(trouble.map_or_else(|| why.clone(), |trouble| format!("{why}: {trouble}")))
    }

    /// Whose `namespace` is. One that is not in the index is read live, once: it may be a moment old.
    pub async fn resolve(&self, namespace: &str) -> Arc<Resolved> {
        match self.known(namespace) {
            Some(known) => known,
            None => Arc::new(self.read_live(namespace).await.unwrap_or(Resolved::Unresolved(Unresolved::Unknown))),
        }
    }

    /// The same without reading; `None` if it is not in the index.
    #[must_use]
    pub fn known(&self, namespace: &str) -> Option<Arc<Resolved>> {
        if self.unready().is_some() {
            let seconds = self.age().as_secs();
            return Some(Arc::new(Resolved::Unresolved(Unresolved::Stale { seconds })));
        }
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(namespace).cloned()
    }

    /// The identities of the namespaces of an account that are sealed.
    #[must_use]
    pub fn of_account(&self, account: &AccountName) -> Vec<Identity> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let sealed = known.values().filter_map(|resolved| match &**resolved {
            Resolved::Sealed(identity) if identity.account == *account => Some(identity.clone()),
            Resolved::Sealed(_) | Resolved::Unresolved(_) => None,
        });
        sealed.collect()
    }

    /// What the API server says of a namespace now; `None`: it has no such tenant's namespace, or does not answer.
    pub async fn read_live(&self, namespace: &str) -> Option<Resolved> {
        let source = self.source.read().unwrap_or_else(PoisonError::into_inner).clone()?;
        let read = async {
            let _place = self.live_reads.acquire().await.ok()?;
            Api::<Namespace>::all(source.client.clone()).get_metadata_opt(namespace).await.ok().flatten()
        };
        let found = tokio::time::timeout(LIVE_READ, read).await.ok().flatten()?;
        found.labels().contains_key(CLASS).then(|| resolved(&source.trust, &found)).flatten()
    }

    /// Watches until it is dropped or aborted, with a client of [`crate::pace`]. What another watch has learned is kept
    /// until this one has listed all.
    pub async fn watch(self: Arc<Self>, client: Client, trust: Trust) {
        let source = Arc::new(Source { client, trust });
        *self.source.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&source));
        let api = Api::<Namespace>::all(source.client.clone());
        let mut pause = AGAIN[0];
        loop {
            let began = now();
            let broken = match self.list(&api, &source.trust).await {
                Ok(version) => self.follow(&api, &source.trust, version).await,
                Err(error) => error,
            };
            self.broke(&broken);
            let (wait, next) = paced(pause, began.elapsed());
            tokio::time::sleep(wait.unwrap_or(AGAIN[0])).await;
            pause = next;
        }
    }

    /// Replaces all that is known, and gives the version from which to watch.
    async fn list(&self, api: &Api<Namespace>, trust: &Trust) -> Result<String, Broken> {
        let mut known = BTreeMap::new();
        let mut parameters = ListParams::default().labels(CLASS).limit(PAGE);
        let version = loop {
            let page = tokio::time::timeout(SILENCE, api.list_metadata(&parameters));
            let page = page.await.map_err(|_| Broken::Silent)?.map_err(Broken::Request)?;
            let (next, version) = (page.metadata.continue_.clone(), page.metadata.resource_version.clone());
            for namespace in page {
                note(&mut known, trust, &namespace);
            }
            match next.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => break version.unwrap_or_default(),
            }
        };
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
        self.hear(true);
        Ok(version)
    }

    /// Follows the changes since `version` until they are no longer told from there.
    async fn follow(&self, api: &Api<Namespace>, trust: &Trust, mut version: String) -> Broken {
        let parameters = WatchParams::default().labels(CLASS).timeout(WATCH_SECONDS);
        let mut pause = AGAIN[0];
        loop {
            let began = now();
            let ended = self.follow_once(api, trust, &parameters, &mut version).await;
            let (wait, next) = paced(pause, began.elapsed());
            pause = next;
            match ended {
                // The client waits if it was short.
                Ok(()) => {}
                Err(Broken::Expired) => return Broken::Expired,
                Err(broken) => {
                    self.broke(&broken);
                    tokio::time::sleep(wait.unwrap_or(AGAIN[0])).await;
                }
            }
        }
    }

    /// One watch to its end, which the server sets.
    async fn follow_once(
        &self,
        api: &Api<Namespace>,
        trust: &Trust,
        parameters: &WatchParams,
        version: &mut String,
    ) -> Result<(), Broken> {
        let started = tokio::time::timeout(SILENCE, api.watch_metadata(parameters, version));
        let mut events = std::pin::pin!(started.await.map_err(|_| Broken::Silent)?.map_err(Broken::Request)?);
        loop {
            let event = tokio::time::timeout(SILENCE, events.next()).await.map_err(|_| Broken::Silent)?;
            let event = match event {
                None => return Ok(()),
                Some(event) => event.map_err(Broken::Request)?,
            };
            match event {
                WatchEvent::Added(namespace) | WatchEvent::Modified(namespace) => {
                    *version = namespace.resource_version().unwrap_or_default();
                    note(&mut self.known.write().unwrap_or_else(PoisonError::into_inner), trust, &namespace);
                }
                WatchEvent::Deleted(namespace) => {
                    *version = namespace.resource_version().unwrap_or_default();
                    let name = namespace.name_any();
                    self.known.write().unwrap_or_else(PoisonError::into_inner).remove(name.as_str());
                }
                WatchEvent::Bookmark(bookmark) => *version = bookmark.metadata.resource_version,
                // 410 Gone: the history from there is no longer kept.
                WatchEvent::Error(status) if status.code == 410 => return Err(Broken::Expired),
                WatchEvent::Error(status) => return Err(Broken::Request(kube::Error::Api(status))),
            }
            self.hear(false);
        }
    }

    fn hear(&self, listed: bool) {
        let listed = self.heard().listed || listed;
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Heard { at: now(), listed };
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn broke(&self, broken: &Broken) {
        if matches!(broken, Broken::Expired) {
            return;
        }
        let why = chain(broken);
        tracing::warn!(error = why, "the watch of namespaces broke");
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    fn heard(&self) -> Heard {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a watch ended.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("the API server does not answer")]
    Silent,
    #[error("a request to the API server failed")]
    Request(#[source] kube::Error),
    #[error("the history is no longer kept")]
    Expired,
}

fn note(known: &mut BTreeMap<Box<str>, Arc<Resolved>>, trust: &Trust, namespace: &PartialObjectMeta<Namespace>) {
    let name = namespace.name_any().into_boxed_str();
    match resolved(trust, namespace) {
        Some(resolved) => drop(known.insert(name, Arc::new(resolved))),
        None => drop(known.remove(&name)),
    }
}

/// `None`: a name that no namespace has.
fn resolved(trust: &Trust, namespace: &PartialObjectMeta<Namespace>) -> Option<Resolved> {
    let name = NamespaceName::try_from(namespace.name_any()).ok()?;
    let Trust { cluster, public_keys } = trust;
    Some(Resolved::of(identity_of(cluster, &name, namespace.labels(), namespace.annotations(), public_keys)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_index_that_listed_nothing_tells_no_identity() {
        let index = Index::default();
        assert!(index.unready().expect("unready").contains("not listed"));
        assert!(matches!(*index.resolve("tool-foo").await, Resolved::Unresolved(Unresolved::Stale { .. })));
    }

    #[tokio::test]
    async fn an_index_that_heard_nothing_for_too_long_tells_no_identity() {
        let index = Index::default();
        index
            .known
            .write()
            .expect("a lock")
            .insert("tool-foo".into(), Arc::new(Resolved::Unresolved(Unresolved::Edited)));
        index.hear(true);
        assert!(index.unready().is_none());
        assert!(matches!(*index.resolve("tool-foo").await, Resolved::Unresolved(Unresolved::Edited)));
        let long_ago = now().checked_sub(LIMIT + Duration::from_secs(2)).expect("a machine that runs for minutes");
        index.heard.lock().expect("a lock").at = long_ago;
        assert!(index.unready().expect("unready").contains("nothing was heard of namespaces for 302 s"));
        assert!(matches!(*index.resolve("tool-foo").await, Resolved::Unresolved(Unresolved::Stale { seconds: 302.. })));
    }
}
