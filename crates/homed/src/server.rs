//! The root half of `bursar-homed`: who asks, is it admitted, and one process for each request.
//!
//! Requests come in over a Unix socket, one line each, and are handed on to a [`worker`](crate::worker) unread apart
//! from their target: the server never decodes a private key and never touches a home, so a file server that hangs
//! cannot hang it. A worker that is late is killed; one that cannot be killed (stuck in the kernel) keeps its place
//! among the workers of its prefix until it is gone, and no other prefix's.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bursar_protocol::{
    HomeError, HomeTarget, MAX_ANSWER_BYTES, MAX_CONCURRENT, MAX_CONNECTIONS, MAX_REQUEST_BYTES, PROTOCOL_VERSION,
    Response, USUAL_KUBECONFIG, USUAL_REQUEST_BYTES,
};
use serde::Deserialize;
use serde::de::IgnoredAny;
use thiserror::Error;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use zeroize::Zeroizing;

use crate::bounds::{Bounds, Prefix, is_plain_relative};
use crate::breaker::{Breaker, BreakerSettings};
use crate::spawner::{Spawner, Worker};
use crate::worker::{Order, place};

/// The part of the deadline for which a worker waits for other programs: it says so itself, and an export is not taken
/// for late.
const PATIENCE: f64 = 0.6;

/// How the server is to run. All of it comes from the command line of the unit.
#[derive(Clone, Debug)]
pub struct HomedSettings {
    /// What requests are held against.
    pub bounds: Bounds,
    /// The only uid that may ask.
    pub client_uid: u32,
    /// How long a worker may take, and before that how long to wait for a free one [10 s].
    pub deadline: Duration,
    /// When to stop asking an export that hangs.
    pub breaker: BreakerSettings,
    /// Processor time of one worker, in seconds [5].
    pub cpu_seconds: u64,
    /// The wall clock, for the names of backups.
    pub clock: fn() -> SystemTime,
}

impl HomedSettings {
    /// The defaults, for these bounds and this client.
    #[must_use]
    pub fn new(bounds: Bounds, client_uid: u32, clock: fn() -> SystemTime) -> Self {
        Self {
            bounds,
            client_uid,
            deadline: Duration::from_secs(10),
            breaker: BreakerSettings::default(),
            cpu_seconds: 5,
            clock,
        }
    }
}

/// Why the server cannot start.
#[derive(Debug, Error)]
pub enum HomedError {
    /// Neither a socket from systemd nor a path.
    #[error("no socket: start bursar-homed.socket, or give --socket PATH")]
    NoSocket,
    /// The socket cannot be made or used.
    #[error("cannot use socket {}", path.display())]
    Socket {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A user name that is not in `/etc/passwd`.
    #[error("no user `{name}` in /etc/passwd: create it (sysusers.d/bursar.conf) or give --client-user a uid")]
    NoUser {
        /// The name.
        name: String,
    },
    /// A setting that cannot be right.
    #[error("{0}")]
    Settings(String),
}

/// The uid of a number or of a name in `/etc/passwd`, where sysusers.d puts the daemon's user.
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

/// The socket that systemd hands over, or a new one at `path` (for tests and the demo; a dead one is replaced).
pub fn listener(path: Option<&Path>) -> Result<StdListener, HomedError> {
    let Some(path) = path else {
        let failed = |source| HomedError::Socket { path: PathBuf::from("from systemd"), source };
        let handed = listenfd::ListenFd::from_env().take_unix_listener(0).map_err(failed)?;
        let listener = handed.ok_or(HomedError::NoSocket)?;
        // systemd hands it over open across exec: a worker, which is a user's process, must not have it.
        let for_us_only = rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::CLOEXEC);
        for_us_only.map_err(|errno| failed(errno.into()))?;
        return Ok(listener);
    };
    let failed = |source| HomedError::Socket { path: path.to_owned(), source };
    // A connection to a regular file is refused too, and that file is not ours to remove.
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let is_refused = || StdStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    if is_socket && is_refused() {
        std::fs::remove_file(path).map_err(failed)?;
    }
    let listener = StdListener::bind(path).map_err(failed)?;
    // Anybody may connect: peer credentials decide who may ask.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(path, mode).map_err(failed)?;
    Ok(listener)
}

