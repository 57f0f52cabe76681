//! The server of `bursar-webhook`: accepts TLS connections, passes reviews to [`ReviewHandler`], and uses new
//! certificates and rules when their files change. Health and metrics are on a second port, without TLS. The server
//! writes nothing anywhere.

pub mod approver;
pub mod clients;
pub mod files;
pub mod handler;
pub mod metrics;
mod room;
mod seats;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bursar_core::errors::chain;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use parking_lot::RwLock;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use self::files::{Changed, Files};
use self::handler::{HttpResponse, InForce, ReviewHandler};
use self::seats::{Hall, Seat};
use crate::index::{Index, Trust};

/// The time between two reads of the files.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The deadline of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// The time after which a silent HTTP/2 client gets a ping.
const PING: Duration = Duration::from_secs(30);
/// The deadline of the answer to a ping.
const PONG: Duration = Duration::from_secs(10);
/// The most concurrent reviews on one HTTP/2 connection.
const STREAMS: u32 = 250;
/// The most bytes that a connection may send before the server reads them, so that 1,024 connections take at most 64
/// MiB. A body is read only after memory was reserved for it.
const UNREAD: u32 = 64 << 10;
/// The time that open reviews have to end at a stop. It is longer than a review may take.
const GRACE: Duration = Duration::from_secs(15);
/// The time after which an API server that accepts no connection counts as down.
const CONNECT: Duration = Duration::from_secs(5);

/// An error that prevents the program from starting.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A file of `--dir` cannot be read or is wrong.
    #[error("{dir}: {why}; `bursar webhook install` makes these files", dir = dir.display())]
    Files { dir: PathBuf, why: String },
    /// A file of the approver's `--dir` cannot be read or is wrong.
    #[error("{dir}: {why}; `bursar approver install` makes these files", dir = dir.display())]
    ApproverFiles { dir: PathBuf, why: String },
    /// The program has no valid access to the API server.
    #[error(
        "cannot set up access to the API server: {0}; outside a cluster, --dir needs a kubeconfig, which `bursar webhook install` makes"
    )]
    ApiServer(String),
    /// The program cannot listen on an address.
    #[error("cannot listen on {address}; check that the address is local and that no other program uses the port")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
}

/// Serves until `stop`, and then finishes the open reviews.
///
/// # Errors
/// Fails only at the start. Later errors show in `/readyz` and `/metrics`.
pub async fn run(
    dir: &Path,
    listen: SocketAddr,
    health: SocketAddr,
    clock: fn() -> Timestamp,
    stop: CancellationToken,
) -> Result<(), ServerError> {
    let files = Files::open(dir).map_err(|why| ServerError::Files { dir: dir.to_owned(), why })?;
    let client = client(files.kubeconfig()).await.map_err(ServerError::ApiServer)?;
    let bind =
        async |address| TcpListener::bind(address).await.map_err(|source| ServerError::Listen { address, source });
    let (reviews, probes) = (bind(listen).await?, bind(health).await?);
    let index = Arc::new(Index::default());
    let handler = Arc::new(ReviewHandler::new(in_force(&files), Arc::clone(&index), clock));
    let tls = Arc::new(RwLock::new(files.config()));
    let watch = tokio::spawn(Arc::clone(&index).watch(client, trust(&files))).abort_handle();
    let reload = tokio::spawn(keep_up(files, Arc::clone(&handler), Arc::clone(&tls), watch));
    let asked = Arc::clone(&handler);
    let probing = tokio::spawn(serve_health(probes, move |request| asked.health(request)));
    tracing::info!(%listen, %health, "serving");
    serve(reviews, tls, handler, &stop).await;
    reload.abort();
    probing.abort();
    Ok(())
}

fn in_force(files: &Files) -> InForce {
    InForce {
        rules: files.rules(),
        clients: files.clients(),
        not_after: files.certificate().not_after,
        wrong: files.wrong(),
    }
}

fn trust(files: &Files) -> Trust {
    Trust { cluster: files.rules().cluster.clone(), public_keys: files.keys() }
}

