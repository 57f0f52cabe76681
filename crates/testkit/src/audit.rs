//! What the API server was asked, from its audit log.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use serde_json::Value;

/// One request that the API server answered, or a watch that it began to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Who asked, after impersonation.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// Path and query.
    pub uri: String,
    /// When it was answered.
    pub at: jiff::Timestamp,
    /// The HTTP status.
    pub status: u64,
    /// What program asked.
    pub user_agent: String,
}

/// The place in the log where the next request will be written.
///
/// # Panics
/// If there is no log.
#[must_use]
pub fn mark(log: &Path) -> u64 {
    std::fs::metadata(log).expect("the audit log").len()
}

/// All requests since a [`mark`]; 0 is the beginning. A request may be answered a moment before it is written here:
/// wait for what must be there, and count what must not be there after something later that is.
///
/// # Panics
/// If there is no log.
#[must_use]
pub fn requests_since(log: &Path, mark: u64) -> Vec<Request> {
    let mut text = String::new();
    let mut file = File::open(log).expect("the audit log");
    file.seek(SeekFrom::Start(mark)).and_then(|_| file.read_to_string(&mut text)).expect("the audit log");
    // The last line may be half written.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).expect("a JSON event"))
        .filter_map(|event| request(&event))
        .collect()
}

/// A watch is told twice, when it begins and when it ends: the first counts.
fn request(event: &Value) -> Option<Request> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let is_watch = event["verb"] == "watch";
    let began = event["stage"] == "ResponseStarted";
    (is_watch == began).then(|| Request {
        user: text(event.pointer("/impersonatedUser/username").unwrap_or(&event["user"]["username"])),
        at: text(&event["stageTimestamp"]).parse().expect("a time"),
        verb: text(&event["verb"]),
        uri: text(&event["requestURI"]),
        status: event["responseStatus"]["code"].as_u64().unwrap_or_default(),
        user_agent: text(&event["userAgent"]),
    })
}
