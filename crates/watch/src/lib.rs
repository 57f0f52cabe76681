//! A client that waits before it begins a watch again which the server ended at once. `kube::runtime` waits after errors
//! only, so a server that ends each watch without an error would be asked without end.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::{Request, Response, Uri};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::Service;

/// Between two tries of a watch that broke or was short, doubled up to the last.
pub const AGAIN: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(10)];

/// How long to wait after a watch that lasted so long, and after the next one that is short.
#[must_use]
pub fn paced(pause: Duration, lasted: Duration) -> (Option<Duration>, Duration) {
    if lasted >= AGAIN[1] { (None, AGAIN[0]) } else { (Some(pause), (pause * 2).min(AGAIN[1])) }
}

/// When a watch begins.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "measures how long a watch lasts")]
pub fn now() -> Instant {
    Instant::now()
}

/// A client of this configuration, all watches of which are paced.
///
/// # Errors
/// The configuration cannot be used.
pub fn client(config: Config) -> kube::Result<Client> {
    let watches = Arc::<Watches>::default();
    let layer = tower::layer::layer_fn(|inner| Paced { inner, watches: Arc::clone(&watches) });
    Ok(ClientBuilder::try_from(config)?.with_layer(&layer).build())
}

/// By what is watched.
type Watches = Mutex<BTreeMap<String, Watch>>;

/// The last watch of something.
struct Watch {
    /// When the server began to answer it; `None`: it did not, and the caller waits after an error.
    began: Option<Instant>,
    /// The pause after the next one that is short.
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
        // Nothing is sent before it is polled.
        let answer = self.inner.call(request);
        let Some(key) = key else { return Box::pin(answer) };
        let watches = Arc::clone(&self.watches);
        Box::pin(async move {
            if let Some(pause) = pause(&watches, &key) {
                tokio::time::sleep(pause).await;
            }
            let answer = answer.await;
            let began = answer.as_ref().is_ok_and(|answer| answer.status().is_success()).then(now);
            if let Some(watch) = watches.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&key) {
                watch.began = began;
            }
            answer
        })
    }
}

/// How long a watch is to wait that is asked for now.
fn pause(watches: &Watches, key: &str) -> Option<Duration> {
    let mut watches = watches.lock().unwrap_or_else(PoisonError::into_inner);
    let watch = watches.entry(key.to_owned()).or_insert(Watch { began: None, pause: AGAIN[0] });
    let lasted = now().saturating_duration_since(watch.began.take()?);
    let (wait, next) = paced(watch.pause, lasted);
    watch.pause = next;
    wait
}

/// What a request watches; `None`: it is no watch.
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
    fn a_watch_that_ends_at_once_is_not_begun_again_at_once() {
        let (mut pause, mut waited) = (AGAIN[0], Duration::ZERO);
        for _ in 0..20 {
            let (wait, next) = paced(pause, Duration::ZERO);
            waited += wait.expect("a pause");
            pause = next;
        }
        assert!(waited > Duration::from_mins(2), "{waited:?}");
        assert_eq!(pause, AGAIN[1]);
        assert_eq!(paced(pause, Duration::from_secs(290)), (None, AGAIN[0]), "as the server ends it every time");
    }

    #[test]
    fn each_watch_has_a_pace_of_its_own_from_whatever_version_it_begins() {
        let watched = |text: &str| watched(&text.parse().expect("a URI"));
        let first = watched("/api/v1/pods?&watch=true&timeoutSeconds=290&labelSelector=a&resourceVersion=7");
        assert_eq!(first.as_deref(), Some("/api/v1/pods?labelSelector=a"));
        assert_eq!(first, watched("/api/v1/pods?watch=true&labelSelector=a&resourceVersion=8"));
        assert!(first != watched("/api/v1/pods?watch=true&labelSelector=b"));
        assert_eq!(watched("/api/v1/pods?labelSelector=a"), None);
    }
}
