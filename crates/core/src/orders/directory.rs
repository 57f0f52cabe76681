//! `bursar directory accept`: a server was restored from a backup, or groups are empty on purpose.

use serde_json::json;

use super::{OrderOutcome, event, refused};
use crate::ledger::change::Change;
use crate::ledger::server::SourceMark;
use crate::ledger::{LedgerState, Note};
use crate::orders::request::Refusal;

/// What was known of the servers is forgotten, and the next complete read is taken as it is.
pub(super) fn accept(ledger: &LedgerState, source: &str, note: &Note) -> Result<OrderOutcome, Refusal> {
    if !ledger.sources.contains_key(source) && !ledger.marks.contains_key(source) {
        let names: Vec<&str> = ledger.sources.keys().map(String::as_str).collect();
        let others = match names.as_slice() {
            [] => "nothing was read so far; run: bursar sync".to_owned(),
            names => format!("there are: {}", names.join(", ")),
        };
        let text = format!("no source {source:?} was read yet; {others}");
        return refused(64, text);
    }
    let mark = SourceMark::accepted(note.at);
    let mut event = event(None, "directory accepted", note);
    event.detail = json!({ "source": source });
    Ok(OrderOutcome {
        changes: vec![Change::SourceMark(source.to_owned(), Some(mark))],
        events: vec![event],
        text: format!("source {source}: the next read is accepted as it is"),
    })
}
