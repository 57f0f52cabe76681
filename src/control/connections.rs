//! Connections of the daemon's sockets: who is at the other end, how many there may be, and how long one may take to say
//! what it wants. Everybody on the host can connect to the control socket, so that they read why they may not do
//! something; they must not be able to keep an administrator out by doing so.

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

/// Connections of those who may read, at a time.
const SEATS: usize = 64;
/// Connections of everybody else.
const SEATS_OF_STRANGERS: usize = 16;
/// Until a request's headers are there.
const HEADERS: Duration = Duration::from_secs(10);
/// Until a stranger has been refused.
const STRANGER: Duration = Duration::from_secs(10);
/// Connections that are accepted and of which it is not yet known whose they are: looking up groups may ask a directory.
const UNKNOWN: usize = 64;

/// Serves `routes` on every connection, with the [`Caller`] behind it as an extension, until `stop`; then finishes the
/// requests that are open. Without credentials (TCP) nobody is told apart.
pub(super) async fn serve<L: Listener>(
    mut listener: L,
    routes: Router,
    credentials: fn(&L::Io) -> Option<UCred>,
    stop: CancellationToken,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS);
    let hall = Arc::new(Semaphore::new(UNKNOWN));
    let rooms = [SEATS, SEATS_OF_STRANGERS].map(|seats| Arc::new(Semaphore::new(seats)));
    let open = GracefulShutdown::new();
    loop {
        let (stream, place) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&mut listener, &hall) => accepted,
        };
        let (http, routes, rooms, watcher) = (http.clone(), routes.clone(), rooms.clone(), open.watcher());
        let peer = credentials(&stream);
        tokio::spawn(async move {
            let caller = match peer {
                Some(peer) => tokio::task::spawn_blocking(move || Caller::of(&peer)).await.ok(),
                None => None,
            };
            drop(place);
            let stranger = peer.is_some() && !caller.as_ref().is_some_and(|caller| caller.may_read);
            // Full: closed at once, which is an answer too.
            let Ok(_seat) = Arc::clone(&rooms[usize::from(stranger)]).try_acquire_owned() else { return };
            let service = TowerToHyperService::new(routes.layer(Extension(caller)));
            let connection = watcher.watch(http.serve_connection(TokioIo::new(stream), service));
            // A peer that breaks off harms itself only.
            if stranger {
                let _ = tokio::time::timeout(STRANGER, connection).await;
            } else {
                let _ = connection.await;
            }
        });
    }
    open.shutdown().await;
}

async fn accept<L: Listener>(
    listener: &mut L,
    hall: &Arc<Semaphore>,
) -> (L::Io, Option<tokio::sync::OwnedSemaphorePermit>) {
    let place = Arc::clone(hall).acquire_owned().await.ok();
    (listener.accept().await.0, place)
}
