//! Sends the events that reach the loop from outside it: drift, changes in directories, signals and requests.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::DaemonError;
use super::inbox::Event;
use crate::control::server::{self, Request};
use crate::settings::Settings;

/// Drift comes in bursts: if somebody deletes a namespace, eleven objects disappear. One cycle repairs them together.
const DRIFT_SETTLES: Duration = Duration::from_millis(500);

pub(super) async fn drift(
    changed: Arc<tokio::sync::Notify>,
    urgent: Arc<tokio::sync::Notify>,
    sender: mpsc::Sender<Event>,
) {
    loop {
        tokio::select! {
            () = urgent.notified() => {}
            () = changed.notified() => tokio::select! {
                () = urgent.notified() => {}
                () = tokio::time::sleep(DRIFT_SETTLES) => {}
            },
        }
        if sender.send(Event::Drift).await.is_err() {
            return;
        }
    }
}

/// Forwards changes of directories, which are already debounced.
pub(super) async fn changes(directory_changed: Arc<tokio::sync::Notify>, sender: mpsc::Sender<Event>) {
    loop {
        directory_changed.notified().await;
        if sender.send(Event::Change).await.is_err() {
            return;
        }
    }
}

/// Takes over the signals. Must be called before anybody can see that the daemon runs, because a SIGHUP before that
/// would kill the daemon.
pub(super) fn take_signals(sender: mpsc::Sender<Event>) -> Result<tokio::task::JoinHandle<()>, DaemonError> {
    let take = |kind| signal(kind).map_err(|source| DaemonError::Socket { what: "signals".to_owned(), source });
    let mut terminate = take(SignalKind::terminate())?;
    let mut interrupt = take(SignalKind::interrupt())?;
    let mut hangup = take(SignalKind::hangup())?;
    Ok(tokio::spawn(async move {
        loop {
            let event = tokio::select! {
                _ = terminate.recv() => Event::Stop,
                _ = interrupt.recv() => Event::Stop,
                _ = hangup.recv() => Event::Reload,
            };
            if sender.send(event).await.is_err() {
                return;
            }
        }
    }))
}

pub(super) async fn listen(
    settings: &Settings,
    request_sender: mpsc::Sender<Request>,
    stop: &CancellationToken,
) -> Result<Vec<tokio::task::JoinHandle<()>>, DaemonError> {
    let socket = |what: String| move |source| DaemonError::Socket { what, source };
    let path = &settings.control_socket;
    let what = match path.parent() {
        Some(folder) if !folder.exists() => {
            format!("{}: its folder does not exist; `systemctl start bursard` creates it", path.display())
        }
        _ => path.display().to_string(),
    };
    let control = server::bind(path).map_err(socket(what))?;
    let mut tasks = vec![tokio::spawn(server::serve(control, request_sender.clone(), stop.clone()))];
    if let Some(address) = settings.metrics {
        let listener =
            tokio::net::TcpListener::bind(address).await.map_err(socket(format!("metrics.listen {address}")))?;
        tasks.push(tokio::spawn(server::serve_metrics(listener, request_sender, stop.clone())));
    }
    Ok(tasks)
}
