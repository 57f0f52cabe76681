//! A Kubernetes client that pauses before it repeats a watch that the server ended at once. `kube::runtime` waits only
//! after errors, so it would repeat such a watch in a busy loop if the server ends it without an error. The second part
//! is a watch that lists all objects again after an error.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt as _};
use http::{Request, Response, Uri};
use kube::client::{Body, ClientBuilder};
use kube::core::Resource;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Error, Event, watcher};
use kube::{Api, Client, Config};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tower::Service;

/// The first and the longest pause before a watch that failed or was short is repeated. The pause doubles each time.
pub const AGAIN: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(10)];

/// Returns the pause after a watch that lasted for `lasted`, and the pause after the next short watch. The first is
/// `None` if no pause is needed.
#[must_use]
pub fn paced(pause: Duration, lasted: Duration) -> (Option<Duration>, Duration) {
    if lasted >= AGAIN[1] { (None, AGAIN[0]) } else { (Some(pause), (pause * 2).min(AGAIN[1])) }
}

/// Returns the current time, when a watch begins.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "measures how long a watch lasts")]
pub fn now() -> Instant {
    Instant::now()
}

/// Returns the events of a watch that lists all objects again after an error. `kube::runtime` would continue from the
/// last `resourceVersion`. If etcd was restored from a backup meanwhile, the API server would report no change below
/// that version.
pub fn listing_again<K>(api: Api<K>, config: watcher::Config) -> impl Stream<Item = Result<Event<K>, Error>> + Send
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

/// Returns a client for this configuration that paces all its watches.
pub fn client(config: Config) -> kube::Result<Client> {
    let watches = Arc::<Watches>::default();
    let layer = tower::layer::layer_fn(|inner| Paced { inner, watches: Arc::clone(&watches) });
    Ok(ClientBuilder::try_from(config)?.with_layer(&layer).build())
}

/// Watches by the key that [`watched`] returns.
type Watches = Mutex<BTreeMap<String, Watch>>;

/// The last watch with one key.
struct Watch {
    /// When the server began to answer; `None` if it did not. After an error, the caller waits by itself.
    began: Option<Instant>,
    /// The pause after the next short watch.
    pause: Duration,
}

struct Paced<S> {
    inner: S,
    watches: Arc<Watches>,
}

impl<S, B> Service<Request<Body>> for Paced<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let key = watched(request.uri());
        // The request is sent only when this future is polled.
        let answer = self.inner.call(request);
        let Some(key) = key else { return Box::pin(answer) };
        let watches = Arc::clone(&self.watches);
        Box::pin(async move {
            if let Some(pause) = pause(&watches, &key) {
                tokio::time::sleep(pause).await;
            }
            let answer = answer.await;
            let began = answer.as_ref().is_ok_and(|answer| answer.status().is_success()).then(now);
            if let Some(watch) = watches.lock().get_mut(&key) {
                watch.began = began;
            }
            answer
        })
    }
}

/// Returns how long a watch that is requested now has to wait.
fn pause(watches: &Watches, key: &str) -> Option<Duration> {
    let mut watches = watches.lock();
    let watch = watches.entry(key.to_owned()).or_insert(Watch { began: None, pause: AGAIN[0] });
    let lasted = now().saturating_duration_since(watch.began.take()?);
    let (wait, next) = paced(watch.pause, lasted);
    watch.pause = next;
    wait
}

/// Returns a key for the objects that a request watches; `None` if the request is not a watch.
fn watched(uri: &Uri) -> Option<String> {
    let mut parts = uri.query()?.split('&');
    if !parts.clone().any(|part| part == "watch=true") {
        return None;
    }
    let selects = |part: &&str| part.starts_with("labelSelector=") || part.starts_with("fieldSelector=");
    let selected: Vec<&str> = parts.by_ref().filter(selects).collect();
    Some(format!("{}?{}", uri.path(), selected.join("&")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_ends_at_once_is_repeated_after_a_growing_pause() {
        let (mut pause, mut waited) = (AGAIN[0], Duration::ZERO);
        for _ in 0..20 {
            let (wait, next) = paced(pause, Duration::ZERO);
            waited += wait.expect("a short watch is followed by a pause");
            pause = next;
        }
        assert!(waited > Duration::from_mins(2), "{waited:?}");
        assert_eq!(pause, AGAIN[1]);
        assert_eq!(
            paced(pause, Duration::from_secs(290)),
            (None, AGAIN[0]),
            "a watch of usual length is repeated without a pause"
        );
    }

    #[test]
    fn each_watch_has_its_own_pause_whatever_its_resource_version() {
        let watched = |text: &str| watched(&text.parse().expect("the text is a URI"));
        let first = watched("/api/v1/pods?&watch=true&timeoutSeconds=290&labelSelector=a&resourceVersion=7");
        assert_eq!(first.as_deref(), Some("/api/v1/pods?labelSelector=a"));
        assert_eq!(first, watched("/api/v1/pods?watch=true&labelSelector=a&resourceVersion=8"));
        assert!(first != watched("/api/v1/pods?watch=true&labelSelector=b"));
        assert_eq!(watched("/api/v1/pods?labelSelector=a"), None);
    }
}
