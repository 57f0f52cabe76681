//! The tenants of namespaces: watches the namespaces with Bursar's class label, and keeps only their verified identity.
//! It writes nothing.
//!
//! The watch protocol is implemented here, because `kube::runtime` hides the bookmarks, which distinguish a watch
//! without events from a dead one. After [`LIMIT`] without news, the index returns no identities.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bursar_core::admission::tenant::{Resolved, Unresolved};
use bursar_core::contract::{CLASS, Identity, identity_of};
use bursar_core::errors::chain;
use bursar_core::identity::{AccountName, ClusterName, NamespaceName};
use bursar_watch::{AGAIN, now, paced};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ListParams, PartialObjectMeta, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt as _};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

/// After this time without news, the index may have missed a suspension. Bookmarks come once a minute. Within this
/// time, a dead connection is detected ([`SILENCE`]), and a new one is tried twice.
pub const LIMIT: Duration = Duration::from_mins(5);

/// After this time without a bookmark, the connection counts as dead.
const SILENCE: Duration = Duration::from_secs(100);

/// The time after which the server ends a watch. It is less than the server's default, so the server never chooses a
/// time of its own.
const WATCH_SECONDS: u32 = 290;

/// Namespaces per page of a list, the same number as kubectl uses. A page is at most 2 MiB, and soon dropped.
const PAGE: u32 = 500;

/// A live read must leave time for the answer, because the API server waits at most 10 s for the review.
const LIVE_READ: Duration = Duration::from_secs(2);

/// The most concurrent live reads. A client can make the API server ask about missing namespaces as often as it likes.
/// This limit keeps the webhook from reading all of them.
const LIVE_READS: usize = 16;

/// The values that a valid seal must match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    /// The cluster that seals must name.
    pub cluster: ClusterName,
    /// Ed25519 keys, several during a rollover.
    pub public_keys: Vec<[u8; 32]>,
}

/// The API server that the index reads from, and the keys that it trusts.
struct Source {
    client: Client,
    trust: Trust,
}

/// The tenants of all namespaces with the class label.
pub struct Index {
    known: RwLock<BTreeMap<Box<str>, Arc<Resolved>>>,
    source: RwLock<Option<Arc<Source>>>,
    /// When the API server last sent news, and whether all namespaces have been listed at least once.
    heard: Mutex<Heard>,
    live_reads: Semaphore,
    /// The last error of the watch; `None` while it works.
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
    /// The number of namespaces in the index.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.read().len()
    }

    /// Whether the index has no namespaces.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the time since the API server last sent news of namespaces.
    #[must_use]
    pub fn age(&self) -> Duration {
        now().saturating_duration_since(self.heard().at)
    }

    /// Returns why the index cannot return identities: nothing was listed yet, or there was no news for [`LIMIT`].
    /// Returns `None` if it can.
    #[must_use]
    pub fn unready(&self) -> Option<String> {
        let (listed, seconds) = (self.heard().listed, self.age().as_secs());
        let why = match (listed, self.age() > LIMIT) {
            (false, _) => "namespaces are not listed yet".to_owned(),
            (true, true) => format!("there was no news of namespaces for {seconds} s"),
            (true, false) => return None,
        };
        let trouble = self.trouble.lock().clone();
        Some(trouble.map_or_else(|| why.clone(), |trouble| format!("{why}: {trouble}")))
    }

    /// Returns the tenant of `namespace`. A namespace that is not in the index is read live once, because it may be
    /// new.
    pub async fn resolve(&self, namespace: &str) -> Arc<Resolved> {
        match self.known(namespace) {
            Some(known) => known,
            None => Arc::new(self.read_live(namespace).await.unwrap_or(Resolved::Unresolved(Unresolved::Unknown))),
        }
    }

    /// Returns the tenant according to the index, without a live read; `None` if the index does not have the namespace.
    #[must_use]
    pub fn known(&self, namespace: &str) -> Option<Arc<Resolved>> {
        if self.unready().is_some() {
            let seconds = self.age().as_secs();
            return Some(Arc::new(Resolved::Unresolved(Unresolved::Stale { seconds })));
        }
        self.known.read().get(namespace).cloned()
    }

    /// Returns the identities of the sealed namespaces of an account.
    #[must_use]
    pub fn of_account(&self, account: &AccountName) -> Vec<Identity> {
        let known = self.known.read();
        let sealed = known.values().filter_map(|resolved| match &**resolved {
            Resolved::Sealed(identity) if identity.account == *account => Some(identity.clone()),
            Resolved::Sealed(_) | Resolved::Unresolved(_) => None,
        });
        sealed.collect()
    }

    /// Reads a namespace from the API server. Returns `None` if it does not exist, has no class label, or cannot be
    /// read in time.
    pub async fn read_live(&self, namespace: &str) -> Option<Resolved> {
        let source = self.source.read().clone()?;
        let read = async {
            let _place = self.live_reads.acquire().await.ok()?;
            Api::<Namespace>::all(source.client.clone()).get_metadata_opt(namespace).await.ok().flatten()
        };
        let found = tokio::time::timeout(LIVE_READ, read).await.ok().flatten()?;
        found.labels().contains_key(CLASS).then(|| resolved(&source.trust, &found)).flatten()
    }

    /// Watches until the future is dropped or its task is aborted. `client` comes from [`bursar_watch`]. Until the
    /// first list is complete, the index keeps what an earlier watch has learned.
    pub async fn watch(self: Arc<Self>, client: Client, trust: Trust) {
        let source = Arc::new(Source { client, trust });
        *self.source.write() = Some(Arc::clone(&source));
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

    /// Lists all namespaces and replaces the index. Returns the version from which to watch.
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
        *self.known.write() = known;
        self.hear(true);
        Ok(version)
    }

    /// Follows the changes since `version`, until the server no longer has the history after the last version that was
    /// read.
    async fn follow(&self, api: &Api<Namespace>, trust: &Trust, mut version: String) -> Broken {
        let parameters = WatchParams::default().labels(CLASS).timeout(WATCH_SECONDS);
        let mut pause = AGAIN[0];
        loop {
            let began = now();
            let ended = self.follow_once(api, trust, &parameters, &mut version).await;
            let (wait, next) = paced(pause, began.elapsed());
            pause = next;
            match ended {
                // The client waits if the watch was short.
                Ok(()) => {}
                Err(Broken::Expired) => return Broken::Expired,
                Err(broken) => {
                    self.broke(&broken);
                    tokio::time::sleep(wait.unwrap_or(AGAIN[0])).await;
                }
            }
        }
    }

    /// Runs one watch until the server ends it.
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
                    note(&mut self.known.write(), trust, &namespace);
                }
                WatchEvent::Deleted(namespace) => {
                    *version = namespace.resource_version().unwrap_or_default();
                    let name = namespace.name_any();
                    self.known.write().remove(name.as_str());
                }
                WatchEvent::Bookmark(bookmark) => *version = bookmark.metadata.resource_version,
                // 410 Gone: the server no longer has the history from this version.
                WatchEvent::Error(status) if status.code == 410 => return Err(Broken::Expired),
                WatchEvent::Error(status) => return Err(Broken::Request(kube::Error::Api(status))),
            }
            self.hear(false);
        }
    }

    fn hear(&self, listed: bool) {
        let listed = self.heard().listed || listed;
        *self.heard.lock() = Heard { at: now(), listed };
        *self.trouble.lock() = None;
    }

    fn broke(&self, broken: &Broken) {
        if matches!(broken, Broken::Expired) {
            return;
        }
        let why = chain(broken);
        tracing::warn!(error = why, "the watch of namespaces failed");
        *self.trouble.lock() = Some(why);
    }

    fn heard(&self) -> Heard {
        *self.heard.lock()
    }
}

