//! Accepts connections on the daemon's sockets, identifies the callers, and limits the number of connections and the
//! time that a request may take to arrive. Every user on the host may connect to the control socket, so that they read
//! why they have no rights. They must not be able to keep administrators out by connecting.

use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::unix::UCred;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::caller::Caller;

/// The number of connections that all callers with the right to read may have open together.
const READER_CONNECTIONS: usize = 64;
/// The same for all other callers.
const OTHER_CONNECTIONS: usize = 16;
/// How long a client may take to send the headers of a request.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// How long the connection of a caller without the right to read may stay open.
const OTHERS_STAY: Duration = Duration::from_secs(10);
/// The number of accepted connections whose caller is not identified yet. The lookup of groups may ask a directory, and
/// take long.
const UNIDENTIFIED_CONNECTIONS: usize = 64;

/// Serves `routes` on every connection until `stop`, then finishes the open requests. Each request has the [`Caller`]
/// as an extension. A TCP connection has no credentials, so its caller is `None`.
pub(super) async fn serve<L: Listener>(
    mut listener: L,
    routes: Router,
    credentials: fn(&L::Io) -> Option<UCred>,
    stop: CancellationToken,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN);
    let unidentified = Arc::new(Semaphore::new(UNIDENTIFIED_CONNECTIONS));
    let limits = [READER_CONNECTIONS, OTHER_CONNECTIONS].map(|count| Arc::new(Semaphore::new(count)));
    let open = GracefulShutdown::new();
    loop {
        let (stream, permit) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&mut listener, &unidentified) => accepted,
        };
        let (http, routes, limits, watcher) = (http.clone(), routes.clone(), limits.clone(), open.watcher());
        let peer = credentials(&stream);
        tokio::spawn(async move {
            let caller = match peer {
                Some(peer) => tokio::task::spawn_blocking(move || Caller::of(&peer)).await.ok(),
                None => None,
            };
            drop(permit);
            let is_other = peer.is_some() && !caller.as_ref().is_some_and(|caller| caller.may_read);
            // If too many connections are open, this one is closed at once. The client notices that.
            let Ok(_permit) = Arc::clone(&limits[usize::from(is_other)]).try_acquire_owned() else { return };
            let service = TowerToHyperService::new(routes.layer(Extension(caller)));
            let connection = watcher.watch(http.serve_connection(TokioIo::new(stream), service));
            // An error of the connection concerns only its client.
            if is_other {
                let _ = tokio::time::timeout(OTHERS_STAY, connection).await;
            } else {
                let _ = connection.await;
            }
        });
    }
    open.shutdown().await;
}

async fn accept<L: Listener>(
    listener: &mut L,
    unidentified: &Arc<Semaphore>,
) -> (L::Io, Option<tokio::sync::OwnedSemaphorePermit>) {
    let permit = Arc::clone(unidentified).acquire_owned().await.ok();
    (listener.accept().await.0, permit)
}
