//! Observes clusters and realms. `cluster`, `adopted_watch` and `pod_watch` watch a cluster, and `cache`, which is
//! pure, keeps its inventory. `prometheus`, `realm` and `discovery` send requests.

pub mod adopted_watch;
pub mod cache;
pub mod cluster;
pub mod discovery;
pub mod pod_watch;
pub mod prometheus;
pub mod realm;

use std::time::Duration;

use bursar_watch::{AGAIN, now, paced};
use futures::{Stream, StreamExt as _};
use kube::Api;
use kube::core::Resource;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Config, Error, Event, watcher};
use serde::de::DeserializeOwned;

/// Returns the events of a watch that lists all objects again after an error. `kube::runtime` would continue from the
/// last `resourceVersion`. If etcd was restored from a backup meanwhile, the API server would report no change below
/// that version.
pub(crate) fn listing_again<K>(api: Api<K>, config: Config) -> impl Stream<Item = Result<Event<K>, Error>> + Send
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let begin = move || (watcher(api.clone(), config.clone()).default_backoff().boxed(), now());
    let first = (begin(), AGAIN[0], None);
    futures::stream::unfold((first, begin), async |((mut watch, mut pause, broken), begin)| {
        if let Some(wait) = broken {
            tokio::time::sleep(wait).await;
            watch = begin();
        }
        let event = watch.0.next().await?;
        let mut broken = None;
        if event.as_ref().is_err_and(is_break) {
            let (wait, next) = paced(pause, now().saturating_duration_since(watch.1));
            (broken, pause) = (Some(wait.unwrap_or(Duration::ZERO)), next);
        }
        Some((event, ((watch, pause, broken), begin)))
    })
}

/// Whether the watch would go on from the last `resourceVersion` after this error.
const fn is_break(error: &Error) -> bool {
    match error {
        Error::WatchStartFailed(_) | Error::WatchFailed(_) => true,
        // The API server forgot this version, and the watch lists again by itself.
        Error::WatchError(status) => status.code != 410,
        Error::InitialListFailed(_) | Error::NoResourceVersion => false,
    }
}