/// Serves with settings that were checked until `shutdown`, then lets requests that run come to their end (at most
/// their deadline).
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
                    // Out of descriptors: trying at once would only spin.
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

/// Whether any request can be served with these settings.
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

/// The part of a request that the server reads. The work is left to the worker: it may hold a private key.
#[derive(Deserialize)]
struct RequestHead {
    version: u32,
    target: HomeTarget,
    #[serde(rename = "work")]
    _work: IgnoredAny,
}

struct Server {
    settings: HomedSettings,
    spawner: Spawner,
    /// One for each prefix.
    exports: BTreeMap<PathBuf, Export>,
    /// One request a home at a time: two workers would sweep away each other's temporary files.
    homes: Mutex<BTreeMap<PathBuf, Arc<tokio::sync::Mutex<()>>>>,
}

struct Export {
    breaker: Mutex<Breaker>,
    workers: Arc<Semaphore>,
}

/// A lock whose holder panicked holds nothing half-done here: each change is one assignment.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What came of a worker, as far as its export is concerned.
enum Outcome {
    Answered(Vec<u8>),
    Late,
    NotTried(HomeError),
}

/// Why a worker that is not late gives no answer.
enum NoAnswer {
    /// It ended before it had read the whole request, and so before it did anything: another may be asked.
    NotTaken,
    /// It may have done its work, or a part.
    Died(String),
}

impl From<NoAnswer> for HomeError {
    fn from(no_answer: NoAnswer) -> Self {
        let detail = match no_answer {
            NoAnswer::NotTaken => "it exited before it got the request".to_owned(),
            NoAnswer::Died(detail) => detail,
        };
        Self::WorkerDied { detail }
    }
}

impl Server {
    fn new(settings: HomedSettings) -> Self {
        let export = || Export {
            breaker: Mutex::new(Breaker::new(settings.breaker)),
            workers: Arc::new(Semaphore::new(MAX_CONCURRENT)),
        };
        let exports = settings.bounds.prefixes.iter().map(|prefix| (prefix.path.clone(), export())).collect();
        Self { settings, spawner: Spawner::default(), exports, homes: Mutex::default() }
    }

    /// One connection: requests one after the other, until it ends or says something that is no request.
    async fn connection(
        self: Arc<Self>,
        mut stream: UnixStream,
        permit: Option<OwnedSemaphorePermit>,
        mut stopped: tokio::sync::watch::Receiver<bool>,
    ) {
        let refusal = match stream.peer_cred() {
            Ok(peer) if peer.uid() == self.settings.client_uid => {
                permit.is_none().then(|| HomeError::Unavailable { detail: "too many connections".into() })
            }
            Ok(peer) => Some(HomeError::Forbidden { uid: peer.uid() }),
            Err(error) => Some(HomeError::Unavailable { detail: format!("peer credentials: {error}") }),
        };
        if let Some(error) = refusal {
            tracing::warn!(reason = error.reason(), "refused: {error}");
            let _ = stream.write_all(&Response::new(Err(error)).to_line()).await;
            return;
        }
        let mut buffer = Zeroizing::new(Vec::with_capacity(USUAL_REQUEST_BYTES));
        loop {
            let line = tokio::select! {
                _ = stopped.changed() => return,
                line = read_line(&mut stream, &mut buffer, self.settings.deadline) => line,
            };
            let (answer, goes_on) = match line {
                Ok(Some(line)) => match serde_json::from_slice::<RequestHead>(&line) {
                    Ok(head) => (self.answer(&head, &line).await, true),
                    Err(error) => (refuse(format!("request: {}", place(&error))), false),
                },
                Ok(None) => return,
                Err(detail) => (refuse(detail), false),
            };
            if stream.write_all(&answer).await.is_err() || !goes_on {
                return;
            }
        }
    }

