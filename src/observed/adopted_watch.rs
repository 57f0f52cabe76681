//! Watches the metadata of foreign namespaces that a class's selector matches. Writes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ListParams, ObjectMeta, PartialObjectMeta};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;

use crate::contract::{CLASS, MANAGED_BY, MANAGER, POD_SECURITY_ENFORCE};
use crate::errors::chain;
use crate::identity::NamespaceName;
use crate::inventory::adopted::{FoundNamespace, FoundNamespaces, Wanted, together};

/// The delay after an error. The namespaces are then listed again, because the watch does not report changes that it
/// missed.
const AGAIN: Duration = Duration::from_secs(2);

/// The number of characters that are kept of an annotation. Names and mail addresses are shorter.
const KEPT: usize = 320;

/// The watches of one cluster, one for each selector. They end when this is dropped.
#[derive(Debug)]
pub struct AdoptedWatch {
    wanted: Wanted,
    shared: Arc<Shared>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// By selector.
    found: Mutex<BTreeMap<String, SelectedNamespaces>>,
    ready: watch::Sender<bool>,
    news: Arc<Notify>,
}

/// The namespaces that one selector matches.
#[derive(Debug, Default)]
struct SelectedNamespaces {
    there: FoundNamespaces,
    /// What the current list has found so far.
    list: FoundNamespaces,
    listed: bool,
    error: Option<String>,
}

/// Lists the foreign namespaces that the selectors match now.
pub async fn listed(client: &Client, wanted: &Wanted) -> Result<FoundNamespaces, kube::Error> {
    let api = Api::<Namespace>::all(client.clone());
    let mut each = Vec::new();
    for (selector, annotations) in wanted {
        let list = api.list_metadata(&ListParams::default().labels(selector)).await?;
        let found = list.items.iter().filter_map(|one| observe(&one.metadata, selector, annotations));
        each.push(found.collect::<FoundNamespaces>());
    }
    Ok(together(&each))
}

impl AdoptedWatch {
    /// Starts the watches; `None` if there is nothing to watch. A namespace that appears, disappears or changes its
    /// owner notifies `news`. Must be called within a runtime.
    #[must_use]
    pub fn start(client: &Client, wanted: Wanted, news: Arc<Notify>) -> Option<Self> {
        if wanted.is_empty() {
            return None;
        }
        let found = wanted.keys().map(|selector| (selector.clone(), SelectedNamespaces::default())).collect();
        let shared = Arc::new(Shared { found: Mutex::new(found), ready: watch::Sender::new(false), news });
        let tasks = wanted
            .clone()
            .into_iter()
            .map(|one| AbortOnDropHandle::new(tokio::spawn(watch(Arc::clone(&shared), client.clone(), one.0, one.1))));
        Some(Self { _tasks: tasks.collect(), wanted, shared })
    }

    /// Returns the selectors and annotations that are watched.
    #[must_use]
    pub const fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Returns all namespaces; `None` until every selector has been listed.
    #[must_use]
    pub fn inventory(&self) -> Option<FoundNamespaces> {
        let found = self.shared.found.lock();
        found.values().all(|one| one.listed).then(|| together(found.values().map(|one| &one.there)))
    }

    /// Returns why the namespaces are not known.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        self.shared.found.lock().values().find_map(|one| one.error.clone())
    }

    /// Waits until the namespaces are known, at most for `timeout`.
    pub async fn wait_until_ready(&self, timeout: Duration) {
        let mut ready = self.shared.ready.subscribe();
        // If they are not known in time, they are missing in the inventory, and the next cycle looks again.
        let _ = tokio::time::timeout(timeout, ready.wait_for(|ready| *ready)).await;
    }
}

impl Shared {
    /// Changes what one selector found, and notifies if something is new.
    fn update(&self, selector: &str, change: impl FnOnce(&mut SelectedNamespaces) -> bool) {
        let mut found = self.found.lock();
        let news = found.get_mut(selector).is_some_and(change);
        let ready = found.values().all(|one| one.listed);
        drop(found);
        self.ready.send_replace(ready);
        if news && ready {
            self.news.notify_one();
        }
    }
}

async fn watch(shared: Arc<Shared>, client: Client, selector: String, annotations: BTreeSet<String>) {
    loop {
        let api = Api::<PartialObjectMeta<Namespace>>::all(client.clone());
        let config = watcher::Config::default().labels(&selector);
        let mut events = std::pin::pin!(watcher(api, config));
        while let Some(event) = events.next().await {
            let event = match event {
                Ok(event) => event,
                Err(error) => {
                    let why = format!("cannot watch the namespaces with {selector}: {}", chain(&error));
                    shared.update(&selector, |found| {
                        (found.listed, found.error) = (false, Some(why));
                        false
                    });
                    break;
                }
            };
            let seen = |namespace: &PartialObjectMeta<Namespace>| observe(&namespace.metadata, &selector, &annotations);
            shared.update(&selector, |found| found.take(event, seen));
        }
        tokio::time::sleep(AGAIN).await;
    }
}

impl SelectedNamespaces {
    /// Applies an event. Returns whether anything changed.
    fn take<T>(&mut self, event: Event<T>, seen: impl Fn(&T) -> Option<(NamespaceName, FoundNamespace)>) -> bool {
        match event {
            Event::Init => {
                self.list.clear();
                false
            }
            Event::InitApply(namespace) => {
                self.list.extend(seen(&namespace));
                false
            }
            Event::InitDone => {
                let before = std::mem::replace(&mut self.there, std::mem::take(&mut self.list));
                let first = !std::mem::replace(&mut self.listed, true);
                self.error = None;
                first || before != self.there
            }
            Event::Apply(namespace) => seen(&namespace).is_some_and(|(name, one)| {
                let before = self.there.insert(name.clone(), one);
                before.as_ref() != self.there.get(&name)
            }),
            Event::Delete(namespace) => seen(&namespace).is_some_and(|(name, _)| self.there.remove(&name).is_some()),
        }
    }
}

/// Returns a namespace that `selector` matches; `None` for names that no tenant can have, such as Kubernetes' own.
fn observe(
    metadata: &ObjectMeta,
    selector: &str,
    annotations: &BTreeSet<String>,
) -> Option<(NamespaceName, FoundNamespace)> {
    let name = NamespaceName::try_from(metadata.name.clone()?).ok()?;
    let labels = metadata.labels.as_ref();
    let label = |key: &str| labels.and_then(|labels| labels.get(key));
    let said = annotations.iter().filter_map(|key| {
        let text = metadata.annotations.as_ref()?.get(key)?;
        Some((key.clone(), text.chars().take(KEPT).collect()))
    });
    let found = FoundNamespace {
        uid: metadata.uid.clone()?,
        selectors: BTreeSet::from([selector.to_owned()]),
        annotations: said.collect(),
        ours: label(CLASS).is_some() || label(MANAGED_BY).is_some_and(|manager| manager == MANAGER),
        deleting: metadata.deletion_timestamp.is_some(),
        level: label(POD_SECURITY_ENFORCE).cloned(),
    };
    Some((name, found))
}
