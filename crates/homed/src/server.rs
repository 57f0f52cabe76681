//! The root half of `bursar-homed`: checks who sent a request and whether it is admitted, and runs one process for each
//! request.
//!
//! Requests arrive over a Unix socket, one line each. The server reads only version and target, and passes the line to
//! a [`worker`](crate::worker). It never decodes a private key and never touches a home, so a file server that hangs
//! cannot hang the server. If a worker misses the deadline, it is killed. A worker that is stuck in the kernel cannot
//! be killed; until it is gone, it counts among the workers of its prefix, and no other prefix is affected.

mod requests;

use std::future::Future;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bursar_protocol::{MAX_CONNECTIONS, USUAL_KUBECONFIG};
use thiserror::Error;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use self::requests::Server;
use crate::bounds::{Bounds, Prefix, is_plain_relative};

/// The settings of the server. All of them come from its command line.
#[derive(Clone, Debug)]
pub struct HomedSettings {
    /// The limits for requests.
    pub bounds: Bounds,
    /// The only uid that may send requests.
    pub client_uid: u32,
    /// The most time that a worker may take, and before that, the most time that a request waits for a worker.
    pub deadline: Duration,
    /// How long an export that hangs is left unused after its first failure.
    pub backoff: Duration,
    /// The most processor time of one worker, in seconds.
    pub cpu_seconds: u64,
    /// The wall clock, for the names of backups.
    pub clock: fn() -> SystemTime,
}

/// Why the server cannot start.
#[derive(Debug, Error)]
pub enum HomedError {
    /// There is neither a socket from systemd nor a path.
    #[error("no socket: start bursar-homed.socket, or give --socket PATH")]
    NoSocket,
    /// The socket cannot be created or used.
    #[error("cannot use socket {}", path.display())]
    Socket {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A user name that is not in `/etc/passwd`.
    #[error("no user `{name}` in /etc/passwd: create it (sysusers.d/bursar.conf) or give --client-user a uid")]
    NoUser { name: String },
    /// A setting that cannot be right.
    #[error("{0}")]
    Settings(String),
}

/// Returns the uid for a number or for a user name in `/etc/passwd`, where sysusers.d puts the daemon's user.
pub fn client_uid(name_or_uid: &str) -> Result<u32, HomedError> {
    if let Ok(uid) = name_or_uid.parse() {
        return Ok(uid);
    }
    std::fs::read_to_string("/etc/passwd")
        .ok()
        .and_then(|text| {
            text.lines().find_map(|line| {
                let mut fields = line.split(':');
                (fields.next() == Some(name_or_uid)).then(|| fields.nth(1)?.parse().ok()).flatten()
            })
        })
        .ok_or_else(|| HomedError::NoUser { name: name_or_uid.to_owned() })
}

/// Returns the socket from systemd or, for tests and the demo, a new one at `path`. If no process listens on an old
/// socket at `path`, it is replaced.
pub fn listener(path: Option<&Path>) -> Result<StdListener, HomedError> {
    let Some(path) = path else {
        let failed = |source| HomedError::Socket { path: PathBuf::from("from systemd"), source };
        let handed = listenfd::ListenFd::from_env().take_unix_listener(0).map_err(failed)?;
        let listener = handed.ok_or(HomedError::NoSocket)?;
        // The socket from systemd stays open across exec, but a user's process must not get it.
        let for_us_only = rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::CLOEXEC);
        for_us_only.map_err(|errno| failed(errno.into()))?;
        return Ok(listener);
    };
    let failed = |source| HomedError::Socket { path: path.to_owned(), source };
    // A connection to a regular file is refused too, but only a socket may be removed.
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let is_refused = || StdStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    if is_socket && is_refused() {
        std::fs::remove_file(path).map_err(failed)?;
    }
    let listener = StdListener::bind(path).map_err(failed)?;
    // Every user may connect. The peer credentials decide who may send requests.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(path, mode).map_err(failed)?;
    Ok(listener)
}

/// Serves requests until `shutdown`, then waits for the running ones, at most for the deadline. `settings` must have
/// passed `check`.
pub async fn serve(
    listener: StdListener,
    settings: HomedSettings,
    shutdown: impl Future<Output = ()>,
) -> Result<(), HomedError> {
    let failed = |source| HomedError::Socket { path: PathBuf::from("listening"), source };
    listener.set_nonblocking(true).map_err(failed)?;
    let listener = UnixListener::from_std(listener).map_err(failed)?;
    let server = Arc::new(Server::new(settings));
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut running = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = running.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let permit = Arc::clone(&connections).try_acquire_owned();
                    running.spawn(Arc::clone(&server).connection(stream, permit.ok(), stopped.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "accept");
                    // The usual cause is a lack of file descriptors. Without a pause, the loop would use the whole
                    // processor.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
    drop(stop);
    let _ =
        tokio::time::timeout(server.settings.deadline, async { while running.join_next().await.is_some() {} }).await;
    Ok(())
}

/// Checks that requests can be served with these settings.
pub(crate) fn check(settings: &HomedSettings) -> Result<(), HomedError> {
    if settings.bounds.prefixes.is_empty() {
        return Err(HomedError::Settings("no prefix: without --prefix PATH no home may be touched".into()));
    }
    if settings.deadline.is_zero() {
        return Err(HomedError::Settings("deadline 0: no request could be answered in time".into()));
    }
    for Prefix { path, .. } in &settings.bounds.prefixes {
        let is_plain =
            path.is_absolute() && path.components().skip(1).all(|c| matches!(c, std::path::Component::Normal(_)));
        if !is_plain || path == Path::new("/") {
            return Err(HomedError::Settings(format!(
                "prefix `{}` must be an absolute path other than `/`, without `..`",
                path.display()
            )));
        }
    }
    if let Some(path) = settings.bounds.kubeconfigs.iter().find(|path| !is_plain_relative(path)) {
        return Err(HomedError::Settings(format!(
            "kubeconfig `{}` must be a path relative to a home, without `..`; for example {USUAL_KUBECONFIG}",
            path.display()
        )));
    }
    Ok(())
}