/// Watches the files, and applies their changes.
async fn keep_up(
    mut files: Files,
    handler: Arc<ReviewHandler>,
    tls: Arc<RwLock<Arc<ServerConfig>>>,
    mut watch: AbortHandle,
) {
    let mut wrong = files.wrong();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Changed { answers, index } = files.look();
        if answers {
            *tls.write() = files.config();
        }
        if answers || wrong != files.wrong() {
            wrong = files.wrong();
            handler.put_in_force(in_force(&files));
        }
        if index {
            match client(files.kubeconfig()).await {
                Ok(client) => {
                    watch.abort();
                    watch = tokio::spawn(Arc::clone(&handler.index).watch(client, trust(&files))).abort_handle();
                }
                Err(error) => tracing::error!(error, "the new kubeconfig cannot be used; the old one stays in use"),
            }
        }
    }
}

async fn client(kubeconfig: Option<Kubeconfig>) -> Result<Client, String> {
    let mut config = match kubeconfig {
        Some(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .map_err(|error| chain(&error))?,
        None => Config::incluster().map_err(|error| chain(&error))?,
    };
    // The index retries by itself, and has deadlines of its own.
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT);
    bursar_watch::client(config).map_err(|error| chain(&error))
}

async fn serve(
    listener: TcpListener,
    tls: Arc<RwLock<Arc<ServerConfig>>>,
    handler: Arc<ReviewHandler>,
    stop: &CancellationToken,
) {
    let (open, hall) = (GracefulShutdown::new(), Arc::new(Hall::default()));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&listener, &hall) => accepted,
        };
        let Some((stream, address, seat)) = accepted else { continue };
        let config = Arc::clone(&tls.read());
        let (handler, watcher) = (Arc::clone(&handler), open.watcher());
        tokio::spawn(async move {
            tokio::select! {
                () = connection((stream, address), &seat, config, handler, watcher) => {}
                () = seat.ended() => {}
            }
        });
    }
    drop(listener);
    // A connection that is still open after this time hangs, and is closed.
    let _ = tokio::time::timeout(GRACE, open.shutdown()).await;
}

/// Accepts the next connection. If there is no seat for it, closes it and returns `None`.
async fn accept(listener: &TcpListener, hall: &Arc<Hall>) -> Option<(TcpStream, IpAddr, Arc<Seat>)> {
    match listener.accept().await {
        Ok((stream, peer)) => {
            let seat = hall.seat(peer.ip())?;
            // Answers are small, and a client waits for each.
            let _ = stream.set_nodelay(true);
            Some((stream, peer.ip(), Arc::new(seat)))
        }
        Err(error) => {
            // The usual cause is too many open files. Some of the open connections will end, so the loop goes on.
            tracing::warn!(%error, "a connection was not accepted");
            tokio::time::sleep(Duration::from_millis(100)).await;
            None
        }
    }
}

async fn connection(
    (stream, address): (TcpStream, IpAddr),
    seat: &Arc<Seat>,
    tls: Arc<ServerConfig>,
    handler: Arc<ReviewHandler>,
    watcher: Watcher,
) {
    let stream = match tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(tls).accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return handler.no_handshake(address, &error),
        Err(_) => return,
    };
    let peer = handler.peer(address, stream.get_ref().1.peer_certificates());
    let seat = Arc::clone(seat);
    let service = service_fn(move |request| {
        let (handler, peer, open) = (Arc::clone(&handler), Arc::clone(&peer), seat.request());
        async move { Ok::<_, Infallible>(handler.review(request, &peer, || open.begin()).await) }
    });
    let http = builder();
    let connection = http.serve_connection(TokioIo::new(stream), service).into_owned();
    // An error ends only this client's connection.
    let _ = watcher.watch(connection).await;
}

/// Configures HTTP without timeouts for silent connections, because their [`Seat`] has these.
fn builder() -> auto::Builder<TokioExecutor> {
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(UNREAD as usize);
    http.http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PONG)
        .initial_stream_window_size(UNREAD)
        .initial_connection_window_size(UNREAD)
        .max_concurrent_streams(STREAMS);
    http
}

/// Answers probes and scrapes.
async fn serve_health<F>(listener: TcpListener, answer: F)
where
    F: Fn(&Request<Incoming>) -> HttpResponse + Send + Sync + 'static,
{
    let (hall, answer) = (Arc::new(Hall::default()), Arc::new(answer));
    loop {
        let Some((stream, _, seat)) = accept(&listener, &hall).await else { continue };
        let answer = Arc::clone(&answer);
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let (_open, answer) = (seat.request(), answer(&request));
                async move { Ok::<_, Infallible>(answer) }
            });
            let http = builder();
            tokio::select! {
                _ = http.serve_connection(TokioIo::new(stream), service) => {}
                () = seat.ended() => {}
            }
        });
    }
}