/// Why a watch ended.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("the API server does not answer")]
    Silent,
    #[error("a request to the API server failed")]
    Request(#[source] kube::Error),
    #[error("the API server no longer has the history")]
    Expired,
}

fn note(known: &mut BTreeMap<Box<str>, Arc<Resolved>>, trust: &Trust, namespace: &PartialObjectMeta<Namespace>) {
    let name = namespace.name_any().into_boxed_str();
    match resolved(trust, namespace) {
        Some(resolved) => drop(known.insert(name, Arc::new(resolved))),
        None => drop(known.remove(&name)),
    }
}

/// Returns `None` if no namespace can have this name.
fn resolved(trust: &Trust, namespace: &PartialObjectMeta<Namespace>) -> Option<Resolved> {
    let name = NamespaceName::try_from(namespace.name_any()).ok()?;
    let Trust { cluster, public_keys } = trust;
    Some(Resolved::of(identity_of(cluster, &name, namespace.labels(), namespace.annotations(), public_keys)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_index_before_its_first_list_returns_no_identity() {
        let index = Index::default();
        assert!(index.unready().expect("the index is not ready").contains("not listed"));
        assert!(matches!(*index.resolve("tool-foo").await, Resolved::Unresolved(Unresolved::Stale { .. })));
    }

    #[tokio::test]
    async fn an_index_without_news_for_too_long_returns_no_identity() {
        let index = Index::default();
        index.known.write().insert("tool-foo".into(), Arc::new(Resolved::Unresolved(Unresolved::Edited)));
        index.hear(true);
        assert!(index.unready().is_none());
        assert!(matches!(*index.resolve("tool-foo").await, Resolved::Unresolved(Unresolved::Edited)));
        let long_ago = now().checked_sub(LIMIT + Duration::from_secs(2)).expect("the machine has run for minutes");
        index.heard.lock().at = long_ago;
        assert!(index.unready().expect("the index is not ready").contains("there was no news of namespaces for 302 s"));
        assert!(matches!(*index.resolve("tool-foo").await, Resolved::Unresolved(Unresolved::Stale { seconds: 302.. })));
    }
}
