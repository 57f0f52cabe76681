//! Accepts connections on the daemon's sockets, identifies the callers, and limits the number of connections and the
//! time that a request may take to arrive. Every user on the host may connect to the control socket, so that users
//! without rights get the reason. Their connections must not keep administrators out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::DefaultBodyLimit;
use axum::serve::Listener;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::caller::{Caller, Peer};

/// The number of connections that all callers with the right to read may have open together.
const READER_CONNECTIONS: usize = 64;
/// The number of connections that all other callers may have open together.
const OTHER_CONNECTIONS: usize = 32;
/// The number of connections that one of these other callers may have open, so that one person cannot keep everybody
/// else out.
const OTHER_CONNECTIONS_OF_ONE: usize = 8;
/// How long a client may take to send the headers of a request.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// How long the connection of a caller without the right to read may stay open.
const OTHERS_STAY: Duration = Duration::from_secs(10);
/// The largest request body of callers with the right to read. An order with a long reason has a few hundred bytes, and
/// there may be one for every account.
const BODY_LIMIT: usize = 8 << 20;
/// The largest request body of all other callers, who ask about one account.
const OTHERS_BODY_LIMIT: usize = 16 << 10;
/// The number of accepted connections whose callers are being identified at a time. The lookup of a caller's groups may
/// ask a directory, and take long.
const UNIDENTIFIED_CONNECTIONS: usize = 128;
/// The number of such connections of one user.
const UNIDENTIFIED_CONNECTIONS_OF_ONE: usize = 16;
/// How long root and the daemon's own user wait for their names, which appear only in the history.
const NAMED_WITHIN: Duration = Duration::from_secs(1);
/// The number of these lookups that may hang at once, because each occupies a thread.
const NAME_LOOKUPS: usize = 16;

/// Serves `routes` on every connection until `stop`, then finishes the open requests. Each request has the [`Caller`]
/// as an extension. A TCP connection has no peer, so its caller is `None`.
pub(super) async fn serve<L: Listener>(
    mut listener: L,
    routes: Router,
    peer_of: impl Fn(&L::Io) -> Option<Peer>,
    identify: impl Fn(Peer) -> Caller + Clone + Send + 'static,
    stop: CancellationToken,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN);
    let limits = Limits::default();
    let open = GracefulShutdown::new();
    loop {
        let (stream, _) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let (http, routes, limits, watcher) = (http.clone(), routes.clone(), limits.clone(), open.watcher());
        let (peer, identify) = (peer_of(&stream), identify.clone());
        tokio::spawn(async move {
            // If too many connections are open, this one is closed at once. The client notices that.
            let Some((caller, _place)) = limits.admit(peer, identify).await else { return };
            let is_other = peer.is_some() && !caller.as_ref().is_some_and(|caller| caller.may_read);
            let body = DefaultBodyLimit::max(if is_other { OTHERS_BODY_LIMIT } else { BODY_LIMIT });
            let service = TowerToHyperService::new(routes.layer(Extension(caller)).layer(body));
            let connection = watcher.watch(http.serve_connection(TokioIo::new(stream), service));
            // An error of the connection concerns only its client.
            if is_other {
                let _ = timeout(OTHERS_STAY, connection).await;
            } else {
                let _ = connection.await;
            }
        });
    }
    open.shutdown().await;
}

#[derive(Clone)]
struct Limits {
    unidentified: Places,
    names: Places,
    readers: Places,
    others: Places,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            unidentified: Places::new(UNIDENTIFIED_CONNECTIONS, UNIDENTIFIED_CONNECTIONS_OF_ONE),
            names: Places::new(NAME_LOOKUPS, NAME_LOOKUPS),
            readers: Places::new(READER_CONNECTIONS, READER_CONNECTIONS),
            others: Places::new(OTHER_CONNECTIONS, OTHER_CONNECTIONS_OF_ONE),
        }
    }
}

impl Limits {
    /// Identifies the caller and takes a place for the connection; `None` if no place is free. Root and the daemon's
    /// own user need no place and no answer of the name services: they must be able to suspend people while everybody
    /// else waits.
    async fn admit(
        &self,
        peer: Option<Peer>,
        identify: impl FnOnce(Peer) -> Caller + Send + 'static,
    ) -> Option<(Option<Caller>, Option<ConnectionPermit>)> {
        let Some(peer) = peer else { return Some((None, Some(self.readers.take(u32::MAX)?))) };
        if peer.is_trusted() {
            let named = match self.names.take(peer.uid) {
                Some(place) => {
                    let lookup = spawn_blocking(move || (identify(peer), place).0);
                    timeout(NAMED_WITHIN, lookup).await.ok().and_then(Result::ok)
                }
                None => None,
            };
            return Some((Some(named.unwrap_or_else(|| Caller::unnamed(peer))), None));
        }
        let waits = self.unidentified.take(peer.uid)?;
        let caller = spawn_blocking(move || identify(peer)).await.ok()?;
        drop(waits);
        let places = if caller.may_read { &self.readers } else { &self.others };
        let place = places.take(peer.uid)?;
        Some((Some(caller), Some(place)))
    }
}

