//! Reads the API server's audit log.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use serde_json::Value;

/// A request that the API server answered, or a watch that it began to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The user, after impersonation.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// The path with the query.
    pub uri: String,
    /// When the request was answered.
    pub at: jiff::Timestamp,
    /// The HTTP status.
    pub status: u64,
    /// The program that sent the request.
    pub user_agent: String,
}

/// The position in the log where the next request will be written.
#[must_use]
pub fn mark(log: &Path) -> u64 {
    std::fs::metadata(log).expect("the audit log is readable").len()
}

/// All requests since a [`mark`]; 0 reads from the beginning. A request can be answered a moment before it is in the
/// log. Wait for requests that must be there. Before counting requests that must not be there, wait for a later one.
#[must_use]
pub fn requests_since(log: &Path, mark: u64) -> Vec<Request> {
    let mut text = String::new();
    let mut file = File::open(log).expect("the audit log is readable");
    file.seek(SeekFrom::Start(mark)).and_then(|_| file.read_to_string(&mut text)).expect("the audit log is readable");
    // The last line may be incomplete.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).expect("the line is a JSON event"))
        .filter_map(|event| request(&event))
        .collect()
}

/// A watch has two events, one for its beginning and one for its end. The first one counts.
fn request(event: &Value) -> Option<Request> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let is_watch = event["verb"] == "watch";
    let began = event["stage"] == "ResponseStarted";
    (is_watch == began).then(|| Request {
        user: text(event.pointer("/impersonatedUser/username").unwrap_or(&event["user"]["username"])),
        at: text(&event["stageTimestamp"]).parse().expect("the event has a time"),
        verb: text(&event["verb"]),
        uri: text(&event["requestURI"]),
        status: event["responseStatus"]["code"].as_u64().unwrap_or_default(),
        user_agent: text(&event["userAgent"]),
    })
}
