//! Watches one kind of a cluster, and starts again after errors from which a watch does not recover by itself.

use std::sync::Arc;
use std::time::Duration;

use bursar_watch::listing_again;
use futures::StreamExt as _;
use kube::api::ListParams;
use kube::core::DynamicObject;
use kube::runtime::watcher;
use kube::{Api, Client};

use super::{ANSWERS_WITHIN, Shared};
use crate::contract::{MANAGED_BY, MANAGER};
use crate::errors::chain;
use crate::identity::ClusterName;
use crate::kinds::ServedKind;
use crate::observed::discovery::{Kinds, resource};

/// The pause between two probes of a cluster whose watch broke. A watch that recovers reports nothing if nothing
/// changed meanwhile.
const PROBE_EVERY: Duration = Duration::from_secs(2);

/// The pause between two checks for a kind that the cluster does not have. Its definition may be installed at any time.
const ABSENT_KIND_EVERY: Duration = Duration::from_mins(1);

/// Watches one kind. Never returns.
pub(super) async fn watch_kind(shared: Arc<Shared>, client: Client, index: usize) {
    let late = async {
        tokio::time::sleep(ANSWERS_WITHIN).await;
        if !shared.kinds[index].is_essential() {
            shared.is_late(index);
        }
    };
    tokio::join!(keep_watching(&shared, &client, index), late);
}

async fn keep_watching(shared: &Shared, client: &Client, index: usize) {
    let watched = shared.kinds[index].clone();
    let kinds = Kinds::default();
    let mut streaming = true;
    loop {
        match kinds.resolve(client, &watched.kind).await {
            Ok(Some(kind)) => match watch_until_lost(shared, client, index, &kind, streaming).await {
                Lost::Kind => {
                    shared.absent_kind(index);
                    tokio::time::sleep(ABSENT_KIND_EVERY).await;
                }
                Lost::Streaming => streaming = false,
            },
            Ok(None) => {
                shared.absent_kind(index);
                tokio::time::sleep(ABSENT_KIND_EVERY).await;
            }
            Err(error) => {
                shared.failed(index, explain(&shared.cluster, &error, &error));
                tokio::time::sleep(PROBE_EVERY).await;
            }
        }
    }
}

/// Why a watch must be restarted here. A watch recovers from every other error by itself.
enum Lost {
    /// The cluster does not have the kind.
    Kind,
    /// The API server does not stream lists (feature gate `WatchList`).
    Streaming,
}

async fn watch_until_lost(shared: &Shared, client: &Client, index: usize, kind: &ServedKind, streaming: bool) -> Lost {
    let api = Api::<DynamicObject>::all_with(client.clone(), &resource(kind));
    let watched = &shared.kinds[index];
    let mut config = watcher::Config::default().labels(&format!("{MANAGED_BY}={MANAGER}"));
    if let Some(name) = &watched.only {
        config = config.fields(&format!("metadata.name={name}"));
    }
    if streaming {
        config = config.streaming_lists();
    }
    let probe = ListParams {
        label_selector: config.label_selector.clone(),
        field_selector: config.field_selector.clone(),
        // A kind that is not essential is probed with all objects, because a single object that cannot be converted
        // keeps the whole kind from being listed.
        limit: watched.is_essential().then_some(1),
        ..Default::default()
    };
    let mut events = std::pin::pin!(listing_again(api.clone(), config));
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(event)) => shared.event(index, event),
                Some(Err(error)) => match status_of(&error) {
                    Some(404) => return Lost::Kind,
                    Some(422 | 400) if streaming => return Lost::Streaming,
                    // The watch fell behind and lists again. This is not an error.
                    Some(410) => {}
                    _ => shared.failed(index, explain_watch(&shared.cluster, &error)),
                },
                // The stream of a watcher never ends.
                None => return Lost::Kind,
            },
            () = shared.doubt.notified(), if index == 0 => shared.probed(index, &api, &probe).await,
            () = tokio::time::sleep(PROBE_EVERY), if shared.is_failing(index) => {
                shared.probed(index, &api, &probe).await;
            }
        }
    }
}

fn status_of(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::WatchError(status) => Some(status.code),
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => match error {
            kube::Error::Api(status) => Some(status.code),
            _ => None,
        },
        watcher::Error::NoResourceVersion => None,
    }
}

fn explain_watch(cluster: &ClusterName, error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(cause)
        | watcher::Error::WatchStartFailed(cause)
        | watcher::Error::WatchFailed(cause) => explain(cluster, cause, error),
        _ => chain(error),
    }
}

/// Returns the problem with its cause and the remedy.
pub(super) fn explain(cluster: &ClusterName, cause: &kube::Error, whole: &dyn std::error::Error) -> String {
    let remedy = match cause {
        kube::Error::Api(status) if status.code == 401 => {
            format!("the daemon's credential is not accepted: `bursar init --cluster {cluster}` makes a new one")
        }
        kube::Error::Api(status) if status.code == 403 => {
            format!("to give the daemon the rights that this configuration needs: bursar init --cluster {cluster}")
        }
        kube::Error::Api(_) => "see the API server's log".to_owned(),
        _ => "check that the API server runs and can be reached from this host; it is retried automatically".to_owned(),
    };
    format!("{}; {remedy}", chain(whole))
}