    /// The answer line to one request.
    #[expect(clippy::disallowed_methods, reason = "measures how long an answer took")]
    async fn answer(&self, head: &RequestHead, line: &[u8]) -> Vec<u8> {
        let target = &head.target;
        let started = Instant::now();
        let answer = self.admit_and_work(head, line).await;
        let answer = answer.unwrap_or_else(|error| {
            tracing::warn!(home = %target.home.display(), uid = target.uid, reason = error.reason(), "{error}");
            Response::new(Err(error)).to_line()
        });
        tracing::debug!(home = %target.home.display(), uid = target.uid, elapsed = ?started.elapsed(), "request");
        answer
    }

    #[expect(clippy::disallowed_methods, reason = "the breaker's clock is read where requests begin and end")]
    async fn admit_and_work(&self, head: &RequestHead, line: &[u8]) -> Result<Vec<u8>, HomeError> {
        let RequestHead { version, target, _work } = head;
        if *version != PROTOCOL_VERSION {
            return Err(HomeError::BadRequest { detail: format!("version {version} is not known") });
        }
        let prefix = self.settings.bounds.admit(target)?;
        let unavailable = |detail| HomeError::Unavailable { detail };
        let export = self.exports.get(&prefix.path).ok_or_else(|| unavailable("no such export".into()))?;
        lock(&export.breaker).admit(Instant::now()).map_err(|left| {
            unavailable(format!(
                "`{}` does not answer; it is tried again in {} s",
                prefix.path.display(),
                left.as_secs() + 1
            ))
        })?;
        let outcome = self.work(export, target, line).await;
        let mut breaker = lock(&export.breaker);
        match outcome {
            Outcome::Answered(answer) => {
                breaker.answered();
                Ok(answer)
            }
            Outcome::NotTried(error) => {
                breaker.not_tried();
                Err(error)
            }
            Outcome::Late => {
                if breaker.timed_out(target.uid, Instant::now()) {
                    tracing::error!(prefix = %prefix.path.display(), "the file system does not answer; its homes wait");
                }
                Err(HomeError::TimedOut { home: target.home.clone(), seconds: self.settings.deadline.as_secs() })
            }
        }
    }

    /// Waits for its turn, starts a worker, and waits for its answer until the deadline.
    async fn work(&self, export: &Export, target: &HomeTarget, line: &[u8]) -> Outcome {
        let unavailable = |detail| Outcome::NotTried(HomeError::Unavailable { detail });
        let mut busy = "an earlier request for this home has not ended";
        let turn = tokio::time::timeout(self.settings.deadline, async {
            let home = self.home_lock(&target.home).lock_owned().await;
            busy = "all workers of this export are busy";
            (home, Arc::clone(&export.workers).acquire_owned().await)
        });
        let Ok((home, Ok(permit))) = turn.await else { return unavailable(busy.to_owned()) };
        let none = |error| unavailable(format!("cannot start a worker: {error}"));
        let mut worker = match self.spawner.worker() {
            Ok(worker) => worker,
            Err(error) => return none(error),
        };
        let conversation = async {
            let answer = self.converse(&mut worker, line).await;
            if !matches!(answer, Err(NoAnswer::NotTaken)) {
                return Ok(answer);
            }
            // Its spawner ended between two requests: that is nothing the user's file system did.
            worker = self.spawner.worker()?;
            Ok(self.converse(&mut worker, line).await)
        };
        match tokio::time::timeout(self.settings.deadline, conversation).await {
            Ok(Ok(answer)) => {
                let patience = self.settings.deadline;
                tokio::spawn(async move {
                    // Its user may stop it when it has answered; it would be there until we end.
                    if tokio::time::timeout(patience, worker.gone()).await.is_err() {
                        let _ = worker.kill();
                    }
                });
                // Its user may have killed it: that says nothing of the export.
                answer.map_or_else(|no_answer| Outcome::NotTried(no_answer.into()), Outcome::Answered)
            }
            Ok(Err(error)) => none(error),
            Err(_) if worker.kill().is_err() => {
                self.spawner.end();
                unavailable("no worker process started in time".to_owned())
            }
            Err(_) => {
                // Until it is gone it keeps its place and its home.
                tokio::spawn(async move {
                    worker.gone().await;
                    drop((home, permit));
                });
                Outcome::Late
            }
        }
    }

