//! Records `bursar directory accept`, which an administrator uses after a server was restored from a backup, or if
//! groups are empty on purpose.

use serde_json::json;

use super::{OrderOutcome, event, refused};
use crate::ledger::change::Change;
use crate::ledger::server::SourceMark;
use crate::ledger::{LedgerState, Note};
use crate::orders::request::RequestRefusal;

/// Discards the known state of the source's servers, and accepts the next complete read as it is.
pub(super) fn accept(ledger: &LedgerState, source: &str, note: &Note) -> Result<OrderOutcome, RequestRefusal> {
    if !ledger.sources.contains_key(source) && !ledger.marks.contains_key(source) {
        let names: Vec<&str> = ledger.sources.keys().map(String::as_str).collect();
        let others = match names.as_slice() {
            [] => "no source was read so far; run: bursar sync".to_owned(),
            names => format!("sources that were read: {}", names.join(", ")),
        };
        let text = format!("no source {source:?} was ever read; {others}");
        return refused(64, text);
    }
    let mark = SourceMark::accepted(note.at);
    let mut event = event(None, "directory accepted", note);
    event.detail = json!({ "source": source }).into();
    Ok(OrderOutcome {
        changes: vec![Change::SourceMark(source.to_owned(), Some(mark))],
        events: vec![event],
        text: format!("source {source}: the next read is accepted as it is"),
    })
}
