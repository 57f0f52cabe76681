//! Answers the requests of one connection: admits each, and passes it to a worker.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bursar_protocol::{
    HomeError, HomeTarget, MAX_ANSWER_BYTES, MAX_CONCURRENT, MAX_REQUEST_BYTES, PROTOCOL_VERSION, Response,
    USUAL_REQUEST_BYTES,
};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use zeroize::Zeroizing;

use super::HomedSettings;
use crate::breaker::Breaker;
use crate::mounts;
use crate::spawner::{Spawner, Worker};
use crate::worker::{WorkerHeader, place};

/// The part of the deadline for which a worker waits for other programs. It is less than 1, so that the worker can
/// report the timeout itself, and the export does not count as late.
const PATIENCE: f64 = 0.6;

/// The part of a request that the server reads. Only the worker reads the work, which may contain a private key.
#[derive(Deserialize)]
struct RequestHead {
    version: u32,
    target: HomeTarget,
    #[serde(rename = "work")]
    _work: IgnoredAny,
}

pub(super) struct Server {
    pub(super) settings: HomedSettings,
    spawner: Spawner,
    /// The exports by prefix.
    exports: BTreeMap<PathBuf, Export>,
    /// Allows one request per home at a time: two workers would remove each other's temporary files.
    homes: Mutex<BTreeMap<PathBuf, Arc<tokio::sync::Mutex<()>>>>,
}

struct Export {
    breaker: Mutex<Breaker>,
    workers: Arc<Semaphore>,
    /// The prefix without symlinks; empty until it has been resolved.
    real: Arc<OnceLock<PathBuf>>,
}

/// Resolves a prefix in a thread of its own, because its file system may hang.
fn resolved(prefix: &Path) -> Arc<OnceLock<PathBuf>> {
    let real = Arc::new(OnceLock::new());
    let (prefix, set) = (prefix.to_owned(), Arc::clone(&real));
    std::thread::spawn(move || std::fs::canonicalize(prefix).map(|path| set.set(path)));
    real
}

/// Ignores poisoning: every change under these locks is one assignment, so a panic leaves nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The outcome of a request, by which the breaker of its export is updated.
enum Outcome {
    Answered(Vec<u8>),
    Late,
    NotTried(HomeError),
}

/// Why a worker ended without an answer before the deadline.
enum NoAnswer {
    /// The worker ended before it had read the whole request, so it did nothing, and another worker may be used.
    NotTaken,
    /// The worker may have done its work or a part of it.
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
    pub(super) fn new(settings: HomedSettings) -> Self {
        let export = |prefix: &Path| Export {
            breaker: Mutex::new(Breaker::new(settings.backoff)),
            workers: Arc::new(Semaphore::new(MAX_CONCURRENT)),
            real: resolved(prefix),
        };
        let prefixes = settings.bounds.prefixes.iter();
        let exports = prefixes.map(|prefix| (prefix.path.clone(), export(&prefix.path))).collect();
        Self { settings, spawner: Spawner::default(), exports, homes: Mutex::default() }
    }

    /// Serves the requests of one connection one after another, until it ends or sends an invalid request.
    pub(super) async fn connection(
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

    /// Returns the line that answers one request.
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
        let outcome = match self.work(export, target, line).await {
            // The user may have mounted a file system of their own after the worker's check.
            Outcome::Late => {
                let real = export.real.get().unwrap_or(&prefix.path);
                match mounts::around(real, target.home.strip_prefix(&prefix.path).unwrap_or(&target.home)) {
                    Some(path) => Outcome::NotTried(HomeError::OtherFileSystem { path }),
                    None => Outcome::Late,
                }
            }
            outcome => outcome,
        };
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

    /// Waits for a free worker and for the home, starts the worker, and waits for its answer until the deadline.
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
            // The spawner ended between two requests. The user's file system is not the cause, so another worker is
            // used.
            worker = self.spawner.worker()?;
            Ok(self.converse(&mut worker, line).await)
        };
        match tokio::time::timeout(self.settings.deadline, conversation).await {
            Ok(Ok(answer)) => {
                let patience = self.settings.deadline;
                tokio::spawn(async move {
                    // The user may stop the worker after its answer. Without this timeout, a stopped worker would exist
                    // until the server ends.
                    if tokio::time::timeout(patience, worker.gone()).await.is_err() {
                        let _ = worker.kill();
                    }
                });
                match answer {
                    // This error says nothing about the export, because a user can mount a file system in a home.
                    Ok((_, Response { result: Err(error @ HomeError::OtherFileSystem { .. }), .. })) => {
                        Outcome::NotTried(error)
                    }
                    Ok((line, _)) => Outcome::Answered(line),
                    // The user may have killed the worker, which says nothing about the export either.
                    Err(no_answer) => Outcome::NotTried(no_answer.into()),
                }
            }
            Ok(Err(error)) => none(error),
            Err(_) if worker.kill().is_err() => {
                self.spawner.end();
                unavailable("no worker process started in time".to_owned())
            }
            Err(_) => {
                // Until the worker is gone, it keeps its permit and the lock of the home.
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

    /// Sends order and request to the worker, and returns the line that it answers, also parsed.
    async fn converse(&self, worker: &mut Worker, line: &[u8]) -> Result<(Vec<u8>, Response), NoAnswer> {
        let failed = |error: std::io::Error| NoAnswer::Died(error.to_string());
        let order = WorkerHeader {
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
        // If the worker has ended meanwhile, the read below notices it.
        let _ = socket.shutdown().await;
        let mut answer = Vec::with_capacity(1024);
        while !answer.ends_with(b"\n") && answer.len() < MAX_ANSWER_BYTES {
            match socket.read_buf(&mut answer).await {
                Ok(0) => break,
                Ok(_) => {}
                // The kernel reports this if the worker's socket was closed with unread data.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Err(NoAnswer::NotTaken),
                Err(error) => return Err(failed(error)),
            }
        }
        match serde_json::from_slice(&answer) {
            Ok(response) if answer.ends_with(b"\n") => Ok((answer, response)),
            _ => Err(NoAnswer::Died("it was killed, or failed".to_owned())),
        }
    }
}

/// Formats a time in the basic format of ISO 8601, `20260131T235959Z`. A time before 1970 becomes 1970.
fn basic_format(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time.max(UNIX_EPOCH)).to_string().replace(['-', ':'], "")
}

fn refuse(detail: String) -> Vec<u8> {
    tracing::warn!(reason = "bad-request", "{detail}");
    Response::new(Err(HomeError::BadRequest { detail })).to_line()
}

/// Returns the next line without its line feed; `None` at the end. After its first byte, a line must be complete within
/// `patience`.
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
                Err(_) => return Err("it is not complete within the deadline".to_owned()),
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
