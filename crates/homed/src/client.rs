//! Sends requests of the daemon to `bursar-homed`, over a limited number of connections that are reused.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

pub use bursar_protocol::MAX_CONCURRENT;
use bursar_protocol::{
    Answer, DAEMON_CONNECTIONS, HomeError, MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, PROTOCOL_VERSION, Request, Response,
    USUAL_REQUEST_BYTES,
};
use thiserror::Error;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

/// Time to wait beyond the server's own deadlines. A live server answers at its deadlines at the latest, so a server
/// that takes longer is dead.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a request failed.
#[derive(Debug, Error)]
pub enum HomedClientError {
    /// No process listens on the socket.
    #[error("bursar-homed is not listening at {}: start it with `systemctl start bursar-homed.socket`", socket.display())]
    NotListening {
        socket: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The connection broke, and so did the second attempt.
    #[error("the connection to bursar-homed broke: see `journalctl -u bursar-homed`")]
    Broken(#[source] std::io::Error),
    /// The server gave no answer, not even a timeout.
    #[error("bursar-homed gave no answer within {} s: see `journalctl -u bursar-homed`", .0.as_secs())]
    TimedOut(Duration),
    /// The answer cannot be parsed, or the request is too long.
    #[error("bursar-homed and bursard have different versions ({0}); restart both")]
    Protocol(String),
    /// The server answered with an error.
    #[error(transparent)]
    Home(#[from] HomeError),
}

/// A pool of connections to one socket. It connects at the first request.
#[derive(Debug)]
pub struct HomedClient {
    socket: PathBuf,
    deadline: Duration,
    /// Limits the connections to fewer than the server accepts.
    connections: Semaphore,
    /// Limits the requests for homes beneath none of the known prefixes.
    elsewhere: Semaphore,
    /// Limits the requests for homes beneath each prefix.
    exports: BTreeMap<PathBuf, Semaphore>,
    idle: Mutex<Vec<UnixStream>>,
}

impl HomedClient {
    /// Returns a client of the server at `socket`. `deadline` is the server's deadline for one request.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>, deadline: Duration) -> Self {
        let (connections, elsewhere) = (Semaphore::new(DAEMON_CONNECTIONS), Semaphore::new(MAX_CONCURRENT));
        let (exports, idle) = (BTreeMap::new(), Mutex::default());
        Self { socket: socket.into(), deadline, connections, elsewhere, exports, idle }
    }

    /// Gives each of these prefixes its own share of the connections, so that its homes wait only for each other.
    #[must_use]
    pub fn with_prefixes<'a>(self, prefixes: impl IntoIterator<Item = &'a PathBuf>) -> Self {
        let prefixes: BTreeSet<&PathBuf> = prefixes.into_iter().collect();
        let share = share(prefixes.len());
        let exports = prefixes.into_iter().map(|prefix| (prefix.clone(), Semaphore::new(share)));
        Self { exports: exports.collect(), elsewhere: Semaphore::new(share), ..self }
    }

    fn places(&self, home: &Path) -> &Semaphore {
        home.ancestors().find_map(|above| self.exports.get(above)).unwrap_or(&self.elsewhere)
    }

    /// Sends a request and returns the answer. If the server has closed a reused connection (it was restarted), the
    /// request is sent once more; every request may be repeated.
    pub async fn call(&self, request: &Request) -> Result<Answer, HomedClientError> {
        let line = encode(request)?;
        // The semaphores are never closed.
        let _place = self.places(&request.target.home).acquire().await;
        let _connection = self.connections.acquire().await;
        let patience = self.deadline * 2 + PATIENCE;
        let called = tokio::time::timeout(patience, self.exchange(&line)).await;
        let answer = called.map_err(|_| HomedClientError::TimedOut(patience))??;
        let response: Response =
            serde_json::from_slice(&answer).map_err(|error| HomedClientError::Protocol(error.to_string()))?;
        if response.version != PROTOCOL_VERSION {
            return Err(HomedClientError::Protocol(format!("answer of version {}", response.version)));
        }
        Ok(response.result?)
    }

    async fn exchange(&self, line: &[u8]) -> Result<Vec<u8>, HomedClientError> {
        let used = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(stream) = used
            && let Ok(answer) = self.converse(stream, line).await
        {
            return Ok(answer);
        }
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|source| HomedClientError::NotListening { socket: self.socket.clone(), source })?;
        self.converse(stream, line).await.map_err(HomedClientError::Broken)
    }

    async fn converse(&self, mut stream: UnixStream, line: &[u8]) -> std::io::Result<Vec<u8>> {
        // A server that refuses the client sends the reason and closes without reading. That reason is reported rather
        // than the error of the write.
        let sent = stream.write_all(line).await;
        let mut answer = Vec::with_capacity(4096);
        while !answer.ends_with(b"\n") {
            if answer.len() > MAX_ANSWER_BYTES {
                return Err(std::io::Error::other("an answer that does not end"));
            }
            if stream.read_buf(&mut answer).await? == 0 {
                sent?;
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
        if sent.is_ok() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        }
        Ok(answer)
    }
}

/// Returns the number of concurrent requests for each of `prefixes` prefixes, and for homes elsewhere. All shares
/// together do not exceed the connections, so that an export that hangs takes no connection from another.
fn share(prefixes: usize) -> usize {
    (DAEMON_CONNECTIONS / (prefixes + 1)).clamp(1, MAX_CONCURRENT)
}

/// Returns the request as one line of JSON.
fn encode(request: &Request) -> Result<Zeroizing<Vec<u8>>, HomedClientError> {
    let mut line = Zeroizing::new(Vec::with_capacity(USUAL_REQUEST_BYTES));
    serde_json::to_writer(&mut *line, request).map_err(|error| HomedClientError::Protocol(error.to_string()))?;
    if line.len() >= MAX_REQUEST_BYTES {
        return Err(HomedClientError::Protocol(format!("a request of {} bytes", line.len())));
    }
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use bursar_protocol::MAX_CONNECTIONS;

    use super::*;

    #[test]
    fn all_exports_together_fit_into_the_servers_connections() {
        assert_eq!((share(0), share(1), share(31), share(63)), (MAX_CONCURRENT, MAX_CONCURRENT, MAX_CONCURRENT, 4));
        for prefixes in 0..DAEMON_CONNECTIONS {
            assert!((prefixes + 1) * share(prefixes) <= DAEMON_CONNECTIONS && share(prefixes) > 0, "{prefixes}");
        }
        const { assert!(DAEMON_CONNECTIONS < MAX_CONNECTIONS) };
    }
}