/// Places, of which one user may take only a part.
#[derive(Clone)]
struct Places {
    all: usize,
    of_one: usize,
    /// The places that each user has taken.
    taken: Arc<Mutex<BTreeMap<u32, usize>>>,
}

impl Places {
    fn new(all: usize, of_one: usize) -> Self {
        Self { all, of_one, taken: Arc::default() }
    }

    fn take(&self, uid: u32) -> Option<ConnectionPermit> {
        let mut taken = self.taken.lock();
        let own = taken.get(&uid).copied().unwrap_or_default();
        if own >= self.of_one || taken.values().sum::<usize>() >= self.all {
            return None;
        }
        taken.insert(uid, own + 1);
        drop(taken);
        Some(ConnectionPermit { places: self.clone(), uid })
    }
}

/// A place that is free again when this value is dropped.
struct ConnectionPermit {
    places: Places,
    uid: u32,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        match taken.get_mut(&self.uid) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(taken.remove(&self.uid)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;

    use axum::body::Bytes;
    use axum::routing::{get, post};
    use nix::unistd::Uid;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{UnixListener, UnixStream};

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(30);
    /// The first uid of the users without rights.
    const STRANGER: u32 = 61_000;

    struct Socket(tempfile::TempDir);

    impl Socket {
        /// Serves connections. The first ones come from the uids `others`, and all later ones from the uid of the test
        /// itself.
        fn served(others: Vec<u32>, identify: impl Fn(Peer) -> Caller + Clone + Send + 'static) -> Self {
            let folder = tempfile::tempdir().expect("a temporary folder is created");
            let listener = UnixListener::bind(folder.path().join("socket")).expect("the socket is bound");
            let accepted = AtomicU32::new(0);
            let peer_of = move |_: &UnixStream| {
                let at = accepted.fetch_add(1, Ordering::SeqCst) as usize;
                let uid = others.get(at).copied().unwrap_or_else(|| Uid::effective().as_raw());
                Some(Peer { uid, pid: None })
            };
            let actor = |Extension(caller): Extension<Option<Caller>>| async move {
                caller.map(|caller| caller.actor).unwrap_or_default()
            };
            let routes = Router::new().route("/", get(actor)).route("/body", post(|_: Bytes| async { "taken" }));
            tokio::spawn(async move { serve(listener, routes, peer_of, identify, CancellationToken::new()).await });
            Self(folder)
        }

        async fn connect(&self) -> UnixStream {
            UnixStream::connect(self.0.path().join("socket")).await.expect("the socket is served")
        }
    }

    /// Sends a request and returns the beginning of the answer; an empty text if the connection was closed.
    async fn answer(stream: &mut UnixStream, request: &str) -> String {
        let mut head = [0; 1024];
        let _ = stream.write_all(request.as_bytes()).await;
        let read =
            timeout(DEADLINE, stream.read(&mut head)).await.expect("the answer comes in time").unwrap_or_default();
        String::from_utf8_lossy(&head[..read]).into_owned()
    }

    const GET: &str = "GET / HTTP/1.1\r\nhost: bursard\r\n\r\n";

    #[tokio::test]
    async fn our_own_user_does_not_wait_for_the_lookups_of_others_or_its_own() {
        let (release, hangs) = mpsc::channel::<()>();
        let hangs = Arc::new(Mutex::new(hangs));
        let identify = move |peer| {
            // Ends when the test drops `release`.
            let _ = hangs.lock().recv();
            Caller::unnamed(peer)
        };
        let others: Vec<u32> = (0..300).map(|at| STRANGER + at % 20).collect();
        let count = others.len();
        let socket = Socket::served(others, identify);
        let mut strangers = Vec::new();
        for _ in 0..count {
            strangers.push(socket.connect().await);
        }
        let found = answer(&mut socket.connect().await, GET).await;
        assert!(found.starts_with("HTTP/1.1 200") && found.ends_with(&Uid::effective().to_string()), "{found}");
        drop(release);
    }

    #[tokio::test]
    async fn one_stranger_does_not_take_all_places_and_sends_no_large_bodies() {
        let others = [vec![STRANGER; OTHER_CONNECTIONS_OF_ONE + 2], vec![STRANGER + 1]].concat();
        let socket = Socket::served(others, Caller::unnamed);
        let mut open = Vec::new();
        for _ in 0..OTHER_CONNECTIONS_OF_ONE + 2 {
            let mut stream = socket.connect().await;
            let is_served = !answer(&mut stream, GET).await.is_empty();
            open.push((is_served, stream));
        }
        assert_eq!(open.iter().filter(|(is_served, _)| *is_served).count(), OTHER_CONNECTIONS_OF_ONE);
        let post = |length: usize| {
            format!("POST /body HTTP/1.1\r\nhost: bursard\r\ncontent-length: {length}\r\n\r\n{}", "x".repeat(length))
        };
        let mut other = socket.connect().await;
        assert!(answer(&mut other, &post(100)).await.starts_with("HTTP/1.1 200"));
        assert!(answer(&mut other, &post(OTHERS_BODY_LIMIT + 1)).await.starts_with("HTTP/1.1 413"));
        let mut own = socket.connect().await;
        assert!(answer(&mut own, &post(OTHERS_BODY_LIMIT + 1)).await.starts_with("HTTP/1.1 200"));
    }
}