    fn home_lock(&self, home: &Path) -> Arc<tokio::sync::Mutex<()>> {
        let mut homes = lock(&self.homes);
        homes.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(homes.entry(home.to_owned()).or_default())
    }

    /// Hands order and request to the worker and takes its one line.
    async fn converse(&self, worker: &mut Worker, line: &[u8]) -> Result<Vec<u8>, NoAnswer> {
        let failed = |error: std::io::Error| NoAnswer::Died(error.to_string());
        let order = Order {
            bounds: self.settings.bounds.clone(),
            date: basic_format((self.settings.clock)()),
            patience: self.settings.deadline.mul_f64(PATIENCE),
            cpu_seconds: self.settings.cpu_seconds,
        };
        let mut order = serde_json::to_vec(&order).map_err(|error| failed(error.into()))?;
        order.push(b'\n');
        let socket = &mut worker.socket;
        for part in [&order[..], line] {
            socket.write_all(part).await.map_err(|_| NoAnswer::NotTaken)?;
        }
        // One that ended meanwhile is told apart below.
        let _ = socket.shutdown().await;
        let mut answer = Vec::with_capacity(1024);
        while !answer.ends_with(b"\n") && answer.len() < MAX_ANSWER_BYTES {
            match socket.read_buf(&mut answer).await {
                Ok(0) => break,
                Ok(_) => {}
                // The kernel's word for a socket that was closed with something unread in it.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Err(NoAnswer::NotTaken),
                Err(error) => return Err(failed(error)),
            }
        }
        if !answer.ends_with(b"\n") || serde_json::from_slice::<Response>(&answer).is_err() {
            return Err(NoAnswer::Died("it was killed, or failed".to_owned()));
        }
        Ok(answer)
    }
}

/// ISO 8601 in its basic format, `20260131T235959Z`. A clock that was never set says 1970.
fn basic_format(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time.max(UNIX_EPOCH)).to_string().replace(['-', ':'], "")
}

fn refuse(detail: String) -> Vec<u8> {
    tracing::warn!(reason = "bad-request", "{detail}");
    Response::new(Err(HomeError::BadRequest { detail })).to_line()
}

/// The next line, without its line feed; `None` at the end. A line that was begun must be ended within `patience`.
#[expect(clippy::disallowed_methods, reason = "a deadline for the rest of a line")]
async fn read_line(
    stream: &mut UnixStream,
    buffer: &mut Zeroizing<Vec<u8>>,
    patience: Duration,
) -> Result<Option<Zeroizing<Vec<u8>>>, String> {
    let mut give_up = None;
    loop {
        if let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let rest = Zeroizing::new(buffer.split_off(end + 1));
            let mut line = std::mem::replace(buffer, rest);
            line.truncate(end);
            return Ok(Some(line));
        }
        if buffer.len() > MAX_REQUEST_BYTES {
            return Err(format!("longer than {MAX_REQUEST_BYTES} bytes"));
        }
        let read = match give_up {
            None => stream.read_buf(&mut **buffer).await,
            Some(at) => match tokio::time::timeout_at(at, stream.read_buf(&mut **buffer)).await {
                Ok(read) => read,
                Err(_) => return Err("a request that does not end".to_owned()),
            },
        };
        match read {
            Ok(0) if buffer.is_empty() => return Ok(None),
            Ok(0) => return Err("the connection ended within a request".to_owned()),
            Ok(_) => give_up = give_up.or(Some(tokio::time::Instant::now() + patience)),
            Err(_) => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_backup_is_the_time_in_basic_format() {
        assert_eq!(basic_format(UNIX_EPOCH + Duration::from_secs(1_769_903_999)), "20260131T235959Z");
        assert_eq!(basic_format(UNIX_EPOCH - Duration::from_secs(1)), "19700101T000000Z");
    }
}
